"""The uploading process of a simulated pod, and the bucket: slots, and what they hold by the truth.

Like the trainer it is arithmetic: whoever looks brings it up to that instant. It picks, slots and
supersedes with the very functions of ``core.bucket`` that the real one uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trmcloud.core.contract.bucket import (
    CachedFile,
    FolderGet,
    Grants,
    PhaseSlots,
    Uploads,
    free_slot,
    lacks_metric,
    unstored,
)
from trmcloud.core.contract.bucket_layout import slots_of
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.pod_contract import AgentReport, Kept, parse_pod_name
from trmcloud.core.errors import ProviderError
from trmcloud.ports.bucket import GrantRequest, Shelf, Stored
from trmcloud.ports.link import StageItem
from trmcloud.sim.world.queue import Entry

if TYPE_CHECKING:
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.pod import SimPod
    from trmcloud.sim.world.world import SimWorld

_ANY_SIZE: Mapping[str, int] = {}
_LOOK_S = 0.5
_UPLOAD_S = (2.0, 25.0)
_TELL_EVERY_S = 60.0
_TELL_S = 1.0
"""For a report with the result to reach the bucket, and from one try to the next."""


@dataclass
class _Doing:
    kept: Kept
    slot: str
    ends_at: float


class SimUploader:
    """One pod's; its notes survive the agent, and end with the pod's own disk."""

    def __init__(self, pod: SimPod) -> None:
        self._pod = pod
        self.grants: Grants | None = None
        self.fetched: set[str] = set()
        """Hashes of the checkpoints that it brought from the bucket, to go on from."""
        self.furthest: dict[str, int] = {}
        """Of each phase the step that was in the bucket when it was first given its grants."""
        self.withheld: set[str] = set()
        """What was saved before the cooldown of what it brought, and was in the bucket, but was not
        granted with it."""
        self.moved_at = 0.0
        self._slots: dict[str, dict[str, Kept | None]] = {}
        self._given_up: list[Kept] = []
        self._account: Uploads | None = None
        """What it tells of itself, until that changes."""
        self._all_stored: tuple[Kept, ...] = ()
        """What was on the pod when nothing of it was wanted in the bucket."""
        self._doing: _Doing | None = None
        self._free_at = 0.0
        self._moved_boot = 0.0
        self.told = ""
        """The result that the report in the bucket bears."""
        self._told_at = -_TELL_EVERY_S
        self._telling = Entry(0.0, None)

    def give(self, grants: Grants) -> None:
        first = self.grants is None
        if first:
            self.fetched = {get.folder.rpartition("/")[2] for get in grants.gets}
            files, run_id = self._pod.world.files, self._pod.lease.run_id
            self.furthest = files.furthest_stored(run_id)
            self.withheld = files.cooled_without(run_id, self.fetched)
        self.grants, self._all_stored, self._account = grants, (), None
        for phase, share in grants.phases.items():
            held = self._slots.setdefault(phase, {})
            for slot in share.slots:
                held.setdefault(slot, share.held.get(slot))
        for turn in self._pod.world.knobs.turns if first else ():
            turn(self._pod.rented)

    def stop(self, now: float) -> None:
        """The pod ends: what was on its way is half there, which is nothing."""
        self.advance(now)
        self._doing = None

    def report_written(self, report: AgentReport) -> None:
        """The agent has written its report to the pod's disk."""
        if self.grants is None:
            return
        now = self._pod.world.queue.now
        if report.result is not None and report.result != self.told:
            self._telling.cancel()
            self._telling = self._pod.world.queue.after(_TELL_S, self._tell_result)
        elif now - self._told_at >= _TELL_EVERY_S:
            self._tell(report)

    def _tell_result(self) -> None:
        """It is the agent's child: it lives as long as that does."""
        pod = self._pod
        if not pod.running or pod.agent is None or pod.report is None:
            return
        if not self._tell(pod.report):
            self._telling = pod.world.queue.after(_TELL_S, self._tell_result)

    def _tell(self, report: AgentReport) -> bool:
        world, name = self._pod.world, parse_pod_name(self._pod.name)
        now = world.queue.now
        if self.grants is None or name is None or now > self.grants.until:
            return False
        if now < max(world.knobs.bucket_down_until, world.knobs.pod_api_down_until):
            return False
        world.files.words[(self._pod.lease.run_id, name.generation)] = report
        self._told_at, self.told = now, report.result or ""
        return True

    def uploads(self, now: float) -> tuple[float | None, Uploads]:
        self.advance(now)
        until = self.grants.until if self.grants is not None else None
        if self._account is None:
            held = (kept for slots in self._slots.values() for kept in slots.values())
            uploaded = tuple(kept for kept in held if kept is not None)
            given_up, moved = tuple(self._given_up), self._moved_boot
            self._account = Uploads(uploaded, given_up, moved, fetched=True)
        return until, self._account

    def ends_at(self) -> float | None:
        """When the upload in progress will be through, if nothing else happens."""
        return self._doing.ends_at if self._doing is not None else None

    def advance(self, now: float) -> None:
        """Up to ``now``: finish what is through, begin what is due."""
        grants = self.grants
        if grants is None:
            return
        world = self._pod.world
        while True:
            doing = self._doing
            if doing is not None:
                if self._hindered(doing, now) or doing.ends_at > now:
                    return
                self._finish(doing)
            if self._free_at > now or not self._begin(now):
                return
            world.queue.after(max(0.0, self._doing_left_s(now)), self._pod.wake)

    def _doing_left_s(self, now: float) -> float:
        return self._doing.ends_at - now if self._doing is not None else 0.0

    def _hindered(self, doing: _Doing, now: float) -> bool:
        """While the store or the pod's network is down nothing arrives."""
        world, knobs = self._pod.world, self._pod.world.knobs
        down_until = max(knobs.bucket_down_until, knobs.pod_api_down_until)
        if self.grants is not None and now > self.grants.until:
            down_until = float("inf")
        if doing.ends_at > down_until - 1.0 and now >= down_until:
            return False
        if now >= down_until:
            return False
        if knobs.bucket_down_until > now:
            world.observed("48")
        if down_until != float("inf"):
            doing.ends_at = max(doing.ends_at, down_until + world.rng.uniform(*_UPLOAD_S))
            world.queue.at(doing.ends_at + 0.1, self._pod.wake)
        return True

    def _begin(self, now: float) -> bool:
        pod, world = self._pod, self._pod.world
        assert self.grants is not None
        kept = world.files.kept_on(pod.lease.run_id, pod.rented.pod_id)
        if kept == self._all_stored:
            return False
        held = (one for slots in self._slots.values() for one in slots.values())
        stored = [one for one in held if one is not None]
        owed = unstored(kept, stored, self._given_up)
        wanted = [one for one in owed if one.phase in self._slots]
        if not wanted:
            self._all_stored = kept
            return False
        chosen = wanted[0]
        if not world.files.is_sound(pod.lease.run_id, chosen):
            world.felt_any("damage")
            self._given_up.append(chosen)
            self._account = None
            return self._begin(now)
        slots = self._slots[chosen.phase]
        scored = lacks_metric(slots, chosen)
        if scored is not None:
            self._doing = _Doing(chosen, scored, now + _LOOK_S)
            return True
        slot = free_slot(slots, self.grants.phases[chosen.phase].keep_best)
        slots[slot] = self._account = None
        world.check.duties.uploads.writes_over(pod, chosen.phase, slot)
        world.files.overwrite(pod.lease.run_id, chosen.phase, slot)
        self._doing = _Doing(chosen, slot, now + _LOOK_S + world.rng.uniform(*_UPLOAD_S))
        return True

    def _finish(self, doing: _Doing) -> None:
        pod = self._pod
        self._doing, self._free_at, self._all_stored = None, doing.ends_at, ()
        # The trainer may have pruned it meanwhile: its files were held open.
        self._slots[doing.kept.phase][doing.slot] = doing.kept
        pod.world.files.store(pod.lease.run_id, doing.kept, doing.slot)
        pod.world.check.duties.uploads.stored(pod, doing.kept)
        self.moved_at = doing.ends_at
        self._moved_boot, self._account = doing.ends_at - pod.machine.boot_at, None


class SimBucket:
    """``ports.Bucket`` as one process has it."""

    def __init__(self, world: SimWorld, process: Process) -> None:
        self._world, self._process = world, process

    def _gate(self) -> None:
        self._process.cross("bucket")
        self._process.bucket_refused_at = self._world.queue.now
        if not self._process.machine.online:
            self._world.felt_any("offline")
            raise ProviderError("the bucket cannot be reached")
        if self._world.queue.now < self._world.knobs.bucket_down_until:
            self._world.observed("48")
            raise ProviderError("503 from the bucket")
        self._process.bucket_refused_at = None

    def check(self) -> None:
        try:
            self._gate()
        except ProviderError as error:
            # Asked before anything is reserved: a command that ends here has refused to begin.
            self._world.check.truth.calls.refusal = error
            raise

    def claim(self, run_id: str, ledger_id: str) -> None:
        self._gate()

    def grant(self, request: GrantRequest) -> Grants:
        self._gate()
        phases = {}
        for name, best in request.phases.items():
            slots = slots_of(request.generation, best)
            held = self._world.files.in_slots(request.run_id, name, slots)
            phases[name] = PhaseSlots(best, slots, held)
        until = min(request.until, self._process.machine.now().wall + 7 * 86_400.0)
        gets = tuple(
            FolderGet(f"/sim/{stored.manifest.sha256}", (), needed=False)
            for stored, _ in request.go_on_from
        )
        return Grants(request.pod_name, until, phases, {}, gets)

    def checkpoints(self, run_id: str, file_bytes: Mapping[str, int] = _ANY_SIZE) -> Shelf:
        self._gate()
        found = self._world.files.stored(run_id)
        return Shelf(tuple(Stored(manifest, manifest.label) for manifest in found))

    def stored_tokens(
        self, key: str, pods: Collection[str], pins: Sequence[CachedFile]
    ) -> tuple[CachedFile, ...]:
        """None: simulated runs train on data that is brought."""
        self._gate()
        return ()

    def oversized(self, run_id: str, file_bytes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        self._gate()
        found = self._world.check.oversize.there(run_id)
        if found:
            self._world.observed("74")
        return tuple((each.key, each.size_bytes) for each in found)

    def drop(self, keys: Sequence[str]) -> None:
        self._gate()
        for key in keys:
            self._world.check.oversize.dropped(self._process, key)

    def last_report(self, run_id: str, generation: int) -> bytes | None:
        self._gate()
        return self._world.files.last_word(run_id, generation)

    def fetch(
        self,
        stored: Stored,
        names: Sequence[str],
        target: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        self._gate()

    def add_metric(self, stored: Stored, val_bpb: float, step_losses: Sequence[float]) -> None:
        self._gate()

    def delete(self, stored: Stored, names: Sequence[str] = ()) -> None:
        self._gate()

    def send(self, item: StageItem, progress: Callable[[int, int], None]) -> None:
        self._gate()

    def store(
        self,
        folder: Path,
        manifest: CheckpointManifest,
        slot: str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._gate()
