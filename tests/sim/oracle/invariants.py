"""The invariants, judged by ground truth after every event. The provider's bill is the judge.

I1 money · I2 no orphan · I3 checkpoints · I4 ledger = bill · I5 one pod per generation, intent
before create, replay · I6 no stale writer · I7 liveness · I9 no secrets. I8 (bit-exact resume) is
the trainer's own test. G1 no principal reserves more than its grant allows.

``exposure`` has the one predicate for time in which no layer could act: the promise counts the
other time, and the bill may exceed a budget by at most rate × exposed. ``truth`` judges each event
that is written, ``duties`` what the layers on a pod owe, ``money`` what a run holds and is billed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.oracle.agent_oracle import AgentOracle, BootJudge
from tests.sim.oracle.grants import GrantJudge
from tests.sim.oracle.ledger_oracle import LedgerOracle
from tests.sim.oracle.lives import STOPPED, AgentLives, Uncertainty
from tests.sim.oracle.money import MoneyJudge, OrphanJudge, VolumeJudge
from tests.sim.oracle.uploads import OversizeJudge
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import MARGIN_S, look_every_s
from trmcloud.core.control.budget import fold_ledger
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import Usd
from trmcloud.core.spec.spec import STOP
from trmcloud.pod.agent.nodes import HEAD_LOST_S
from trmcloud.sim.oracle.exposure import CLOCK_OFF_S, REACTION_S
from trmcloud.sim.oracle.promises import ORPHAN_S, Promises
from trmcloud.sim.world.account import Process, RentedMachine, World
from trmcloud.sim.world.provider_profiles import STALE_LIST_S

_READY_S = 10.0
"""A layer that was there so long before a hard stop was there in time."""
_HEAD_SLACK_S = 60.0
"""Two looks of a machine at the first one of its pod."""
_HEAD_LOST_S = HEAD_LOST_S + _HEAD_SLACK_S
"""By then its other machines have asked for the end of a pod that lost its first one."""
CANARY = "rpa_CANARY"


class Invariants(Promises):
    """All judges of one world, which hear of everything from now on."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.fail = world.fail
        self.epochs: dict[str, int] = {}
        self.undecidable = Uncertainty(world)
        self.lives = AgentLives(self)
        self.truth = LedgerOracle(self)
        self.duties = AgentOracle(self)
        self.money = MoneyJudge(self)
        self.strays = OrphanJudge(self)
        self.grants = GrantJudge(self)
        self.volumes = VolumeJudge(self)
        self.oversize = OversizeJudge(self)
        self.boots = BootJudge(self)
        world.watch(
            *(self.strays, self.grants, self, self.duties, self.duties.attempts),
            *(self.duties.uploads, self.truth.calls, self.volumes, self.boots),
        )

    # -- after every event --------------------------------------------------------------------

    def accrue(self) -> None:
        now = self.world.queue.now
        if now > self.judged_at:
            for account in self.world.accounts.values():
                for rented in account.living:
                    if now > rented.land_by:
                        self._landing(rented, now)
        super().accrue()

    def look(self) -> None:
        super().look()
        self.undecidable.look()

    def own(self, rented: RentedMachine, run: RunState | None, now: float) -> None:
        super().own(rented, run, now)
        owned = rented.unowned_at is None and rented.pod_id not in self.world.foreign
        if owned and not rented.may_be_owned and not rented.known:
            self._known(rented, now)

    def _known(self, rented: RentedMachine, now: float) -> None:
        """Its ledger has its id. A command that could not hear of it before gives it as long to
        boot as any other pod."""
        rented.known = True
        able_since = self.exposure.able.get(rented.run_id, now)
        if rented.never_boots and now - max(able_since, rented.visible_at) < STALE_LIST_S:
            boot_s = traits_of(rented.account.habits.provider).boot_deadline_s
            rented.land_by = max(rented.land_by, now + boot_s)

    def _was_heard(self, rented: RentedMachine) -> bool:
        """Whether its agent's first report is on record."""
        run = self.world.ledger.read().runs.get(rented.run_id)
        mine = [g for g in run.generations if g.pod_id == rented.pod_id] if run is not None else []
        return any(g.agent_at is not None for g in mine)

    def _landing(self, rented: RentedMachine, now: float) -> None:
        """A pod that must be ended early, since its budget was cut, its agent is done or never
        came: overdue while a controller could have seen to it."""
        self.truth.calls.on_idle_pod(rented)
        able_since = self.exposure.able.get(rented.run_id)
        knobs = self.world.knobs
        if rented.is_stopped and knobs.statuses_unknown and not rented.heard:
            # No status says that it is stopped, and its agent says nothing: it looks like one that
            # still boots, or, once its agent was heard, like one whose link is down.
            boot_s = traits_of(rented.account.habits.provider).boot_deadline_s
            silent = self._was_heard(rented)
            rented.land_by = max(rented.land_by, now if silent else rented.created_at + boot_s)
        if rented.is_stopped and not rented.heard:
            # Neither its agent nor a list says that it has stopped.
            rented.land_by = max(rented.land_by, min(now, rented.hidden_until))
        # What is over by now may have ended long after the last event.
        deaf_until = max(knobs.link_down_until, rented.undeletable_until)
        rented.land_by = max(rented.land_by, min(now, deaf_until))
        # A fenced controller looks able until it next tries to write.
        fenced = bool(STOPPED & self.world.fired.keys())
        deaf = (
            now < deaf_until
            or knobs.unheard
            or knobs.pod_disk_full
            or self.world.forgotten
            or fenced
        )
        if able_since is None or deaf or rented.deleting:
            rented.land_by = max(rented.land_by, now)
            return
        if now - max(rented.land_by, able_since + rented.landing_s + 240.0) > ORPHAN_S:
            self.fail("I2", f"{rented.pod_id} goes on though it should have landed")

    # -- pods ---------------------------------------------------------------------------------

    def on_head_lost(self, rented: RentedMachine) -> None:
        self.world.queue.after(_HEAD_LOST_S, lambda: self._judge_head(rented))

    def _judge_head(self, rented: RentedMachine) -> None:
        """I2: whether or not a controller is there, and long before the hard stop."""
        world, now = self.world, self.world.queue.now
        honored = rented.account.honors_delete(rented) and now >= rented.refuses_until
        able = world.knobs.pod_api_works(now) or rented.account.habits.self_ends == "shutdown"
        if rented.ended or rented.deleting:
            return
        knobs = world.knobs
        deaf_until = max(rented.undeletable_until, rented.refuses_until, knobs.pod_api_down_until)
        deaf_until = max(deaf_until, knobs.deletes_ignored_until, knobs.outage_until)
        # What was not taken is asked for again at their next look, not in the same second.
        if honored and able and now - deaf_until >= _HEAD_SLACK_S:
            self.fail("I2", f"{rented.pod_id} goes on, and its first machine is lost")
        world.queue.after(_HEAD_LOST_S, lambda: self._judge_head(rented))

    def on_pod_made(self, rented: RentedMachine) -> None:
        super().on_pod_made(rented)
        name, run_id = rented.name, rented.run_id
        if self.names[name] > 1 and "17" not in self.world.observed_faults:
            twice = self.names[name] == 2 and "17" in self.world.fired
            if not twice:
                self.fail("I5", f"a second pod of the name {name}")
        if rented.account.habits.self_ends == "exit":
            latency_s = traits_of(rented.account.habits.provider).kill_latency_s
            self.world.queue.at(rented.due_at + latency_s, lambda: self._killed_in_time(rented))
        run = self.world.ledger.read().runs.get(run_id)
        if self.world.forgotten:
            return
        self.truth.waits.on_made(rented, run)
        # Wherever it is: the next machine may be another provider's.
        twins = [r for r in self.world.living() if r.run_id == run_id and r is not rented]
        excused = rented.surplus or rented.came_too_late
        excused = excused or any(self.names[twin.name] > 1 for twin in twins)
        undecidable = self.undecidable
        # One that was given up long ago may come in the seconds since the list that was read last.
        excused = excused or all(
            undecidable.is_unseen(twin)
            or (twin.came_too_late and rented.created_at - twin.created_at < REACTION_S)
            for twin in twins
        )
        if twins and not excused and not STOPPED & self.world.fired.keys():
            self.fail("I5", f"{rented.pod_id} is made while {twins[0].pod_id} lives")
        if run is None or all(g.pod_name != name for g in run.generations):
            self.fail("I5", f"{rented.pod_id} is made without an intent")
            return
        generation = next((g for g in run.open_generations if g.pod_name == name), None)
        if generation is not None:
            hourly = generation.rate.micros + rented.disk_rate.micros
            need = (rented.due_at - rented.created_at) * hourly / 3600
            if run.reserved.micros + 2 < need - hourly / 3600:
                self.fail("I1", f"{run_id} reserved {run.reserved}, its pod may cost {need / 1e6}")

    def _killed_in_time(self, rented: RentedMachine) -> None:
        """I1: whichever layer alone was left on this machine, it has killed its pod by now: what
        lies beyond the kill latency was never reserved."""
        able_since = self.lives.killable_since(rented)
        wrong = self.world.forgotten or self.undecidable.clocks_moved
        if not (rented.ended or wrong) and able_since < rented.due_at - _READY_S:
            self.fail("I1", f"{rented.pod_id} outlives its hard stop and its kill latency")

    def on_balance_end(self, rented: RentedMachine) -> None:
        """At a balance of zero: a run that was to land for that, and whose command was there all
        the time, has landed, where nothing else went wrong."""
        world, now = self.world, self.world.queue.now
        run = world.ledger.read().runs.get(rented.run_id)
        generation = run.generation if run is not None else None
        if run is None or generation is None or world.fired or world.off:
            return
        landing_s = generation.hard_stop_at - generation.soft_stop_at
        since = now - landing_s - MARGIN_S - 2 * look_every_s(1.0)
        trained = generation.agent_at is not None and generation.agent_at <= since
        watched = any(
            process.up
            and process.since <= since
            and process.driver is not None
            and process.driver.run_id == run.run_id
            for process in world.processes
        )
        if run.balance_policy == STOP and trained and watched:
            self.fail("I3", f"the balance ended, and {run.run_id} had not landed")

    def on_end_call(self, rented: RentedMachine, process: Process, *, slept: bool) -> None:
        """A controller asks for a pod's end: never of a foreign one, never of a healthy one.

        ``slept``: it was stopped in the midst of the call, after its last look at anything.
        """
        now = self.world.queue.now
        if rented.pod_id in self.world.foreign:
            if now <= rented.due_at:
                self.fail("I2", f"{rented.pod_id} is foreign, and was ended")
            return
        if rented.ended or abs(process.machine.offset_s) > CLOCK_OFF_S or self.world.forgotten:
            return
        run = self.world.ledger.read().runs.get(rented.run_id)
        generation = run.generation if run is not None else None
        if run is None or generation is None or generation.pod_name != rented.name:
            return
        if generation.open and generation.pod_id == rented.pod_id:
            self.truth.calls.judge_end_call(process, rented, run, slept=slept)
        if process.named == run.run_id or slept:
            return
        if run.stop is not None and run.stop.at_once:
            return  # a person said so: what is not saved is lost
        if rented.rate_micros > rented.agreed_micros:
            return
        if now >= generation.hard_stop_at - CLOCK_OFF_S:
            return
        healthy = (
            generation.open
            and generation.pod_id in (None, rented.pod_id)
            and run.stop is None
            and run.result is None
            and (rented.pod.report is not None and run.state is State.RUNNING)
            and not rented.is_stopped
        )
        if healthy:
            self.fail("needless kill", f"{rented.pod_id} was at work and within its money")
        heard = not (self.world.knobs.unheard or self.world.knobs.crossed_reports)
        if (
            rented.pod.lease.hold
            and run.state is State.ENDING
            and generation.pod_id == rented.pod_id
            and rented.pod.running
            and heard
            and not self.world.knobs.pod_disk_full
        ):
            self.duties.uploads.on_release(rented)
        if run.stop is not None and run.stop_at is not None and run.state is State.RUNNING:
            hasty = run.stop_at <= now < run.stop_at + rented.landing_s / 2
            if hasty and rented.pod_id == generation.pod_id and not rented.is_stopped:
                self.fail("needless kill", f"{rented.pod_id} was landing")

    def on_cap_set(self, cap: Usd) -> None:
        """The account's cap is set, raised, or cut (41): from now on nothing new may be reserved
        beyond it, and where it is below what is held, runs land as soon as a controller can see
        to it."""
        self.money.account_cap = cap
        ledger, now = self.world.ledger.read(), self.world.queue.now
        # What a damaged record may hold is no reason to end a run that is sound.
        hurt = self.world.ledger.seen().quarantined
        sound = [run for name, run in ledger.runs.items() if name not in hurt]
        held = sum(run.settled.micros + run.reserved.micros for run in sound)
        if held <= cap.micros:
            return
        for rented in self.world.living():
            landing_s = rented.landing_s + traits_of(rented.account.habits.provider).end_grace_s
            rented.land_by = min(rented.land_by, now + landing_s + rented.boots_after_s)

    # -- the ledger's writes ------------------------------------------------------------------

    def on_append(self, process: Process, run_id: str, events: Sequence[ev.RunEvent]) -> None:
        if not self.world.forgotten:
            self.truth.on_append(process, run_id, events)

    def on_write(self, what: str, epoch: int | None, run_id: str) -> None:
        if epoch is not None:
            newest = self.epochs.get(run_id, 0)
            if what in ("open", "reopen", "take_over"):
                if epoch <= newest and not self.world.forgotten:
                    self.fail("I6", f"epoch {epoch} of {run_id} was given out twice")
                self.epochs[run_id] = epoch
            elif epoch < newest and not self.world.forgotten:
                self.fail("I6", f"epoch {epoch} wrote {what} to {run_id} after {newest}")
        if what in ("open", "reopen") and not self.world.forgotten:
            self.money.judge_reservation(run_id)

    # -- at the end ---------------------------------------------------------------------------

    def finish(self) -> None:
        super().finish()
        ledger = self.world.ledger.read()
        if fold_ledger(ledger.ledger_id, self.world.ledger.records()) != ledger:
            self.fail("I5", "a replay of the journal comes to another state")
        self.strays.finish()
        self.volumes.finish()
        self.oversize.finish()
        if any(CANARY in text for text in self.world.errors):
            self.fail("I9", "a secret stands in an error")


def judge_of(world: World) -> Invariants:
    """Return the judge of a world that has one."""
    return next(each for each in world.observers if isinstance(each, Invariants))
