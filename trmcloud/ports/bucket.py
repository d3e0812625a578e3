"""A store that outlives every pod."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trmcloud.core.values import Value

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.core.contract.bucket import CachedFile, Grants
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.ports.compute import StageItem


class StoredCheckpoint(Value):
    """A checkpoint that is whole in a bucket; ``at`` is the folder of its objects there. The other
    two are its manifest's own size and SHA-256."""

    manifest: CheckpointManifest
    at: str
    text_bytes: int = 0
    text_sha256: str = ""


class BucketCheckpoints(Value):
    """A bucket's content for a run. ``half``: (where, why) of what is no whole checkpoint."""

    whole: tuple[StoredCheckpoint, ...] = ()
    half: tuple[tuple[str, str], ...] = ()


class CacheRequest(Value):
    """Tokens that a pod makes: ``key`` of what shapes them, the cache's ``folder`` there, how many
    ``shards`` it will make at most, and what the ledger has pinned of them, oldest first."""

    key: str
    folder: str
    shards: int
    pins: tuple[CachedFile, ...] = ()


class GrantRequest(Value):
    """``phases``: how many best each keeps; ``file_bytes``: how much one file of a checkpoint may
    hold, by phase, where a plan says so; ``shards``: into how many it may be cut, of phases whose
    weights are shared out. ``of_command``: its checkpoints are those of a user's command, and
    ``file_bytes`` is what one holds in all. ``folders`` are what the pod is to fetch, and
    ``go_on_from`` checkpoints with the folder there that each goes to. ``until`` is the epoch
    second at which nothing may be uploaded any more."""

    run_id: str
    pod_name: str
    generation: int
    phases: Mapping[str, int]
    until: float
    folders: Sequence[StageItem] = ()
    go_on_from: Sequence[tuple[StoredCheckpoint, str]] = ()
    file_bytes: Mapping[str, int] = field(default_factory=dict)
    shards: Mapping[str, int] = field(default_factory=dict)
    cache: CacheRequest | None = None
    of_command: bool = False


class Bucket(Protocol):
    """Object storage in which checkpoints survive without a pod or this machine.

    All may raise ``AuthError``, ``NotFoundError`` (no such bucket), ``ProviderError``.
    """

    def check(self) -> None:
        """See, before anything is reserved, that it can be written, read and deleted in."""

    def claim(self, run_id: str, ledger_id: str) -> None:
        """Mark the run's folder as this ledger's, once.

        Raises:
            ConflictError: it is another ledger's.
        """

    def grant(self, request: GrantRequest) -> Grants:
        """Everything a pod may write and read there, as requests signed one by one.

        Raises:
            NotSupported: this store takes no presigned requests.
        """

    def stored_tokens(
        self, key: str, pods: Collection[str], pins: Sequence[CachedFile]
    ) -> tuple[CachedFile, ...]:
        """Files of a token cache that these pods say they have stored, and no pin covers."""

    def checkpoints(self, run_id: str, file_bytes: Mapping[str, int] = ...) -> BucketCheckpoints:
        """By a list, and the manifests in it. Where an object is larger than was granted, for files
        of ``file_bytes`` by phase, nothing beside it is read."""

    def oversized(self, run_id: str, file_bytes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """(key, bytes) of all that is larger than any pod of the run was granted, by a list alone.
        Fails rather than waits for long."""

    def drop(self, keys: Sequence[str]) -> None:
        """Delete what ``oversized`` named."""

    def last_report(self, run_id: str, generation: int) -> bytes | None:
        """Return the last report that a generation's agent left: hostile text. None where it left
        nothing that could be such a report. Fails rather than waits for long."""

    def fetch(
        self,
        stored: StoredCheckpoint,
        names: Sequence[str],
        target: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Bring files of a checkpoint into ``target``, resuming what is there, every hash
        verified. Its manifest is the caller's to write.

        Raises:
            CheckpointError: an object is missing, of another size, or not what its hash says.
            DoesNotFit: too little room here.
        """

    def add_metric(
        self, stored: StoredCheckpoint, val_bpb: float, step_losses: Sequence[float]
    ) -> None:
        """Replace the manifest of a checkpoint that was stored before it was evaluated."""

    def delete(self, stored: StoredCheckpoint, names: Sequence[str] = ()) -> None:
        """Delete a checkpoint, its manifest first; with ``names``, these files of it alone."""

    def send(self, item: StageItem, progress: Callable[[int, int], None]) -> None:
        """Store a folder under what its content names, once; what is there is not sent again."""

    def store(
        self,
        folder: Path,
        manifest: CheckpointManifest,
        slot: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Upload a checkpoint from this machine.

        Raises:
            CheckpointError: it is not what its manifest says.
        """
