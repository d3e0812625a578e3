"""Judges what network volumes cost and who deletes them, by the provider's own account of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control.kept_volumes import Hold
from trmcloud.core.control.kept_volumes import holds as held_by
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED

if TYPE_CHECKING:
    from trmcloud.core.control.budget import LedgerState
    from trmcloud.sim.world.account import Account, KeptVolume, Rented
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.world import SimWorld

_SLACK_S = 900.0
"""How far apart a pod's end in truth and on record may be."""
_CLOCK_OFF_S = 900.0
"""A deleting process may be so far ahead of the truth where clocks are set."""


class VolumeJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(self, world: SimWorld, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail

    def deleted(self, account: Account, volume: KeptVolume, process: Process) -> None:
        """I3: only once its day has come, by its truth, for every run that used it, with no live
        one there, and as each had agreed."""
        ledger, now = self.world.ledger.read(), self.world.queue.now
        if self.world.check.forgotten or self.world.check.truth.undecidable.clocks_moved:
            return
        for run_id, truth in self.world.truths.items():
            run, spec = ledger.runs.get(run_id), truth.plan.spec
            here = [p for p in account.pods.values() if p.run_id == run_id]
            if run_id not in volume.users:
                continue
            if run is not None and run.live:
                self.fail("I3", f"{volume.volume_id} is deleted, and {run_id} is live")
            if spec.volume_then not in (DELETE, DELETE_FETCHED):
                self.fail("I3", f"{volume.volume_id} is deleted, and {run_id} did not agree")
            trained = run is not None and any(g.agent_at is not None for g in run.generations)
            if spec.volume_then == DELETE_FETCHED and trained and not (run and run.pulled):
                self.fail("I3", f"{volume.volume_id} is deleted: {run_id} has fetched nothing")
            ends = [p.ended_at for p in here if p.ended_at is not None and _is_owned(ledger, p)]
            day_at = max(ends, default=0.0) + spec.volume_days * DAY_S
            if now < day_at - _CLOCK_OFF_S:
                self.fail("I3", f"{volume.volume_id} is deleted {day_at - now:.0f} s too early")

    def finish(self) -> None:
        """I1: up to the last stated day every hour of it is in somebody's budget."""
        ledger, now = self.world.ledger.read(), self.world.queue.now
        if self.world.check.forgotten or self.world.check.truth.undecidable.clocks_moved:
            return
        for account in self.world.accounts.values():
            for volume in account.volumes:
                self._held(ledger, account, volume, now)

    def _held(self, ledger: LedgerState, account: Account, volume: KeptVolume, now: float) -> None:
        mine = [
            hold
            for hold in held_by(ledger)
            if (hold.provider, hold.place) == (account.habits.provider, volume.place)
            # One of no days at all, for a pod that was never had, ends as its volume is made.
            and hold.until > volume.created_at - _SLACK_S
            and (volume.ended_at is None or hold.since < volume.ended_at)
        ]
        until = min(self._day(ledger, account, volume), now)
        # Whoever made it smaller pays at a lower rate than whoever made it.
        least = min((hold.rate.micros for hold in mine), default=volume.rate_micros)
        cost = volume.micros(until) * least // volume.rate_micros
        held = sum(hold.accrued(now).micros for hold in mine)
        seconds = _unreserved_s(mine, until) + _SLACK_S * (len(mine) + 1)
        if held + seconds * least / 3600 < cost:
            self.fail("I1", f"{volume.volume_id} cost {cost / 1e6}, {held / 1e6} is held")

    def _day(self, ledger: LedgerState, account: Account, volume: KeptVolume) -> float:
        """The last stated day, by when pods ended in truth."""
        days = [volume.created_at]
        for pod in account.pods.values():
            truth = self.world.truths.get(pod.run_id)
            if truth is None or not truth.plan.spec.volume or pod.ended_at is None:
                continue
            if not _is_owned(ledger, pod):
                continue
            if volume.ended_at is None or pod.created_at < volume.ended_at:
                days.append(pod.ended_at + truth.plan.spec.volume_days * DAY_S)
        return max(days)


def _is_owned(ledger: LedgerState, pod: Rented) -> bool:
    """Whether it is the pod of a generation: one that came when it had been given up is ended as
    soon as it is seen, saves nothing, and puts no volume's day off."""
    run = ledger.runs.get(pod.run_id)
    return run is not None and any(g.pod_id == pod.pod_id for g in run.generations)


def _unreserved_s(mine: list[Hold], until: float) -> float:
    """Between one pod's day and the next pod: uncapped, and said to be. Never before the first."""
    gaps, at = 0.0, min((hold.since for hold in mine), default=until)
    for hold in sorted(mine, key=lambda each: each.since):
        gaps += max(0.0, min(hold.since, until) - at)
        at = max(at, hold.until)
    return gaps
