"""The way to a pod, and what may be asked of one beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from trmcloud.core.errors import LinkError
    from trmcloud.core.manifest import CheckpointManifest
    from trmcloud.core.pod_contract import AgentReport, Kept, Orders


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


class PodLink(Protocol):
    """Words and files to and from one pod. Bytes and seconds only: what they are worth is decided
    elsewhere.

    All but ``report`` may raise ``LinkError``.
    """

    def report(self, pod_name: str) -> AgentReport | None:
        """What the agent last said; None where it cannot be asked now, or has said nothing."""

    def send_orders(self, pod_name: str, orders: Orders) -> None: ...

    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        """Bring every item to the pod, verified there, and say so to its agent at the end.

        What an earlier call has brought is not sent again. ``progress`` is called with bytes done
        and bytes in all.
        """

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

    def manifest(self, pod_name: str, run_id: str, kept: Kept) -> CheckpointManifest:
        """The manifest of a checkpoint that the pod's agent has told of.

        Raises:
            CheckpointError: it is not there any more, or is not one, or another one.
        """


@runtime_checkable
class TroubledLink(Protocol):
    """A ``PodLink`` that can say why a pod does not answer."""

    def trouble(self, pod_name: str) -> LinkError | None:
        """Why the pod could not be asked last time; None where it could. Asks nothing."""


@runtime_checkable
class HearingLink(Protocol):
    """A ``PodLink`` to machines whose disk an earlier one may have had."""

    def left_behind(self, pod_name: str, earlier: str) -> AgentReport | None:
        """What the agent of an ``earlier`` pod said last; None where there is no word of it.

        Raises:
            LinkError: the pod is out of reach.
        """


@runtime_checkable
class DeletingLink(Protocol):
    """A ``PodLink`` to a machine on which checkpoints can be deleted."""

    def delete(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> None:
        """Delete a checkpoint there, its manifest first; no error where it is gone already.

        Raises:
            LinkError: it could not be deleted, or the pod is out of reach.
        """


@runtime_checkable
class GrantingLink(Protocol):
    """A ``PodLink`` to a machine that may upload by itself."""

    def grant(self, pod_name: str, text: str) -> None:
        """Give the pod its ``grants.json``, for its own user's eyes alone.

        Raises:
            LinkError: the pod is out of reach.
        """


@runtime_checkable
class BoardLink(Protocol):
    """A ``PodLink`` through which TensorBoard can be seen that runs beside the trainer."""

    def tensorboard(
        self, pod_name: str, local_port: int
    ) -> AbstractContextManager[Callable[[], bool]]:
        """TensorBoard on the pod, at 127.0.0.1:``local_port`` here until the block ends.

        Gives a question to be asked every few seconds: whether it runs still.

        Raises:
            LinkError: there is none on the pod, or it is out of reach.
        """
