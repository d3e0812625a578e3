"""Judges what a pod owes to a bucket: the right to upload before it trains, what is best and latest
stored before it is done, and no upload for nothing.

Beside it what hostile hosts put there beyond what they were granted: it is deleted once nobody can
add to it, and what it cost is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.actions import TERMINATE
from trmcloud.core.errors import Outcome
from trmcloud.sim.world.account import Observer, Pod, RentedMachine
from trmcloud.sim.world.store import Checkpoint, OversizedObject

if TYPE_CHECKING:
    from tests.sim.oracle.invariants import Invariants


_ACTS_S = 15.0
"""An agent that lives and is awake has acted by then."""
_LOOK_S = 150.0
_MOST_STORED = 3
_STORED_S = 120.0
"""Some checkpoints have come to a store that is well by then."""
_GRANTED_S = 200.0
"""A controller that is there has given a pod that waits for it the right to upload by then."""
_SENT_S = 400.0
"""And has sent it its files, or sent them again where it lost them and its clock is wrong."""


def _latest(made: Sequence[Checkpoint]) -> CheckpointManifest:
    return max((c.manifest for c in made), key=lambda manifest: manifest.step)


class UploadJudge(Observer):
    """Watches what the pods of one world store, and what they wait for."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail
        self._lives = check.lives
        self._awaiting: dict[Pod, float] = {}
        self._ungranted: dict[Pod, float] = {}
        self._unsent: dict[Pod, float] = {}
        self._stored_times: Counter[tuple[str, contract.CheckpointRef]] = Counter()

    def judge_spawn(self, pod: Pod, phase: str, from_step: int) -> None:
        """A pod that is to upload has the right to, and what it was given to go on from."""
        if not pod.lease.uploads:
            return
        if pod.uploader.grants is None:
            self.fail("I3", f"{pod.rented.pod_id} trains {phase} and may not upload")
            return
        # A stale list may lack the newest, on the pod's own disk too.
        stale = "50" in self.world.fired
        if from_step < pod.uploader.furthest.get(phase, 0) and not stale:
            self.fail("wasteful", f"{pod.rented.pod_id} trains {phase} again from {from_step}")
        if pod.uploader.withheld and not stale:
            what = " ".join(sorted(pod.uploader.withheld))
            self.fail("I3", f"{pod.rented.pod_id} was not given {what}, to go on from if need be")

    def judge_tick(self, pod: Pod) -> None:
        """Money first: uploads that do not get on are waited for as long as landing may take."""
        now, agent = self.world.queue.now, pod.agent
        for what, waits in (("grants", self._ungranted), ("files", self._unsent)):
            if agent is not None and agent.report.waiting == what:
                waits.setdefault(pod, now)
            else:
                waits.pop(pod, None)
        if agent is None or not agent.report.uploading:
            self._awaiting.pop(pod, None)
            return
        began = self._awaiting.setdefault(pod, now)
        since = max(began, self._lives.since(pod), pod.stopped_until, pod.uploader.moved_at)
        if now - since > max(pod.lease.landing_s, _ACTS_S) + _LOOK_S:
            self.fail("wasteful", f"{pod.rented.pod_id} waits for uploads for {now - since:.0f} s")

    def on_stored(self, pod: Pod, kept: contract.CheckpointRef) -> None:
        """An upload is through: the very same bits are not sent again and again, at the pod's
        rent. What another one was written over, once, may come back."""
        self._stored_times[pod.rented.pod_id, kept] += 1
        times = self._stored_times[pod.rented.pod_id, kept]
        if times > _MOST_STORED:
            label = f"{kept.phase} {kept.step}"
            self.fail("wasteful", f"{pod.rented.pod_id} stores {label} for the {times}th time")

    def on_overwrite(self, pod: Pod, phase: str, slot: str) -> None:
        """An upload begins, into a slot: not into the one with what was saved before the cooldown
        that the latest in the pod's slots is in. A store that does not list it yet hides it."""
        made = self.world.files.checkpoints.get(pod.lease.run_id, ())
        generation = slot.partition("-")[0]
        there = [c for c in made if c.slot.partition("-")[0] == generation]
        there = [c for c in there if c.manifest.phase == phase]
        if "50" in self.world.fired or not there:
            return
        first = _latest(there).cooldown_from
        held = [c.slot for c in there if c.manifest.step == first and c.whole]
        if held == [slot]:
            self.fail(
                "I3", f"{pod.rented.pod_id} writes over {phase} {first}: it cooled from there"
            )

    def on_release(self, rented: RentedMachine) -> None:
        """A controller ends a pod whose work is done and that is held for it: all of worth is here,
        with its metric."""
        made = self.world.files.checkpoints.get(rented.run_id, ())
        # What is damaged counts as best or latest to an agent that has not read it again, and what
        # was brought here before it was damaged, or left out of a list, to a controller.
        mine = [c for c in made if c.pod_id == rented.pod_id and (c.readable or c.home)]
        # What was brought here of a disk that is gone, by a restart of the pod's container.
        brought = [c for c in made if c not in mine and c.home and c.whole]
        for each in mine:
            here = each.home and each.is_current("home")
            if each.whole and not here and self._is_of_worth(each, mine, mine, brought):
                self.fail("I3", f"{rented.pod_id} is ended, and {each.manifest.label} is not here")

    def judge_result(self, pod: Pod, report: contract.AgentReport) -> None:
        """The agent has said its last word: not before what is best and what is latest is in the
        bucket."""
        if pod.lease.uploads:
            self._stored(pod, report)
        self._supplied(pod, report)

    def _stored(self, pod: Pod, report: contract.AgentReport) -> None:
        """Judge that the best and the latest is in the bucket, or could not come there."""
        now, knobs = self.world.queue.now, self.world.knobs
        made = self.world.files.checkpoints.get(pod.lease.run_id, ())
        mine = [c for c in made if c.pod_id == pod.rented.pod_id]
        if "not everything could be uploaded" in report.message:
            down_until = max(knobs.bucket_down_until, knobs.pod_api_down_until)
            left_s = pod.agent.hard_left_s() if pod.agent is not None else 0.0
            able = pod.lease.landing_s > _STORED_S and now - down_until > _STORED_S
            if able and left_s > _STORED_S and not pod.machine.offset_s:
                self.fail("I3", f"{pod.rented.pod_id} gives up its uploads, and the store is well")
        elif report.result != Outcome.KILLED.value:
            # What is damaged counts as best or latest to an agent that has not read it again.
            unstored = (c for c in mine if c.whole and not (c.slot and c.is_current("slot")))
            owed = next((c for c in unstored if self._is_of_worth(c, mine, made)), None)
            if owed is not None:
                self.fail("I3", f"{pod.rented.pod_id} is done and {owed.label} is not stored")

    def _supplied(self, pod: Pod, report: contract.AgentReport) -> None:
        """Nobody sent it its files, or gave it the right to upload: not while somebody could, for
        as long as it waits."""
        knobs, now = self.world.knobs, self.world.queue.now
        able_since = self.check.exposure.able.get(pod.lease.run_id)
        deaf = knobs.unheard or knobs.crossed_reports or knobs.pod_disk_full
        since = max(knobs.link_down_until, able_since or now)
        run = self.world.ledger.read().runs.get(pod.lease.run_id)
        ended = run is None or run.stop is not None or any(
            action.verb == TERMINATE for action in run.actions.values()
        )  # fmt: skip
        # One that came too late has no owner: it is to be ended, not supplied.
        here = (run.generation, *run.open_generations) if run is not None else ()
        names = {each.pod_name for each in here if each is not None}
        superseded = bool(names) and pod.name not in names
        # A link leads to a name: of two that bear it the other one may be spoken to.
        twins = len(pod.rented.account.named(pod.name))
        if deaf or ended or superseded or twins > 1:
            return
        ungranted = max(since, knobs.bucket_down_until, self._ungranted.get(pod, now))
        if "still grants" in report.message and now - ungranted > _GRANTED_S:
            self.fail("wasteful", f"{pod.rented.pod_id} was never given the right to upload")
        if (
            "still files" in report.message
            and now - max(since, self._unsent.get(pod, now)) > _SENT_S
        ):
            self.fail("wasteful", f"{pod.rented.pod_id} was never sent its files")

    @staticmethod
    def _is_of_worth(
        made: Checkpoint,
        mine: Sequence[Checkpoint],
        all_: Sequence[Checkpoint],
        brought: Sequence[Checkpoint] = (),
    ) -> bool:
        """Whether the pod owes it: the latest of ``mine``, what was saved before its cooldown, or
        their best, where neither the bucket nor, of those ``brought``, home has one as good."""
        phase, bpb = made.manifest.phase, made.manifest.val_bpb
        latest = _latest([c for c in mine if c.manifest.phase == phase])
        if made.manifest.step in (latest.step, latest.cooldown_from):
            return True
        rivals = [c for c in all_ if c.manifest.phase == phase and c is not made]
        scores = [
            c.manifest.val_bpb if c in mine else c.bpb("slot")
            for c in rivals
            if c in mine or c.slot
        ]
        scores += [c.bpb("home") for c in brought if c.manifest.phase == phase]
        return bpb is not None and all(bpb < score for score in scores if score is not None)


_USD_PER_GB_MONTH = 0.023
"""Amazon S3 Standard, the first 50 TB: https://aws.amazon.com/s3/pricing/."""
_HOURS_PER_MONTH = 730.0
_SLACK_S = 900.0
"""The greatest difference between the truth and the record."""


def _rent_micros(stored: OversizedObject, since: float, until: float) -> float:
    """Return the rent of so much from ``since`` to ``until`` in micro-dollars."""
    hours = max(0.0, until - since) / 3600
    return stored.size_bytes / 1e9 * _USD_PER_GB_MONTH * 1e6 * hours / _HOURS_PER_MONTH


class OversizeJudge:
    """Judges that objects without a grant are deleted, in one world."""

    def __init__(self, check: Invariants) -> None:
        self.check, self.world, self.fail = check, check.world, check.world.fail

    def finish(self) -> None:
        """I7: nothing of it is left. I1: what each of them cost is on record, and not more than if
        it had been there since the first pod was asked for."""
        check, now = self.check, self.world.queue.now
        if self.world.forgotten or check.undecidable.clocks_moved:
            return
        ledger = self.world.ledger.read()
        for run_id, run in ledger.runs.items():
            mine = [each for each in self.world.files.oversized if each.run_id == run_id]
            left = [each for each in mine if each.is_owed(ledger)]
            if left:
                self.fail("I7", f"{left[0].key} was not granted, and is still there")
            if not mine or any(each.deleted_at is None for each in mine):
                continue
            # One that was replaced under its own key cannot be found.
            last = {each.key: each for each in mine}.values()
            cost = sum(_rent_micros(each, each.at, each.deleted_at or now) for each in last)
            begun = min(g.intended_at for g in run.generations) - _SLACK_S
            most = sum(
                _rent_micros(each, begun, (each.deleted_at or now) + _SLACK_S) for each in last
            )
            held = run.swept.rent.micros
            if not cost <= held <= most + len(last):
                self.fail("I1", f"{run_id}'s uploads cost {cost:.0f} to {most:.0f}, {held} is held")
