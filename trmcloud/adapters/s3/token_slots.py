"""What a pod may fetch of the tokens that a bucket keeps, and where it may put what it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from trmcloud.adapters.s3.client import Client
from trmcloud.adapters.s3.fetching import get_bytes
from trmcloud.core.contract import token_cache as tc
from trmcloud.core.contract.bucket import CachedFile, CacheGrants, FileGet
from trmcloud.core.contract.bucket_layout import Place
from trmcloud.core.contract.records import MAX_JSON_BYTES, ContractError
from trmcloud.ports.bucket import CacheRequest


def cache_grants(
    client: Client, place: Place, wanted: CacheRequest, signed: Callable[[str, str], str]
) -> CacheGrants:
    """``signed(verb, key)`` makes a request. An index that is none counts as an empty one: then all
    of it is made anew, and written over."""

    def key(name: str) -> str:
        return place.key(tc.TOKENS_DIR, wanted.key, name)

    held: tuple[CachedFile, ...] = ()
    text = get_bytes(client, key(tc.INDEX_NAME), MAX_JSON_BYTES)
    with contextlib.suppress(ContractError):
        held = tc.load_index(text) if text is not None else ()
    slots = dict.fromkeys((*tc.slots_for(wanted.shards), *(file.slot for file in held)))
    return CacheGrants(
        folder=wanted.folder,
        gets=tuple(
            FileGet(f.name, f.size_bytes, f.sha256, (signed("get_object", key(f.slot)),))
            for f in held
        ),
        held=held,
        puts={slot: signed("put_object", key(slot)) for slot in slots},
        index=signed("put_object", key(tc.INDEX_NAME)),
    )
