"""Observe, decide, act, append: the loop that carries a run, live or after a crash.

It holds no state that matters: whoever runs it next, from whatever point, comes to the same end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trmcloud.core import codec
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import DatedFact, Instant, UnknownSince
from trmcloud.core.contract.pace import pace_by_log, pace_from
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.contract.records import dump
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import (
    CREATE,
    EXTEND,
    LAND,
    LONG,
    PULL,
    SAVE,
    TERMINATE,
    Action,
    pull_name,
)
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.bookkeeping import govern, require_whole
from trmcloud.core.control.controller import decide, end_standby
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.extending import extension, may_extend, progress_from
from trmcloud.core.control.idle import SeenProgress, idle_limit_s, progress_of, why_idle
from trmcloud.core.control.observation import Observation
from trmcloud.core.control.pace import pace_events, phase_to_time
from trmcloud.core.control.pod_facts import (
    is_new_report,
    late_report,
    orders_for,
    own_report,
    unreported,
)
from trmcloud.core.control.reason import Reason, ReasonKind, make_reason
from trmcloud.core.control.renting import NOT_MADE
from trmcloud.core.control.run_book import present_runs
from trmcloud.core.control.run_state import (
    GRANT,
    STAGE,
    Generation,
    IllegalTransition,
    RunState,
    State,
)
from trmcloud.core.control.waiting import (
    NO_OTHERS,
    OtherWaits,
    allows_waiting,
    idle_s,
    is_over,
    is_waiting,
    other_waits,
)
from trmcloud.core.errors import (
    AmbiguousCreate,
    BudgetRefused,
    CheckpointError,
    DataError,
    FinalRefusal,
    LedgerError,
    LedgerOlder,
    LinkError,
    NoCapacity,
    NotFoundError,
    NotSendable,
    ProviderError,
    ProviderRefused,
    StaleEpoch,
    TrmcloudError,
)
from trmcloud.core.spec.boots import ASK_EVERY_S
from trmcloud.core.spec.plan import Plan
from trmcloud.core.values import replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.operations.checkpoints.bucket_grants import give_grants
from trmcloud.operations.checkpoints.sources import pull
from trmcloud.operations.context import Context
from trmcloud.operations.driving import reap
from trmcloud.operations.driving.balances import balances_due
from trmcloud.operations.driving.observer import Observer, final_bills
from trmcloud.operations.pod_request import SEND_WITHIN_S, command_variables, pod_request
from trmcloud.ports.compute import PodLink, Throttled
from trmcloud.ports.machine import Progress, WorkDone

_BEAT_EVERY_S = 2.0
_GOVERN_EVERY_S = 5.0
_SWEEP_EVERY_S = 30.0
_BILLS_EVERY_S = 60.0
_IDLE_BEAT_EVERY_S, _IDLE_SWEEP_EVERY_S, _IDLE_LOOK_S = 30.0, 900.0, 5.0
"""While a run waits for a machine: nothing of it is rented, and its providers are to be asked
rarely. A wish to stop is still seen within seconds."""
_IDLE_LIST_AGE_S = 60.0
"""The age of a list that serves a question for a machine; the create reads one of its own."""
_PROGRESS_NAME = "progress.json"
_PACE_EVERY_S, _PACE_SLOWER, _PACE_AT_LEAST_EVERY_S = 2.0, 1.3, 600.0
"""How often a phase's metrics are read for its measured pace: ever more rarely, as they grow."""
_MOST_EVENTS_AT_ONCE = 50
_EXTEND_EVERY_S = 60.0
_LONGEST_UNLISTED_S = 1800.0
_LONGEST_RETRY_S, _END_AGAIN_S, _LIST_EVERY_S = 30.0, 10.0, 10.0
"""While the ledger cannot be used: how often it is tried, a pod is asked to end, and is looked for.
"""

Watcher = Callable[[RunState], None]


@dataclass
class RunDriver:
    """Drives one run under one epoch. ``stranger`` epochs are refused by the ledger."""

    context: Context
    run_id: str
    epoch: int
    errands: bool = True
    """Whether this process stays long enough to send and pull files."""
    list_age_s: float = 0.0
    """The greatest age of a list that this process reuses, when it looks at many runs in turn."""
    _beaten_at: float = 0.0
    _governed_at: float = 0.0
    _swept_at: float | None = None
    _heard: bool = False
    _billed_at: float = -_BILLS_EVERY_S
    _kept: dict[str, CheckpointRef] = field(default_factory=dict)
    _pulling: dict[ActionKey, CheckpointRef] = field(default_factory=dict)
    _known: RunState | None = None
    """The run when its ledger could be read last, under an epoch that was current."""
    _unusable: LedgerError | None = None
    _usable_again_at: float = 0.0
    _retry_s: float = 1.0
    _ended_at: float = 0.0
    _listed_at: float = 0.0
    _missed_at: float | None = None
    _missed_heard_at: float = 0.0
    _gone: bool = False
    """Its pod was seen to have ended while the ledger could not be used."""
    _done: list[WorkDone] = field(default_factory=list)
    """Work that is done by workers and not on record yet."""
    _unlisted: int = 0
    """So many questions for a machine in a row were put off, since no list was to be had."""
    _asks_again_at: float = 0.0
    _progress: SeenProgress | None = None
    """The work that its pod had done when seen last; None: this process has not seen it."""
    _timing: tuple[str, str] = ("", "")
    """The pod and the phase whose pace is looked for."""
    _timed_at: float = 0.0
    _timing_s: float = 0.0
    _extended_at: float = -_EXTEND_EVERY_S
    _watch: Watcher = lambda run: None
    _observer: Observer = field(init=False)
    _beside: Observer = field(init=False)
    """Of a machine that an earlier version had stand by."""

    def __post_init__(self) -> None:
        self._observer = Observer(self.context, self.list_age_s)
        self._beside = Observer(self.context, self.list_age_s)

    def run(self) -> RunState:
        """The run as the ledger has it now: the fold of its events, which the ledger keeps.

        Raises:
            LedgerOlder: it was restored from a backup that does not know the run.
        """
        ledger = self.context.ledger.read()
        require_whole(ledger, self.run_id)
        run = ledger.runs.get(self.run_id)
        if run is None:
            raise self._forgotten()
        if run.epoch <= self.epoch:
            self._known = run
        return run

    def _forgotten(self) -> LedgerOlder:
        return LedgerOlder(
            f"the ledger does not know {self.run_id} any more: it was restored from a backup that "
            "is older than the run",
            next_step="end its machine, which no run owns now: trmcloud admin reap",
        )

    def step(self) -> RunState:
        """Once around: facts are appended until none follow, then actions are carried out.

        While the ledger cannot be used, nothing is begun: this process stays for as long as its pod
        may live, tries again, and ends the pod at the hard stop, or where a person said so.

        Raises:
            StaleEpoch: another controller has taken the run over.
            LedgerError: it cannot be used, and there is no pod to stay for.
        """
        if self._unusable is not None and self.context.wall() < self._usable_again_at:
            with suppress(LedgerError):
                self.run()  # a person may have ended it meanwhile: then it is tried at once
            if not self._is_to_end():
                return self._guard(self._unusable, tried=False)
        try:
            run = self._step()
        except StaleEpoch:
            raise
        except LedgerError as error:
            self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S) if self._unusable else 1.0
            self._usable_again_at = self.context.wall() + self._retry_s
            self._unusable = error
            return self._guard(error)
        if self._unusable is not None:
            self._unusable = self._missed_at = None
            self._gone = False
            self.context.troubles.pop(self.run_id, None)
        return run

    @property
    def is_unwritten(self) -> bool:
        """Whether the ledger could not be used when it was tried last."""
        return self._unusable is not None

    def _guard(self, error: LedgerError, *, tried: bool = True) -> RunState:
        """The run as it was last known: what is left to do without a ledger. Once its pod has ended
        the ledger is ``tried`` again, since what had filled the disk may be gone with that.

        Raises:
            StaleEpoch: it can be read, and another controller has taken the run over.
            LedgerError: ``error``; there is no pod to stay for, or no time left to.
        """
        run = self._known
        generation = run.generation if run is not None else None
        if run is None or generation is None or not generation.open or not run.live:
            raise error
        self._require_current()
        self.context.troubles[self.run_id] = error
        if self._is_to_end():
            self._end_unwritten(generation)
        if not self.errands or not self._must_stay(run):
            raise error
        self._gone = self._gone or self._has_gone(generation)
        if self._gone:
            if tried:
                raise error
            self._usable_again_at = 0.0
        return run

    def _is_to_end(self) -> bool:
        """Whether its pod is to end though that cannot be put on record: at its hard stop, or since
        a person said so."""
        run = self._known
        if run is None or run.generation is None:
            return False
        at_once = run.stop is not None and run.stop.at_once
        stops = [each.hard_stop_at for each in run.open_generations]
        return at_once or self.context.wall() >= min(stops, default=run.generation.hard_stop_at)

    def _require_current(self) -> None:
        """
        Raises:
            StaleEpoch: by what can be read, another one drives the run.
        """
        try:
            driver = self.context.ledger.driver(self.run_id)
        except LedgerError:
            return  # it was this one when that could be read last: every write looks
        if driver is not None and driver.epoch != self.epoch:
            raise StaleEpoch(f"another controller has taken over {self.run_id}")

    def _end_unwritten(self, generation: Generation) -> None:
        if not _is_due(self._ended_at, _END_AGAIN_S, self.context.wall()):
            return
        self._ended_at = self.context.wall()
        self.context.workers.cancel()
        run = self._known
        at_once = run is not None and run.stop is not None and run.stop.at_once
        for each in run.open_generations if run is not None else (generation,):
            if not at_once and self.context.wall() < each.hard_stop_at:
                continue
            with suppress(TrmcloudError):
                pod = each.pod_id or each.pod_name
                self.context.machines.computes[each.provider].terminate(pod)

    def _has_gone(self, generation: Generation) -> bool:
        """Whether lists have been without its pod for as long as proves that."""
        now = self.context.wall()
        if not _is_due(self._listed_at, _LIST_EVERY_S, now):
            return False
        self._listed_at = now
        listed = self.context.machines.list_pods(generation.provider, self.context.wall())
        if isinstance(listed, UnknownSince) or generation.pod_id is None:
            return False
        pods = [pod for pod in listed.value if pod.name == generation.pod_name]
        if any(not pod.gone for pod in pods):
            self._missed_at = None
            return False
        report = self._link(generation).report(generation.pod_name)
        if self._missed_at is None:
            self._missed_at, self._missed_heard_at = now, report.at if report is not None else 0.0
        before = self._missed_heard_at, self._missed_at
        if not pods and report is not None and is_new_report(report.at, *before):
            self._missed_at = None  # its agent has reported since
            return False
        proof_s = 0.0 if pods else traits_of(generation.provider).absence.missing_s
        return now - self._missed_at >= proof_s

    def _step(self) -> RunState:
        now = self.context.wall()
        if _is_due(self._governed_at, _GOVERN_EVERY_S, now):
            self._governed_at = now
            land_overdrawn(self.context)
            if self.errands:
                land_before_balance_ends(self.context)
        waiting = self._known is not None and _has_no_pod(self._known)
        if self._swept_at is None:
            self._swept_at = now
        elif _is_due(self._swept_at, self._idle_every_s() if waiting else _SWEEP_EVERY_S, now):
            # A pod that came late, or came twice, is nobody's: whoever is up ends it.
            self._swept_at = now
            reap.sweep(self.context)
        run = self._hear(self._correct(self._collect(self.run())))
        if self.errands and self.idle_s(run) > 0.0:
            if _is_due(self._beaten_at, _IDLE_BEAT_EVERY_S, now):
                self._beaten_at = now
                self.context.ledger.beat(self.run_id, self.epoch, now)
            return run
        for _ in range(_MOST_EVENTS_AT_ONCE):
            if not run.live:
                return run
            if not self.errands:
                run = _call_off_unrented(self.context, run)
            rarely = _IDLE_LIST_AGE_S if self.errands and _has_no_pod(run) else None
            seen = self._observer.look(run, run.plan, rarely)
            self._note_list(run, seen)
            if isinstance(seen.report, DatedFact):
                self._kept = {pull_name(kept): kept for kept in seen.report.value.kept}
            decision = decide(
                run,
                run.plan,
                self.context.ledger.ledger_id,
                traits_of(_provider(run, run.plan)),
                seen,
                self.context.wall(),
                attended=self.errands,
                others=self._others(run),
            )
            if not decision.events:
                break
            try:
                self._append(*decision.events)
            except BudgetRefused as error:
                # A budget was cut while the run was between two machines.
                why = make_reason(ReasonKind.BUDGET_REFUSED, text=str(error))
                wish_to_stop(self.context, self.run_id, by="budget", reason=why)
            run = self.run()
        self._carry_out(run, decision.actions)
        if decision.actions:
            run = self.run()
        run = self._extend(self._note_pace(run, seen), seen)
        run = self._end_standby(self._end_idle(run, seen))
        if _is_due(self._beaten_at, _BEAT_EVERY_S, now):
            self._beaten_at = now
            self.context.ledger.beat(self.run_id, self.epoch, now)
        return run

    def _carry_out(self, run: RunState, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.verb not in LONG:
                self._act(run, action)
            elif self.errands:
                self._hand_over(run, action)

    def _end_standby(self, run: RunState) -> RunState:
        """Once around for a machine that an earlier version had stand by."""
        for _ in range(_MOST_EVENTS_AT_ONCE):
            standby = run.standby
            if standby is None or standby.generation is None:
                return run
            seen = self._beside.look(standby, run.plan)
            traits = traits_of(standby.generation.provider)
            decision = end_standby(run, run.plan, traits, seen, self.context.wall())
            if not decision.events:
                break
            self._append(*decision.events)
            run = self.run()
        self._carry_out(run, decision.actions)
        return self.run() if decision.actions else run

    def _note_pace(self, run: RunState, seen: Observation) -> RunState:
        """Put on record what the machine has measured of its steps, with what follows from it."""
        report = own_report(seen, run.generation) if run.generation is not None else None
        phase = phase_to_time(run, run.plan, report)
        if phase is None or report is None:
            return run
        now, place = self.context.wall(), (report.pod_name, phase.name)
        if place != self._timing:
            self._timing, self._timed_at, self._timing_s = place, 0.0, _PACE_EVERY_S
        if not _is_due(self._timed_at, self._timing_s, now):
            return run
        self._timed_at = now
        self._timing_s = min(_PACE_SLOWER * self._timing_s, _PACE_AT_LEAST_EVERY_S)
        lines = self.context.files.metrics(run.run_id, phase.name)
        begun = (each.started_at for each in report.phases if each.name == phase.name)
        since = next(begun, None) or report.started_at
        told = pace_from(lines, since)
        if told is None and run.spec.command is not None:
            told = pace_by_log(lines, since)
        if told is None:
            return run
        self._append(*pace_events(run, run.plan, phase, told, now))
        return self.run()

    def _extend(self, run: RunState, seen: Observation) -> RunState:
        """Reserve more time for a run that needs it by its pace, while its budgets have the money;
        this process is its driver under a newer epoch then, which is that of the agent's lease."""
        now = self.context.wall()
        if not self.errands or not _is_due(self._extended_at, _EXTEND_EVERY_S, now):
            return run
        report = own_report(seen, run.generation) if run.generation is not None else None
        phase = may_extend(run, report, now)
        if phase is None:
            return run
        self._extended_at = now
        lines = self.context.files.metrics(run.run_id, phase.name)
        more = extension(run, run.plan, phase, progress_from(lines, phase.started_at or 0.0), now)
        if more is None:
            return run
        try:
            self._append(more)
        except BudgetRefused:
            return run  # another budget lacks the money: it lands at the stop that it has
        self.epoch = self.context.take_over(self.run_id)
        return self.run()

    def _end_idle(self, run: RunState, seen: Observation) -> RunState:
        """Ask a run to land that has made no step for as long as its grant or its plan allows. What
        was seen is kept beside its files, for the process that looks next."""
        if not run.payer.principal and not run.spec.idle_s:
            return run
        limit_s = idle_limit_s(self.context.ledger.read(), run)
        report = own_report(seen, run.generation) if run.generation is not None else None
        if not limit_s or report is None:
            return run
        path = self.context.home / "runs" / run.run_id / _PROGRESS_NAME
        before = self._progress or _progress_in(path)
        progress = progress_of(before, report)
        if progress != before:
            with suppress(OSError):
                write_atomic(path, json.dumps(codec.to_json(progress)), durable=False)
        self._progress = progress
        why = why_idle(run, progress, report, limit_s)
        if why is None or not wish_to_stop(self.context, run.run_id, by="idle", reason=why):
            return run
        return self.run()

    def idle_s(self, run: RunState) -> float:
        """Seconds for which nothing is to be done for a run that waits for a machine; 0: now, or it
        does not wait."""
        if not _has_no_pod(run):
            return 0.0
        now = self.context.wall()
        later_s = self._asks_again_at - now
        held_s = later_s if self._unlisted and 0.0 < later_s <= _LONGEST_UNLISTED_S else 0.0
        if not is_waiting(run) or is_over(run, now, self.context.clock.now()):
            return held_s
        try:
            others = self._others(run)
        except LedgerError:
            return held_s  # the next step says so, and stays
        return max(held_s, idle_s(run, run.plan, now, others))

    def _others(self, run: RunState) -> OtherWaits:
        """The other runs of this home that wait for a machine, if this one does."""
        if not is_waiting(run):
            return NO_OTHERS
        return other_waits(
            present_runs(self.context.ledger.read().runs), run.run_id, self.context.wall()
        )

    def _idle_every_s(self) -> float:
        """Return the pause between two sweeps while nothing is rented; the runs that wait share
        them: each sweep asks for all providers of the home."""
        runs = present_runs(self.context.ledger.read().runs)
        others = other_waits(runs, self.run_id, self.context.wall())
        return (1 + others.count) * _IDLE_SWEEP_EVERY_S

    def _note_list(self, run: RunState, seen: Observation) -> None:
        """Ask less and less often for a list that cannot be had, while a machine is waited for."""
        if not _has_no_pod(run) or run.generation is None:
            return
        if isinstance(seen.pods, DatedFact):
            self._unlisted = 0
            return
        self._unlisted += 1
        pause_s = min(ASK_EVERY_S * 2.0 ** min(self._unlisted - 1, 8), _LONGEST_UNLISTED_S)
        self._asks_again_at = self.context.wall() + pause_s

    def _correct(self, run: RunState) -> RunState:
        """Put final bills in the place of estimates, now and then."""
        if not awaiting_bill(run):
            return run
        now = self.context.wall()
        every_s = self._idle_every_s() if is_waiting(run) else _BILLS_EVERY_S
        if not _is_due(self._billed_at, every_s, now):
            return run
        self._billed_at = now
        events = final_bills(self.context, run)
        if events:
            self._append(*events)
        return self.run() if events else run

    def _hear(self, run: RunState) -> RunState:
        """On an errand: how the machine that was here before had ended, if that is unknown."""
        if self._heard or run.state not in (State.RUNNING, State.ENDING):
            return run
        earlier, here = unreported(run), run.generation
        if earlier is None or here is None:
            return run
        link = self._link(here)
        with suppress(LinkError):
            report = link.left_behind(here.pod_name, earlier.pod_name)
            self._heard = True
            events = late_report(run, run.plan, earlier, report) if report is not None else ()
            if events:
                self._append(*events)
                return self.run()
        return run

    def until(
        self, done: Callable[[RunState], bool], watch: Watcher, pause_s: float = 0.5
    ) -> RunState:
        """Step until ``done``; ``watch`` is shown every state.

        What goes wrong beyond all that is foreseen ends it only once its pod can cost nothing any
        more: till then this process is there to end that in time.
        """
        self._watch = watch
        while True:
            try:
                run = self.step()
            except TrmcloudError:
                raise
            except Exception as error:
                run = self._known or self.run()
                if not self._must_stay(run) or (run.generation and self._has_gone(run.generation)):
                    raise
                self.context.troubles[self.run_id] = error
            watch(run)
            if done(run) or not run.live:
                return run
            self.context.clock.sleep(max(pause_s, min(self.idle_s(run), _IDLE_LOOK_S)))

    def _must_stay(self, run: RunState) -> bool:
        """Whether its pod may live and is not long past its end: ``sweep`` has it ended then."""
        generation = run.generation
        if generation is None or not generation.open:
            return False
        late_s = traits_of(generation.provider).kill_latency_s + 2 * _SWEEP_EVERY_S
        return self.context.wall() < generation.hard_stop_at + late_s

    # -- acting -------------------------------------------------------------------------------

    def _act(self, run: RunState, action: Action) -> None:
        """Carry an action out between its Started and its Finished or Failed."""
        # Read before it is put on record: whoever sleeps there wakes to another world.
        decided = self.context.clock.now()
        self._append(ev.ActionStarted(action.id, action.verb))
        if action.verb == TERMINATE:
            self._watch(self.run())  # it may take a provider a minute, and is a stage of its own
        try:
            done = self._perform(self.run(), action, decided)
        except NoCapacity as error:
            self._fail(action, FailureKind.NO_CAPACITY, str(error))
        except AmbiguousCreate as error:
            self._fail(action, FailureKind.AMBIGUOUS, str(error))
        except TrmcloudError as error:
            if isinstance(error, StaleEpoch):
                raise
            # A provider whose answer could not be understood may have made the pod all the same.
            certain = isinstance(error, ProviderRefused) or not isinstance(error, ProviderError)
            unclear = FailureKind.REFUSED if certain else FailureKind.AMBIGUOUS
            told = str(error)
            if isinstance(error, Throttled):
                self._fail(action, FailureKind.THROTTLED, told, error.retry_s)
                return
            if isinstance(error, FinalRefusal):
                # No candidate follows that would explain itself: what to do is part of the reason.
                unclear = FailureKind.FINAL
                told = "; ".join(filter(None, (told, error.next_step)))
            kind = unclear if action.verb == CREATE else FailureKind.ERROR
            self._fail(action, kind, told)
        else:
            self._append(done)

    def _hand_over(self, run: RunState, action: Action) -> None:
        """Let a worker carry what takes long; ``_collect`` hears how it went."""
        generation, context = run.generation, self.context
        if generation is None or generation.number != action.generation:
            return
        link, pod_name = self._link(generation), generation.pod_name
        self._append(ev.ActionStarted(action.id, action.verb))
        plan = run.plan
        if action.verb == PULL:
            kept = self._kept[action.key.item]
            self._pulling[action.key] = kept
            context.workers.start(
                action.key, lambda progress: pull(context, run, plan, generation, kept, progress)
            )
            return
        if action.verb == GRANT:
            context.workers.start(
                action.key, lambda progress: give_grants(context, run, plan, generation, progress)
            )
            return

        # Before the files, which it waits for.
        if not self._tell_finished(run, action):
            return

        def stage(progress: Progress) -> None:
            self._give_webhook(generation)
            if given := command_variables(run.spec.command):
                link.give_environment(pod_name, dump(given))
            link.stage(pod_name, context.pods.items(run).sent, progress)

        context.workers.start(action.key, stage)

    def _tell_finished(self, run: RunState, action: Action) -> bool:
        """Tell a pod, before it may train, what need not be trained there; whether it was told. Not
        by a worker, which might write over an order to land that was given meanwhile."""
        generation = run.generation
        if generation is None:
            return False
        try:
            orders = orders_for(run, generation, self.epoch)
            if orders.finished or orders.save or orders.hard_stop_at:
                link = self._link(generation)
                link.send_orders(generation.pod_name, orders)
        except TrmcloudError as error:
            self._fail(action, FailureKind.ERROR, str(error))
            return False
        return True

    def _collect(self, run: RunState) -> RunState:
        """Put on record what workers have done."""
        self._done += self.context.workers.finished()
        while self._done:
            run = self._note_done(run, self._done[0])
            self._pulling.pop(self._done.pop(0).key, None)
        return run

    def _note_done(self, run: RunState, done: WorkDone) -> RunState:
        kept, known = self._pulling.get(done.key), run.actions.get(done.key)
        action_id, verb = str(done.key), done.key.verb
        if known is None or known.ended_at is not None or run.state is State.CLOSED:
            return run
        if done.error is not None:
            kind = FailureKind.ERROR
            if isinstance(done.error, CheckpointError):
                kind = FailureKind.DAMAGED
            elif verb == STAGE and isinstance(done.error, (NotSendable, DataError)):
                kind = FailureKind.FINAL
            self._append(ev.ActionFailed(action_id, verb, kind, str(done.error)))
            return self.run()
        events: list[ev.RunEvent] = [ev.ActionFinished(action_id, verb, "")]
        if kept is not None and run.generation is not None:
            number = run.generation.number
            events.append(ev.Pulled(number, kept.phase, kept.step, kept.sha256, kept.val_bpb))
        self._append(*events)
        return self.run()

    def _perform(self, run: RunState, action: Action, decided: Instant) -> ev.ActionFinished:
        done = ev.ActionFinished(action.id, action.verb)
        generation = next((g for g in run.present if g.number == action.generation), None)
        if generation is None:
            return replace(done, detail="overtaken")
        compute = self.context.machines.computes[generation.provider]
        if action.verb == CREATE:
            request = pod_request(self.context, run, run.plan, generation, self.epoch, decided)
            done = replace(done, detail=compute.create(request))
            if generation.provider == LOCAL:  # others are given it with their files
                self._give_webhook(generation)
            return done
        if action.verb in (EXTEND, LAND, SAVE):
            orders = orders_for(run, generation, self.epoch)
            self._link(generation).send_orders(generation.pod_name, orders)
        elif action.verb == TERMINATE:
            self._require_timely(decided)
            if not generation.legacy.stands_by:  # the other machine's transfers go on
                self.context.workers.cancel()
            taken = compute.terminate(action.pod_id or generation.pod_name)
            done = replace(done, taken=taken)
        return replace(done, reason=action.reason)

    def _link(self, generation: Generation) -> PodLink:
        return self.context.machines.links[generation.provider]

    def _give_webhook(self, generation: Generation) -> None:
        """Nothing that a run needs: where it cannot be given, this process tells alone."""
        text = self.context.pods.webhook()
        if text:
            with suppress(TrmcloudError):
                self._link(generation).give_webhook(generation.pod_name, text)

    def _require_timely(self, decided: Instant) -> None:
        """Refuse an order to end a pod that was decided too long ago, as after a sleep of this
        machine: another controller may drive the run by now, and may have heard from the pod.

        Raises:
            ProviderRefused: nothing was asked for.
        """
        late_s = self.context.clock.now().since(decided)
        if late_s > SEND_WITHIN_S:
            raise ProviderRefused(f"its end was decided {late_s:.0f} s ago: checking again")

    def _fail(self, action: Action, kind: FailureKind, why: str, retry_s: float = 0.0) -> None:
        self._append(ev.ActionFailed(action.id, action.verb, kind, why, retry_s))

    def _append(self, *events: ev.RunEvent) -> None:
        try:
            append_events(self.context, self.run_id, self.epoch, *events)
        except NotFoundError:
            raise self._forgotten() from None
        self.context.notes.add_creates(self._known, events, self.context.wall())


def _progress_in(path: Path) -> SeenProgress | None:
    """None where there is none that can be read."""
    try:
        return codec.from_json(SeenProgress, json.loads(read_small(path) or "null"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def append_events(context: Context, run_id: str, epoch: int, *events: ev.RunEvent) -> None:
    """Put events on record, stamped with both clocks' readings."""
    now = context.clock.now()
    context.ledger.append(run_id, epoch, ev.stamp_events(events, now), now.wall)


def _has_no_pod(run: RunState) -> bool:
    """Whether a run that waits has no pod, and none that was asked for can appear."""
    if is_waiting(run):
        return True
    if run.state is not State.RENTING or not allows_waiting(run) or run.generation is None:
        return False
    creates = run.tries(run.generation, CREATE)
    return bool(creates) and creates[-1].failed_kind in NOT_MADE


def _is_due(last_at: float, every_s: float, now: float) -> bool:
    """Whether it is time again; a clock that was set back puts nothing off until it caught up."""
    return not 0 <= now - last_at < every_s


def _provider(run: RunState, plan: Plan) -> str:
    generation = run.generation
    if generation is not None:
        return generation.provider
    # Nothing to launch: any provider's traits will do to close the run.
    return plan.candidate(plan.launchable[0] if plan.launchable else plan.candidates[0].id).provider


def land_overdrawn(context: Context) -> None:
    """Ask every run to land whose budget, at any level, was cut below what it holds."""
    ledger = context.ledger.read()
    now = context.wall()
    for run_id, reason in govern(ledger, UnknownSince(now), now).land:
        wish_to_stop(context, run_id, by="budget", reason=reason)


def land_before_balance_ends(context: Context) -> None:
    """Read the balances that are due, and ask those runs to land whose owner chose that and whose
    provider's balance ends too soon. A ledger that cannot be used is other code's trouble."""
    with suppress(LedgerError):
        for run_id, reason in balances_due(context):
            wish_to_stop(context, run_id, by="balance", reason=reason)


def wish_to_stop(context: Context, run_id: str, *, by: str, reason: Reason) -> bool:
    """Put a wish to stop on record; False where the run has ended in the meantime."""
    try:
        context.ledger.request(run_id, ev.StopRequested(by, reason), context.wall())
    except IllegalTransition:
        return False
    return True


def _call_off_unrented(context: Context, run: RunState) -> RunState:
    """A bystander rents nothing for a launch that was killed before it asked for a pod: it would
    not stay to see to it. One that waits for a machine is left to who continues that."""
    if allows_waiting(run):
        return run
    asked = run.generation is not None and bool(run.tries(run.generation, CREATE))
    unrented = run.state in (State.PLANNED, State.RESERVED)
    if run.stop is None and (unrented or (run.state is State.RENTING and not asked)):
        reason = make_reason(ReasonKind.LAUNCH_KILLED)
        wish_to_stop(context, run.run_id, by="reconcile", reason=reason)
        return context.ledger.read().runs[run.run_id]
    return run
