"""What an agent knows and what it has told: its lease and orders, its trainer, and the report that
it makes of them. What it does about them stands in ``loop.py``."""

from __future__ import annotations

from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.values import replace
from trmcloud.pod.agent.host import Host
from trmcloud.pod.agent.lease_clock import noted

REPORT_EVERY_S = 2.0


class Standing:
    """Where one pod's agent stands, through its own deaths: what it kept is taken over."""

    def __init__(self, body: Host, pod_name: str) -> None:
        """
        Raises:
            ValueError: there is no lease that can be read.
        """
        self._body = body
        self._pod_name = pod_name
        now = body.now()
        lease = body.read_lease()
        if lease is None:
            raise ValueError(f"no lease for {pod_name}")
        self.lease = lease
        self._orders = contract.Orders(epoch=lease.epoch)
        self._anchors = self._read_anchors(now)
        self.report = self._first_report(now)
        self._trainer = body.read_trainer()
        self._written_boot = -1e9

    def hard_left_s(self) -> float:
        """Seconds until the hard stop, by the earlier of both clocks."""
        return self._anchors[1].seconds_left(self._body.now())

    def write_report(self, *, force: bool = False) -> None:
        now = self._body.now()
        if not force and now.boot - self._written_boot < REPORT_EVERY_S:
            return
        self._written_boot = now.boot
        self._note_kept(now)
        self.report = replace(
            self.report,
            at=now.wall,
            epoch=self.lease.epoch,
            soft_stop_at=self.lease.soft_stop_at,
            hard_stop_at=self.lease.hard_stop_at,
        )
        self._body.write_report(self.report, durable=force)

    # -- its lease and orders ---------------------------------------------------------------------

    def _reread(self, now: Instant) -> None:
        """Take a newer lease or newer orders, if any; text that is neither is passed over."""
        lease = self._body.read_lease()
        if lease is not None and lease.epoch > self.lease.epoch:
            self.lease = lease
            self._anchors = self._read_anchors(now)
        orders = self._body.read_orders()
        if orders is not None and orders.epoch >= self._orders.epoch:
            self._orders = orders
            self._pass_over(orders.finished)

    def _pass_over(self, finished: tuple[str, ...]) -> None:
        """Before this pod lost its disk it had finished these, as the controller knows."""
        phases = tuple(
            phase
            for phase in self.report.phases
            if phase.name not in finished
            or phase.attempts
            or phase.state is not contract.PhaseState.WAITING
        )
        if phases != self.report.phases:
            self._body.log(f"finished before, and not trained again: {', '.join(finished)}")
            self.report = replace(self.report, phases=phases)

    def _read_anchors(self, now: Instant) -> tuple[Anchor, Anchor]:
        """Soft and hard stop, anchored at the moment this lease was first seen on this pod."""
        lease = self.lease
        granted_at = lease.granted_at
        self._noted = note = noted(self._body, lease, now)
        return (
            note.anchor(lease.soft_stop_at, granted_at),
            note.anchor(lease.hard_stop_at, granted_at),
        )

    def _first_report(self, now: Instant) -> contract.AgentReport:
        """A new report, or the one a killed agent left, taken over."""
        left = self._body.read_report()
        if left is not None and left.pod_name == self._pod_name:
            return replace(left, pid=self._body.pid(), restarts=left.restarts + 1)
        return contract.AgentReport(
            run_id=self.lease.run_id,
            pod_name=self._pod_name,
            epoch=self.lease.epoch,
            pid=self._body.pid(),
            started_at=now.wall,
            at=now.wall,
            phases=tuple(contract.PhaseReport(phase.name) for phase in self.lease.phases),
            soft_stop_at=self.lease.soft_stop_at,
            hard_stop_at=self.lease.hard_stop_at,
            saves=contract.Saves(),
        )

    # -- its trainer ------------------------------------------------------------------------------

    def _running(self) -> bool:
        return self._trainer is not None and self._body.trainer_runs(self._trainer)

    def _heartbeat(self) -> Heartbeat | None:
        """This attempt's heartbeat; None before its first, or where it cannot be understood."""
        trainer = self._trainer
        if trainer is None:
            return None
        beat = self._body.read_heartbeat(trainer.phase)
        return beat if beat is not None and beat.attempt == trainer.attempt else None

    def _last_beat(self, running: contract.PhaseReport) -> Heartbeat | None:
        """What a trainer that is no more left, whether or not it is still noted down: an agent may
        be killed between forgetting it and reporting its end."""
        beat = self._body.read_heartbeat(running.name)
        return beat if beat is not None and beat.attempt == running.attempts else None

    # -- its report -------------------------------------------------------------------------------

    def _phase(self, name: str) -> contract.PhaseReport:
        return next(p for p in self.report.phases if p.name == name)

    def _set_phase(self, phase: contract.PhaseReport) -> None:
        phases = tuple(phase if p.name == phase.name else p for p in self.report.phases)
        self.report = replace(self.report, phases=phases)

    def _answer(self, phase: str, step: int | None, why: str) -> None:
        saves = contract.Saves(self._orders.save, phase, step, why)
        self.report = replace(self.report, saves=saves)
        self._body.log(f"asked to save: {why or f'{phase} step {step} is saved'}")
        self.write_report(force=True)

    def _note_kept(self, now: Instant) -> None:
        if not self.lease.ready_within_s and not self.lease.uploads:
            return  # on the user's own machine: nothing has to be pulled from it
        kept = self._body.kept(now)
        if kept != self.report.kept:
            self.report = replace(self.report, kept=kept)
