"""The way to a provider's pods, as one process has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import load_grants
from trmcloud.core.errors import CheckpointError, LinkError, ProviderError
from trmcloud.core.values import replace
from trmcloud.ports.link import PodLink, StageItem
from trmcloud.ports.work import Progress
from trmcloud.sim.world.pod import SimPod

if TYPE_CHECKING:
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.sim.world.account import Account
    from trmcloud.sim.world.controllers import Process


class SimLink(PodLink):
    """``PodLink`` as one process has it."""

    def __init__(self, account: Account, process: Process) -> None:
        self._account, self._process = account, process

    def _pod(self, pod_name: str) -> SimPod | None:
        world = self._account.world
        found = next(iter(self._account.named(pod_name)), None)
        if found is None:
            return None
        if found.account.habits.self_ends != "exit":
            if not world.link_up(self._process):
                return None
            # One that can tell the bucket is not read any more; what is heard of another while it
            # lingers counts as surviving.
            tells = found.pod.uploader.grants is not None
            survives = self._account.habits.reports_survive and not tells
            if found.pod.others.head_watch is not None:
                return None if found.ended or found.deleting else found.pod
            if not found.pod.running and not survives:
                return None
        return found.pod

    def report(self, pod_name: str) -> contract.AgentReport | None:
        pod = self._pod(pod_name)
        if pod is not None and pod.others.head_watch is not None:
            return pod.others.word()
        if pod is None or pod.report is None:
            return None
        report = pod.report if pod.running else pod.durable_report
        if report is not None and pod.world.knobs.crossed_reports:
            # Another machine has the pod's old address.
            pod.world.observed("64")
            other = report.pod_name.replace(report.run_id.replace("-", ""), "r000000")
            return replace(report, pod_name=other, run_id="r-000000", result="failed")
        if report is not None and pod.world.knobs.garbled_reports:
            pod.world.observed("64")
            return None
        for lie in pod.world.knobs.lies:
            report = lie(report) if report is not None else None
        return report

    def stage(self, pod_name: str, items: Sequence[StageItem], progress: Progress) -> None:
        pod = self._reached(pod_name)
        if pod.world.knobs.pod_disk_full:
            pod.world.observed("47")
            raise LinkError("no room on the pod's disk")
        pod.staged = True
        pod.wake()

    def grant(self, pod_name: str, text: str) -> None:
        pod = self._reached(pod_name)
        if pod.world.knobs.pod_disk_full:
            pod.world.observed("47")
            raise LinkError("no room on the pod's disk")
        pod.uploader.give(load_grants(text))
        pod.wake()

    def manifest(self, pod_name: str, run_id: str, kept: contract.Kept) -> CheckpointManifest:
        pod = self._reached(pod_name)
        for manifest in pod.world.files.on_pod(run_id, pod.rented.pod_id):
            if (manifest.phase, manifest.step) == (kept.phase, kept.step):
                return manifest
        raise CheckpointError(f"{kept.phase}/{kept.step} is not there any more")

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Progress,
    ) -> None:
        pod = self._copied(pod_name)
        pod.world.files.bring_home(run_id, pod.rented.pod_id, manifest)

    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Progress,
    ) -> None:
        """Folders beside the home are not simulated: the copy succeeds or is cut off."""
        self._copied(pod_name)

    def _copied(self, pod_name: str) -> SimPod:
        """The pod, from which a copy got through.

        Raises:
            LinkError: it did not.
        """
        pod = self._reached(pod_name)
        world = pod.world
        if world.knobs.fetch_fails:
            world.observed(world.knobs.fetch_fails.pop(0))
            raise LinkError("the copy was cut off")
        return pod

    def _reached(self, pod_name: str) -> SimPod:
        pod = self._pod(pod_name)
        if pod is None or not pod.running:
            raise LinkError("the pod cannot be reached")
        return pod

    def send_orders(self, pod_name: str, orders: contract.Orders) -> None:
        self._process.cross("orders")
        pod = self._pod(pod_name)
        if pod is None or not pod.running:
            raise ProviderError("the pod cannot be reached")
        if pod.orders is None or orders.epoch >= pod.orders.epoch:
            pod.orders = orders
            if orders.land:
                pod.world.check.duties.ordered(pod)
            pod.wake()
