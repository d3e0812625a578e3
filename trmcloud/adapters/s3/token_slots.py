"""What a pod may fetch of the tokens that a bucket keeps, and where it may put what it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from trmcloud.adapters.s3.client import Client
from trmcloud.adapters.s3.fetching import get_bytes
from trmcloud.adapters.s3.sending import takes_conditions
from trmcloud.adapters.s3.spans import LANES
from trmcloud.core.contract import bucket_layout as tc
from trmcloud.core.contract.bucket import CachedFile, CacheGrants, FileGet
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.contract.records import ContractError
from trmcloud.ports.bucket import CacheRequest

_PROBE = "made.json"
"""Below a pod's name: stored once, by which a store shows whether it refuses a second writing."""


def cache_grants(
    client: Client,
    place: Place,
    wanted: CacheRequest,
    pod_name: str,
    sizes: Mapping[str, int],
    signed: Callable[..., str],
) -> CacheGrants:
    """``sizes`` are those of the objects below the key; ``signed(verb, key, once=…)`` makes a
    request. Only pinned files may be fetched, by their pinned hashes. Only objects below the pod's
    own name may be put, and none that is there."""

    def key(name: str) -> str:
        return place.key(tc.TOKENS_DIR, wanted.key, name)

    held = tc.offered(wanted.pins, sizes)
    once = takes_conditions(client, key(f"{pod_name}/{_PROBE}"))
    slots = [slot for slot in tc.token_slots_for(pod_name, wanted.shards) if slot not in sizes]
    names = [*slots, *(tc.entry_of(slot) for slot in slots)]
    return CacheGrants(
        folder=wanted.folder,
        gets=tuple(
            FileGet(f.name, f.size_bytes, f.sha256, (signed("get_object", key(f.slot)),))
            for f in held
        ),
        held=held,
        puts={
            name: signed("put_object", key(name), once=once) for name in names if name not in sizes
        },
    )


def stored_files(
    client: Client,
    place: Place,
    of_key: str,
    sizes: Mapping[str, int],
    pods: Collection[str],
    pins: Sequence[CachedFile],
) -> tuple[CachedFile, ...]:
    """What ``pods`` say that they have stored, as far as nothing is pinned yet: hostile text, of
    which what is no entry is left out."""

    def read(slot: str) -> CachedFile | None:
        at = place.key(tc.TOKENS_DIR, of_key, tc.entry_of(slot))
        text = get_bytes(client, at, tc.MAX_ENTRY_BYTES)
        with contextlib.suppress(ContractError):
            return tc.load_entry(text or b"", slot, sizes[slot])
        return None

    with ThreadPoolExecutor(LANES) as pool:
        found = list(pool.map(read, tc.unpinned(sizes, pods, pins)))
    return tuple(file for file in found if file is not None)
