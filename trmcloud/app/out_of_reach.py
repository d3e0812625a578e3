"""A provider that cannot be had from here: without a key, or without its client.

It stands where the adapter would, so that everything else goes on: whoever asks it is told why,
as of a provider that does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from trmcloud.core.errors import LinkError, ProviderError, ProviderRefused, TrmcloudError
from trmcloud.ports.compute import Compute
from trmcloud.ports.link import PodLink

if TYPE_CHECKING:
    from trmcloud.app.context import Context
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.core.contract.pod_contract import AgentReport, KeptCheckpoint, Orders
    from trmcloud.core.control.observation import Bill, PodSeen
    from trmcloud.core.money import Usd
    from trmcloud.ports.compute import PodRequest, VolumeSeen
    from trmcloud.ports.link import StageItem


class UnreachableProvider(Compute, PodLink):
    """``Compute`` and ``PodLink`` of a provider whose adapters could not be made; ``error`` is
    why."""

    def __init__(self, error: TrmcloudError) -> None:
        self.error = error

    # -- Compute ------------------------------------------------------------------------------

    def create(self, request: PodRequest) -> str:
        self._refuse()

    def list_pods(self) -> Sequence[PodSeen]:
        self._refuse()

    def terminate(self, pod_id: str) -> bool:
        self._refuse()

    def bill(self, pod_id: str) -> Bill | None:
        self._refuse()

    def require_account(self, rate: Usd) -> None:
        raise self.error

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        if isinstance(self.error, ProviderError):
            raise self.error
        raise ProviderRefused(str(self.error), next_step=self.error.next_step)

    # -- PodLink ------------------------------------------------------------------------------

    def report(self, pod_name: str) -> AgentReport | None:
        return None

    def trouble(self, pod_name: str) -> LinkError | None:
        return LinkError(str(self.error), next_step=self.error.next_step)

    def grant(self, pod_name: str, text: str) -> None:
        self._cut()

    def send_orders(self, pod_name: str, orders: Orders) -> None:
        self._cut()

    def stage(
        self, pod_name: str, items: Sequence[StageItem], progress: Callable[[int, int], None]
    ) -> None:
        self._cut()

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Callable[[int, int], None],
    ) -> None:
        self._cut()

    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._cut()

    def manifest(self, pod_name: str, run_id: str, kept: KeptCheckpoint) -> CheckpointManifest:
        self._cut()

    def _cut(self) -> NoReturn:
        raise LinkError(str(self.error), next_step=self.error.next_step)


def require_reach(context: Context, provider: str) -> None:
    """
    Raises:
        TrmcloudError: the provider cannot be had from here at all, and why.
    """
    compute = context.computes.get(provider)
    if isinstance(compute, UnreachableProvider):
        raise compute.error
