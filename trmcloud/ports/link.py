"""The way to a pod, and what may be asked of one beyond that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.errors import NotSupported
from trmcloud.core.values import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.core.contract.pod_contract import AgentReport, KeptCheckpoint, Orders
    from trmcloud.core.errors import LinkError


@dataclass(frozen=True)
class StageItem:
    """Files that a pod needs before it trains, in a folder there that their content names.

    ``local`` is a file, or the folder that ``sha256``'s names (relative, with /) are in; ``remote``
    is the folder they go to, as an absolute path below the pod's root. Only what ``sha256`` names
    is sent. The same ``remote`` always means the same content.
    """

    local: Path
    remote: str
    sha256: Mapping[str, str]


class PodLink(ABC):
    """Words and files to and from one pod. Bytes and seconds only: what they are worth is decided
    elsewhere.

    All but ``report`` and ``trouble`` may raise ``LinkError``. What not every machine has does
    nothing, or is refused, unless an adapter says otherwise.
    """

    @abstractmethod
    def report(self, pod_name: str) -> AgentReport | None:
        """Return the agent's last report; None where it cannot be asked now, or has said
        nothing."""

    @abstractmethod
    def send_orders(self, pod_name: str, orders: Orders) -> None: ...

    @abstractmethod
    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        """Bring every item to the pod, verified there, and say so to its agent at the end.

        What an earlier call has brought is not sent again. ``progress`` is called with bytes done
        and bytes in all.
        """

    @abstractmethod
    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Callable[[int, int], None],
    ) -> None:
        """Bring files of a checkpoint to where this machine keeps the run's, every hash verified.

        Goes on with what an interrupted call left; the manifest is written last.

        Raises:
            CheckpointError: a file is missing, a link, too large, or not what its hash says.
            DoesNotFit: too little room here.
        """

    @abstractmethod
    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Likewise into the folder ``into``, of which this home knows nothing; the manifest is the
        caller's to write."""

    @abstractmethod
    def manifest(self, pod_name: str, run_id: str, kept: KeptCheckpoint) -> CheckpointManifest:
        """The manifest of a checkpoint that the pod's agent has told of.

        Raises:
            CheckpointError: it is not there any more, or is not one, or another one.
        """

    @abstractmethod
    def grant(self, pod_name: str, text: str) -> None:
        """Give the pod its ``grants.json``, for its own user's eyes alone: with that it may upload
        by itself."""

    def give_environment(self, pod_name: str, text: str) -> None:
        """Let the pod's command have these variables: ``environment.json``, for its eyes alone."""
        raise NotSupported(f"{pod_name} cannot be given variables")

    def give_webhook(self, pod_name: str, text: str) -> None:
        """Give the pod its ``webhook.json``, for its own user's eyes alone: with that its agent
        tells somebody by itself."""
        return None

    def trouble(self, pod_name: str) -> LinkError | None:
        """Why the pod could not be asked last time; None where it could. Asks nothing."""
        return None

    def left_behind(self, pod_name: str, earlier: str) -> AgentReport | None:
        """Return the last report that the agent of an ``earlier`` pod left on a disk that this one
        has now; None where there is none."""
        return None

    def delete(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> None:
        """Delete a checkpoint there, its manifest first; no error where it is gone already."""
        raise NotSupported("checkpoints on this pod cannot be deleted from here")

    def tensorboard(
        self, pod_name: str, local_port: int
    ) -> AbstractContextManager[Callable[[], bool]]:
        """TensorBoard beside the trainer, at 127.0.0.1:``local_port`` here until the block ends.

        Gives a question to be asked every few seconds: whether it runs still.
        """
        raise NotSupported("TensorBoard on this pod cannot be seen from here")

    def login(
        self, pod_name: str, command: Sequence[str] = (), *, terminal: bool = True
    ) -> Sequence[str]:
        """The words of a program that logs in there, by the key that is pinned, and runs
        ``command``; a shell where that is empty. It is for whoever sits at this ``terminal``.

        Raises:
            LinkError: the pod has no address now.
        """
        raise NotSupported("nobody can log in to this pod from here")
