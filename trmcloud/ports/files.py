"""What runs have left on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.core.contract.trainer_contract import Heartbeat


class RunFiles(Protocol):
    """What a run leaves behind, wherever it survives."""

    def phases(self, run_id: str) -> Sequence[str]: ...

    def heartbeat(self, run_id: str, phase: str) -> Heartbeat | None: ...

    def metrics(self, run_id: str, phase: str) -> Sequence[Mapping[str, object]]: ...

    def manifests(self, run_id: str) -> Sequence[CheckpointManifest]: ...

    def damaged(self, run_id: str) -> Sequence[tuple[str, str]]:
        """Checkpoint folders whose manifest cannot be read: (label, why)."""

    def fetch(
        self,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Copy files of a checkpoint into a folder, resuming what is there, verifying each hash.

        Raises:
            CheckpointError: a file is missing, too large, or not what its hash says.
        """

    def delete(self, manifest: CheckpointManifest) -> None: ...

    def folder_of(self, manifest: CheckpointManifest) -> str:
        """Path of the checkpoint on this machine."""

    def folder(self, run_id: str) -> str:
        """Path of the run's files on this machine."""

    def logs(self, run_id: str, phase: str) -> str:
        """Path of the phase's log on this machine."""
