"""trmcloud for programs: what the commands do, as calls that return values::

    from trmcloud.api import Home

    home = Home()
    plan = home.plan(hardware="local", recipe="trm-tiny", phase="fast", rate="3.60", budget="1")
    run = home.launch(plan.id)                  # returns once it trains
    for event in home.events(run.id):           # until it has ended
        print(event.at, event.kind, event.facts)
    print(home.run(run.id).money.proven, home.fetch_best(run.id).folder)

What stands in ``__all__`` stays as it is within a major version: names, arguments, fields and what
they mean; fields may be added. Money is ``Usd``, exact; instants are epoch seconds; whatever goes
wrong is a ``TrmcloudError`` of the kind that the command would have ended with. One ``Home`` is for
one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.hardware import find_gpu
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.contract.command import shown_metric
from trmcloud.core.control.budget import Line
from trmcloud.core.control.report import RunReport
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    ConflictError,
    LedgerError,
    NotFoundError,
    NotSupported,
    TrialFailed,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.health import Finding
from trmcloud.core.money import Usd
from trmcloud.core.nearest import suggest_name
from trmcloud.core.spec.plan import Candidate, Plan, at_limit
from trmcloud.core.spec.spec import parse_wait
from trmcloud.core.values import Value
from trmcloud.operations.checkpoints.inventory import Checkpoint, Place, checkpoints_of
from trmcloud.operations.commands import commands
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.commands.trial import Trial, TrialBounds, keep_trial, log_path, try_command
from trmcloud.operations.commands.trial_checks import Check, RequestedMachine
from trmcloud.operations.context import Context, find_run, hurried, is_quiet, run_by_id, shown_runs
from trmcloud.operations.curves.curves import Curves, Series, draw_curves, metrics_files
from trmcloud.operations.curves.trainings import find_symptoms
from trmcloud.operations.driving.balances import funds_reader
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.driving.stopping import end_now, land, require_no_stop_order
from trmcloud.operations.launch import checkpoint_requests, sweeping
from trmcloud.operations.launch.launch import (
    Caller,
    Earlier,
    Launch,
    Wish,
    require_names,
    run_of_key,
)
from trmcloud.operations.launch.launching import OnlyBillPending, follow_or_drive, has_begun, resume
from trmcloud.operations.launch.quotes import QuoteRefused
from trmcloud.operations.launch.short_rentals import is_needed
from trmcloud.operations.launch.steering import FETCH, STOP, VERBS, Forecast, foresee
from trmcloud.operations.launch.sweeping import SweepRequest
from trmcloud.operations.money import grants, ledger_care
from trmcloud.operations.money.grants import ApprovalRequest, GrantAccount
from trmcloud.operations.narration import Event, Narrator, event_of
from trmcloud.operations.plans.kill_layers import Layer, MaxOverspend
from trmcloud.operations.plans.launch_checks import check_launchable, check_money, require_user
from trmcloud.operations.plans.planning import Planner, load_plan
from trmcloud.operations.runs.run_facts import Money, Run, Training, facts_of, report_run
from trmcloud.operations.runs.run_logs import LogPiece, logs_of, read_log
from trmcloud.operations.sweeps.sweep_facts import SweepFacts, sweep_of
from trmcloud.operations.sweeps.sweep_terms import expected_trials, first_words
from trmcloud.operations.views import filled
from trmcloud.options import (
    LaunchRequest,
    Option,
    parse_balance_policy,
    parse_money,
    request_from,
    rows_of,
)
from trmcloud.ports.machine import Progress
from trmcloud.wiring import build_context, build_trial, offers_for_errand, trainer_package
from trmcloud.wiring_plans import build_planner, offers_of_home, simulate_providers

__all__ = [
    "VERBS", "ApprovalRequest", "Check", "Checkpoint", "CheckpointCopy", "Curves", "Event",
    "Finding", "Forecast", "GrantAccount", "Home", "Layer", "Line", "MaxOverspend", "Money",
    "Place", "Plan", "QuoteRefused", "Run", "Series", "SweepFacts", "SweepQuote", "Training",
    "Trial", "TrmcloudError", "Usd",
]  # fmt: skip

_LOOK_S = 0.5
_CATCH_UP_S = 2.0
_PLAYS = 5
"""Simulated runs before a principal's launch of a recipe."""


class CheckpointCopy(Value):
    """A checkpoint that was copied to ``folder``, every hash verified."""

    checkpoint: str
    sha256: str
    val_bpb: float | None
    folder: str
    metric: str | None = None
    """As in ``Training``; ``value`` is that metric."""
    value: float | None = None


class OptionField(Value):
    """An option of a command: the name that the calls here take it by, its type and default."""

    name: str
    kind: Any
    default: Any
    option: Option


class SweepQuote(Value):
    """A saved plan of a sweep. It is expected to start about ``trials`` trials, ``slots`` at a
    time, each trained until one of ``rungs`` (``unit`` ``usd``: USD of one slot; ``s``: seconds)
    and then dropped or continued. ``first`` is the point that all are compared with; ``words`` are
    a command's at it, which a principal tries before: empty for a recipe."""

    plan: Plan
    trials: int
    slots: int
    rungs: tuple[Usd, ...]
    unit: str
    metric: str
    first: Mapping[str, Any]
    words: tuple[str, ...] = ()


def options_of(command: str) -> tuple[OptionField, ...]:
    """Return the options of ``plan``, ``launch``, ``run``, ``try`` or ``sweep`` that say what is
    planned."""
    found = []
    for request in (LaunchRequest, CommandRequest, SweepRequest):
        rows = rows_of(request, command)
        for field in fields(request):
            if field.name in rows:
                found.append(OptionField(field.name, field.type, field.default, rows[field.name]))
    return tuple(found)


def _nothing(*_: object) -> None:
    pass


def _money(name: str, amount: Usd | str) -> Usd:
    parsed = parse_money(name, amount) if isinstance(amount, str | Usd) else None
    if parsed is None:
        raise UsageError(f"{amount!r} is not an amount", next_step=f"{name} 2.50")
    return parsed


def _amounts(terms: Mapping[str, Any]) -> dict[str, Any]:
    """``terms`` with amounts of money as such."""
    amounts = ("more", "per_run", "per_day", "per_month")
    return {
        name: _money(name, value) if name in amounts and value is not None else value
        for name, value in terms.items()
    }


def _folder(here: str | os.PathLike[str] | None) -> Path:
    return Path(here).expanduser().absolute() if here is not None else Path.cwd()


class Home:
    """One trmcloud home: its ledger, its plans, its runs.

    Args:
        path: its folder; ``$TRMCLOUD_HOME``, else ``~/.trmcloud``, where None.
        unasked: providers to leave alone: what is known of their pods is what was heard of them.
        principal: whom it acts for, under that principal's grant: it launches within it, sees and
            steers that principal's runs alone, and changes neither caps nor grants. None: for the
            ledger's owner.
        uses_machine: whether it may start commands and read files of this machine, which it does
            as this process's own user; False for a client who may be another user.

    Raises:
        UsageError: ``principal`` is no name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        unasked: Iterable[str] = (),
        principal: str | None = None,
        uses_machine: bool = True,
    ) -> None:
        context = build_context(Path(path) if path is not None else None)
        self._uses_machine = uses_machine
        self._context = replace(
            context,
            machines=replace(context.machines, unasked=frozenset(unasked)),
            caller=context.caller.acting_for(principal),
        )

    @property
    def principal(self) -> str:
        """Whom it acts for; empty: the ledger's owner."""
        return self._context.caller.principal

    @property
    def context(self) -> Context:
        """The house's own view of it, which may change with any version."""
        return self._context

    # -- before ----------------------------------------------------------------------------------

    def plan(self, **wish: Any) -> Plan:
        """Plan a budget's best use, and save the plan under its ``id``.

        Args:
            wish: the options of ``plan`` and ``launch`` by their names there, ``_`` for ``-``;
                money is text or ``Usd``.

        Raises:
            UsageError: an option that is none, or out of its limits. NotFoundError, DoesNotFit,
                BudgetRefused: there is no such plan. GrantRefused: an option is the owner's alone.
        """
        grants.require_wish(self._context, wish)
        planner, request = self._planner(), request_from(wish)
        if not self._uses_machine:
            require_names(request)
        return planner.save(at_limit(planner.plan(planner.spec(request))))

    def launch(self, hardware: str, *, progress: Progress | None = None, **wish: Any) -> Run:
        """Carry a plan out: reserve its worst case, rent, and return once it trains, or has ended.

        Where its checkpoints come here from its pod, ``wait`` is to follow: it brings them. With
        ``detach=True`` that is refused unless they survive elsewhere, or ``accept_loss=True``.

        Args:
            hardware: a saved plan's id, or hardware; ``wish`` as in ``plan``, beside it. With an
                ``idempotency_key`` that was used before it returns the run of that launch.
            progress: told (done, total) bytes of what is sent to a bucket.

        Raises:
            TrmcloudError: whatever keeps it from being launched; nothing is rented then.
        """
        return self._launch(Wish(request_from({**wish, "hardware": hardware})), progress)

    def plan_command(
        self, words: Sequence[str], *, here: str | os.PathLike[str] | None = None, **wish: Any
    ) -> Plan:
        """Plan a command of your own, and save the plan, as ``run --dry-run`` does: to look at.
        ``launch`` refuses its id, since a plan does not hold the code.

        Args:
            words, here, wish: as in ``run_command``.

        Raises:
            UsageError, DataError, NotFoundError, DoesNotFit, BudgetRefused: there is no such plan.
        """
        asked = Wish(*commands.requests_of(words, wish), here=_folder(here))
        return self._prepare(asked).look().plan

    def run_command(
        self,
        words: Sequence[str],
        *,
        here: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        quote: str = "",
        **wish: Any,
    ) -> Run:
        """Run a command of your own as ``run`` does, and return as ``launch`` does.

        Args:
            words: what to run: ``("python", "train.py")``.
            here: the folder whose files are sent and in which it is started; the working directory
                where None. Relative paths in ``wish`` are relative to it.
            progress: told (done, total) bytes of what is sent to a bucket.
            quote: the id of a plan that ``plan_command`` made of the same command and options:
                launched is what it says, or nothing.
            wish: the options of ``run`` by their names there, ``_`` for ``-``; ``hardware`` is one.

        Raises:
            TrmcloudError: whatever keeps it from being launched; nothing is rented then.
        """
        requests = commands.requests_of(words, wish)
        return self._launch(Wish(*requests, here=_folder(here), quote=quote), progress)

    def plan_sweep(
        self,
        space: Sequence[str],
        words: Sequence[str] = (),
        *,
        here: str | os.PathLike[str] | None = None,
        **wish: Any,
    ) -> SweepQuote:
        """Plan a sweep, and save its plan, as ``sweep --dry-run`` does.

        Args:
            space, words, here, wish: as in ``sweep``.

        Raises:
            UsageError, DataError, NotFoundError, DoesNotFit, BudgetRefused: there is no such plan.
        """
        asked = Wish(*sweeping.requests_of(space, words, wish), _folder(here))
        found = self._prepare(asked).look()
        plan, terms = found.plan, found.terms
        assert terms is not None
        return filled(
            SweepQuote,
            terms,
            plan=plan,
            trials=expected_trials(terms),
            first=dict(terms.default),
            words=first_words(plan, terms),
        )

    def sweep(
        self,
        space: Sequence[str],
        words: Sequence[str] = (),
        *,
        here: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        quote: str = "",
        **wish: Any,
    ) -> Run:
        """Search settings as ``sweep`` does, and return as ``launch`` does.

        A principal tries a command at the first point before (``SweepQuote.words``); of a recipe
        the run is simulated.

        Args:
            space: a word for each setting: ``("lr=log:1e-4,1e-2", "depth=2|4")``.
            words: a command with ``{lr}`` and ``{depth}``; empty: ``wish`` names a recipe.
            here, progress: as in ``run_command``.
            quote: the id of a plan that ``plan_sweep`` made of the same space, words and options.
            wish: the options of ``sweep`` by their names there, ``_`` for ``-``.

        Raises:
            TrmcloudError: whatever keeps it from being launched; nothing is rented then.
        """
        requests = sweeping.requests_of(space, words, wish)
        return self._launch(Wish(*requests, _folder(here), quote), progress)

    def try_command(
        self,
        words: Sequence[str],
        *,
        here: str | os.PathLike[str] | None = None,
        data: str = "",
        for_s: float = 60.0,
        steps: int = 0,
        gigabytes: float = 5.0,
        online: bool = False,
        progress: Callable[[Mapping[str, object]], None] | None = None,
        **wish: Any,
    ) -> Trial:
        """Run a command here, free, in a copy of what would be sent, and judge it; see ``try``.

        Args:
            here: the folder that it is started in; the working directory where None.
            wish: the options of ``run`` about its command, by their names there, ``_`` for ``-``.

        Raises:
            UsageError: an option that is none, or out of its limits; there is no such command.
            DataError: there is nothing to send, or too much.
        """
        grants.require_wish(self._context, wish)
        known = {field.name for field in fields(CommandRequest)} - {"words", "typed"}
        for name in sorted(wish.keys() - known):
            raise UsageError(f"there is no option {name!r}", next_step=", ".join(sorted(known)))
        require_user("try", uses_machine=self._uses_machine)
        request = commands.request_of(words, wish)
        bounds = TrialBounds(for_s, steps, gigabytes, online)
        told, ground = progress or _nothing, build_trial(self._context.home)
        plain = RequestedMachine()
        trial = try_command(ground, request, bounds, plain, _folder(here), data, told)
        if self.principal:
            log = log_path(ground.home, trial)
            content = log.read_bytes() if log.exists() else b""
            keep_trial(ground.home, trial, content, self.principal)
        return trial

    def prices(self, *, sku: str = "", provider: str = "") -> tuple[Offer, ...]:
        """Return the offers that plans are made from; of one GPU, of one provider.

        Raises:
            UsageError: no such GPU, or no offers of that provider.
        """
        offers = offers_of_home(self._context.home, self._context.wall())
        wanted = find_gpu(sku).sku if sku else ""
        found = [each for each in offers if wanted in ("", each.sku)]
        if provider and all(each.provider != provider for each in offers):
            raise UsageError(
                f"there are no offers of {provider!r:.40}",
                next_step=suggest_name(provider, sorted({each.provider for each in offers})),
            )
        return tuple(each for each in found if provider in ("", each.provider))

    def check_launch(self, plan_id: str) -> Plan:
        """Return a saved plan that could be reserved now. What counts is the look of the
        transaction that reserves.

        Raises:
            UsageError, NotFoundError: there is no such plan, or it has expired. DoesNotFit: nothing
                in it can be launched. BudgetRefused: a budget lacks its worst case.
        """
        context, plan = self._context, self._loaded(plan_id)
        check_launchable(context, plan)
        grants.require_allowed(context, plan)
        check_money(context, plan)
        return plan

    # -- looking ---------------------------------------------------------------------------------

    def runs(self, *, ended: bool = True) -> tuple[Run, ...]:
        """All of this home's runs, the oldest first; ``ended``: those that have ended, too."""
        return tuple(self._facts(each) for each in self.states() if ended or each.live)

    def run(self, run_id: str | None = None) -> Run:
        """One run as it stands now; the newest where no id is given.

        Raises:
            NotFoundError: there is none.
        """
        return self._facts(self._find(run_id))

    def run_of_key(self, key: str) -> Run | None:
        """Return the run that was launched with this idempotency key; None where there is none."""
        found = run_of_key(self._context, key)
        return self.run(found.run_id) if found is not None else None

    def states(self) -> tuple[RunState, ...]:
        """The runs as the ledger has them, and nothing else: quick, however many there are."""
        known = shown_runs(self._context).values()
        return tuple(sorted(known, key=lambda run: run.created_at))

    def budgets(self) -> tuple[Line, ...]:
        """Return the caps, spending and holds of account, month and project."""
        context = self._context
        return context.ledger.read().lines_for(context.caller.project, context.wall())

    def events(
        self, run_id: str | None = None, *, after: int = 0, follow: bool = True
    ) -> Iterator[Event]:
        """Yield the events on record of a run, or of all runs, in their order.

        Args:
            after: only those behind the event of this id.
            follow: wait for more, until the run has ended; of all runs, for good. Runs
                without a driver are brought up to date meanwhile, as by ``catch_up``.

        Raises:
            NotFoundError: no such run.
        """
        if run_id is not None:
            run_id = self._find(run_id).run_id
        narrator = Narrator(after=after)
        caught_up_at = self._context.clock.now().boot
        while True:
            # Asked first: what is appended in between belongs to what is told.
            over = run_id is not None and not self._find(run_id).live
            mine = {state.run_id for state in self.states()} if self.principal else None
            for told in narrator.tell(self._context.ledger.records(run_id)):
                if mine is None or told.record.run_id in mine:
                    yield event_of(told)
            if over or not follow:
                return
            self._context.clock.sleep(_LOOK_S)
            if (now := self._context.clock.now().boot) - caught_up_at >= _CATCH_UP_S:
                self.catch_up()
                caught_up_at = now

    def checkpoints(self, run_id: str) -> tuple[Checkpoint, ...]:
        """Return its checkpoints and their places, as far as this home knows."""
        return checkpoints_of(self._context, self._find(run_id))

    def curves(self, run_id: str, *, points: int = 800) -> Curves:
        """Loss, bits per byte and supervision steps over steps, paid hours and dollars, thinned out
        to ``points`` of each phase so that no spike is lost."""
        state = self._find(run_id)
        files = metrics_files(self._context, state)
        for file in files:
            file.read_all()
        return draw_curves(state, [file.phase for file in files], points)

    def log(
        self, run_id: str, *, phase: str = "", after: int | None = None
    ) -> tuple[str, LogPiece]:
        """Return a phase, the last one where none is named, and a piece of its log: the lines
        behind byte ``after``, or the last ones.

        Raises:
            NotFoundError: it has no such log on this machine.
        """
        state = self._find(run_id)
        known = logs_of(self._context, state)
        chosen = phase or (known[-1] if known else "")
        return chosen, read_log(self._context, state, chosen, after)

    def sweep_trials(self, run_id: str) -> SweepFacts:
        """Return a sweep's trials with their metrics and dollars, as far as its machine has told of
        them: ``ranked()`` and ``best``, the ``state`` with each interval's result, the ``terms``.

        Raises:
            NotFoundError: it is no sweep, or its plan cannot be read any more.
        """
        state = self._find(run_id)
        found = sweep_of(self._context, state)
        if found is None:
            raise NotFoundError(f"{state.run_id} is no sweep", next_step="trmcloud status")
        return found

    def report(self, run_id: str) -> RunReport:
        """Return its cost planned, accrued and billed, its time by activity, its checkpoints."""
        return report_run(self._context, self._find(run_id))

    def health(self, run_id: str) -> dict[str, tuple[Finding, ...]]:
        """Return its own numbers' symptoms, by phase; empty where there are none."""
        return find_symptoms(self._context, self._find(run_id))

    def catch_up(self) -> None:
        """Bring runs without a driver up to date, and end pods without an owner, as every command
        does first."""
        if not is_quiet(self._context):
            reconcile(self._context)

    def wait(
        self,
        run_id: str,
        *,
        until: Callable[[Run], bool] | None = None,
        timeout_s: float | None = None,
    ) -> Run:
        """Stay with a run until it has ended but for a bill that is late, or ``until`` holds, or
        ``timeout_s`` have passed. Where no process drives it, this does: it fetches checkpoints
        and ends the pod in time."""
        context, began = self._context, self._context.clock.now().boot
        settling = OnlyBillPending(context)

        def over(state: RunState) -> bool:
            late = timeout_s is not None and context.clock.now().boot - began >= timeout_s
            return late or settling(state) or (until is not None and until(self._facts(state)))

        state = self._find(run_id)
        if state.live and not over(state):
            state = follow_or_drive(context, state.run_id, over, _nothing)
        return self._facts(state)

    # -- steering --------------------------------------------------------------------------------

    def foresee(self, verb: str, run_id: str, *, cap: Usd | str | None = None) -> Forecast:
        """Return the most that ``land``, ``save``, ``stop``, ``fetch`` or ``raise`` would cost, or
        the reason why it cannot be done now. ``cap``: the whole run's budget that a raise would
        set."""
        context = hurried(self._context) if verb == STOP else self._context
        state = find_run(context, run_id)
        rents = verb == FETCH and is_needed(context, state)
        offers, disk_rate = offers_for_errand(context.wall()) if rents else ((), Usd(0))
        whole = parse_money("cap", cap)
        return foresee(context, state, verb, cap=whole, offers=offers, disk_rate=disk_rate)

    def land(self, run_id: str) -> Run:
        """Tell it to end its step, save, evaluate, and end its pod; not waited for.

        Raises:
            ConflictError: it has ended, or was told to before.
        """
        mine = grants.judge_run(self._context, run_id)
        require_no_stop_order(mine, at_once=False)
        return self._facts(land(self._context, mine.run_id))

    def stop(self, run_id: str) -> Run:
        """Have its pod ended at once: what is not saved is lost. A ledger that cannot be written
        is in the way of no end: ``trouble`` says then what was done, and is not in it yet.

        Raises:
            ConflictError: it has ended, or was told to before. LedgerError: nothing can be written
                or read, and what was done is said.
        """
        made: list[Run] = []

        def choose(quick: Context) -> str:
            mine = grants.judge_run(quick, run_id)
            require_no_stop_order(mine, at_once=True)
            return mine.run_id

        def follow(quick: Context, name: str) -> None:
            made.append(facts_of(quick, run_by_id(quick, name)))

        ended = end_now(self._context, run_id, choose=choose, agrees=lambda *_: True, follow=follow)
        if ended is None:
            return made[0]
        with suppress(LedgerError, NotFoundError):
            if ended.pods.asked and not ended.pods.failed:
                quick = hurried(self._context)
                return replace(facts_of(quick, run_by_id(quick, ended.run_id)), trouble=ended.words)
        raise LedgerError(
            ended.words, next_step=f"trmcloud stop --now {ended.run_id}"
        ) from ended.error

    def save(self, run_id: str, *, timeout_s: float = 300.0) -> Place:
        """Have a checkpoint made now, and wait until it is where the run's checkpoints are kept, or
        on its pod alone; it goes on.

        Raises:
            ConflictError: it is not training. NotSupported: its pod cannot be asked. LinkError: it
                could not be confirmed in time.
        """
        by = self.principal or "trmcloud.api"
        saved = checkpoint_requests.save(self._context, run_id, by, wait_s=timeout_s)
        assert saved is not None  # it was waited for
        return saved[1].at

    def fetch_best(
        self,
        run_id: str,
        *,
        into: str | os.PathLike[str] | None = None,
        weights_only: bool = False,
        rent: bool = False,
        progress: Progress | None = None,
    ) -> CheckpointCopy:
        """Copy its best checkpoint, every hash verified; that of a command lies in ``own`` of the
        folder, too, under the names that its script gave it.

        Args:
            into: a folder to make; RUN-PHASE-STEP in the working directory where None.
            rent: a machine may be rented for it, where it lies on a volume alone; see ``foresee``.

        Raises:
            NotFoundError, CheckpointError, ConflictError, DoesNotFit: see ``fetch-best``.
            UsageError: it would have to be rented for.
        """
        context = self._context
        if not self._uses_machine and into is not None:
            raise NotSupported(
                "a folder of your own is refused: it would be written as the ledger's owner",
                next_step="leave out into",
            )
        state = self._find(run_id)
        if not self._uses_machine:
            into = context.home / "fetched" / self.principal / state.run_id
        state = self._from_volume(state, rent=rent)
        made = checkpoint_requests.fetch_best(
            context,
            state,
            Path(into) if into is not None else None,
            weights_only=weights_only,
            begin=lambda _: progress or _nothing,
        )
        best, command = made.manifest, state.spec.command
        return CheckpointCopy(
            best.label, best.sha256, best.val_bpb, str(made.folder.absolute()),
            command.metric_name if command is not None else None,
            shown_metric(command, best.val_bpb),
        )  # fmt: skip

    def resume(
        self,
        run_id: str,
        *,
        cap: Usd | str | None = None,
        balance: str = "",
        fit_balance: bool = False,
        wait_for: str = "",
        max_price: Usd | str | None = None,
    ) -> Run:
        """Go on with a run that has ended, within ``cap`` for the whole of it; returns once it
        trains, or has ended again. ``wait`` is to follow, as after ``launch``.

        Args:
            balance, fit_balance: the options of ``resume``; as before where ``balance`` is empty.
            wait_for: ``6h``: for so long a machine is asked for where none is free.
            max_price: USD an hour that it may cost at most, meanwhile.

        Raises:
            ConflictError: there is nothing to go on with. BudgetRefused: its budget is spent, or a
                level above it lacks the money.
        """
        state = grants.judge_run(self._context, run_id)
        policy = str(parse_balance_policy("balance", balance)) if balance else ""
        driver = resume(
            self._context,
            state,
            uses_machine=self._uses_machine,
            cap=parse_money("cap", cap),
            balance=policy,
            fit_balance=fit_balance,
            wait_s=parse_wait("wait_for", wait_for) if wait_for else 0.0,
            most_rate=parse_money("max_price", max_price),
        )
        assert driver is not None  # it was agreed to
        return self._once_begun(driver)

    def raise_cap(self, level: str, amount: Usd | str, *, key: str = "") -> Line:
        """Raise the cap of account, month or project, on record; ``key``: this month's, this
        project's where it is empty.

        Raises:
            UsageError: no such level, no amount, or no more than its cap is.
        """
        grants.require_owner(self._context)
        cap = parse_money("amount", amount)
        if cap is None:
            raise UsageError(f"{amount!r} is not an amount")
        line = ledger_care.line_of(self._context, level, key)
        return ledger_care.raise_cap(self._context, line, cap)

    # -- grants ----------------------------------------------------------------------------------

    def grant(self, principal: str | None = None) -> GrantAccount:
        """Return a principal's grant as it stands; its own where this acts for one.

        Raises:
            NotFoundError: there is none, or it is another's.
        """
        name = self.principal if principal is None else principal
        found = [each for each in self.grants() if each.principal == name]
        if not found:
            raise NotFoundError(
                f"{name[:80] or 'the owner'} has no grant",
                next_step="the ledger's owner gives one: trmcloud grant give NAME USD",
            )
        return found[0]

    def grants(self) -> tuple[GrantAccount, ...]:
        """Every principal's latest grant; its own alone where this acts for a principal."""
        return grants.grants(self._context)

    def give_grant(self, principal: str, total: Usd | str, **terms: Any) -> GrantAccount:
        """Let ``principal`` spend up to ``total`` USD, from now on.

        Args:
            terms: ``per_run``, ``per_day`` and ``per_month`` in USD, ``runs_at_once`` (1; 0: any
                number), ``hardware``, ``providers``, ``expires_at`` (epoch s), ``idle_s``.

        Raises:
            UsageError: no such term or name. ConflictError: there is a grant. GrantRefused: this
                acts for a principal.
        """
        made = grants.make_terms(_money("total", total), _amounts(terms), None)
        return grants.give(self._context, principal, made)

    def raise_grant(
        self, principal: str, total: Usd | str | None = None, **terms: Any
    ) -> GrantAccount:
        """Raise a grant to ``total`` USD, the spent part included, or others of its terms.

        Raises:
            UsageError: it would allow less than before. NotFoundError: there is none. GrantRefused:
                this acts for a principal.
        """
        grants.require_owner(self._context)
        before = grants.standing_terms(self._context, principal)
        whole = before.total if total is None else _money("total", total)
        made = grants.make_terms(whole, _amounts(terms), before)
        return grants.raise_grant(self._context, principal, made)

    def revoke_grant(self, principal: str, *, now: bool = False) -> GrantAccount:
        """Nothing is reserved under the grant any more; its runs land, or end ``now``.

        Raises:
            NotFoundError, ConflictError: there is none. GrantRefused: this acts for a principal.
        """
        return grants.revoke(self._context, principal, at_once=now)

    def ask_approval(self, why: str = "", **more: Any) -> ApprovalRequest:
        """Ask the owner for more: see ``ApprovalRequest``. The same request is made once.

        Args:
            more: ``more`` USD in total; or at least so much of ``per_run``, ``per_day``,
                ``per_month``, ``runs_at_once``, ``hardware``, ``providers``, ``expires_at``.

        Raises:
            UsageError: nothing is asked for that the grant does not allow. NotFoundError: there is
                no grant. GrantRefused: too many are open, or were made today.
        """
        return grants.ask(self._context, why, _amounts(more))

    def approvals(self) -> tuple[ApprovalRequest, ...]:
        """Requests for approval, the earliest first; as in ``grants``."""
        return grants.approvals(self._context)

    def approve(self, approval_id: str) -> ApprovalRequest:
        """
        Raises:
            NotFoundError, ConflictError: no open request. GrantRefused: this acts for a principal.
        """
        return grants.answer(self._context, approval_id, give=True)

    def deny(self, approval_id: str) -> ApprovalRequest:
        """As ``approve``."""
        return grants.answer(self._context, approval_id, give=False)

    # -- own -------------------------------------------------------------------------------------

    def _find(self, run_id: str | None) -> RunState:
        """
        Raises:
            NotFoundError: there is none, or it is not the principal's.
        """
        return find_run(self._context, run_id)

    def _rehearse(self, plan: Plan) -> None:
        """
        Raises:
            TrialFailed: simulated, the run would break a promise, or save nothing.
        """
        from trmcloud.sim import rehearsal  # a third of a second, which no other call needs

        simulate_providers()
        made = rehearsal.rehearse(plan, runs=_PLAYS, faults=(), seed=1, detached=False)
        saved = made.steps_saved()
        if made.violations:
            raise TrialFailed(
                f"simulated, the run breaks a promise: {made.violations[0].detail}",
                next_step=f"trmcloud rehearse {plan.id}",
            )
        if len(saved) < len(made.plays) or not all(saved):
            raise TrialFailed(
                "simulated, the run ends before it has saved a checkpoint",
                next_step="a larger budget, or fewer steps between checkpoints: save_every",
            )

    def _loaded(self, plan_id: str) -> Plan:
        return load_plan(self._context.home, plan_id, self._context.wall(), self.principal)

    def _facts(self, state: RunState) -> Run:
        return facts_of(self._context, state)

    def _planner(self) -> Planner:
        funds = funds_reader(self._context)
        return build_planner(self._context.home, funds=funds, principal=self.principal)

    def _prepare(self, wish: Wish) -> Launch:
        caller = Caller(uses_machine=self._uses_machine, is_agent=bool(self.principal))
        planner = self._planner()
        return Launch(self._context, planner, wish, caller, trainer_package, self._rehearse)

    def _launch(self, wish: Wish, progress: Progress | None) -> Run:
        launch = self._prepare(wish)
        begun: RunDriver | Earlier | None = launch.earlier()
        if begun is None:
            prepared = launch.prepare(_nothing)
            launch.check(prepared)
            begun = launch.begin(prepared, progress or _nothing)
        if isinstance(begun, RunDriver):
            return self._once_begun(begun)
        if begun.driver is not None:
            return self._once_begun(begun.driver)
        self.catch_up()
        return self.run(begun.run.run_id)

    def _once_begun(self, driver: RunDriver) -> Run:
        """It trains by itself from then on, or has ended."""
        state = driver.until(has_begun, _nothing)
        if state.live:
            self._context.ledger.release(state.run_id, driver.epoch)
        return self.run(state.run_id)

    def _from_volume(self, state: RunState, *, rent: bool) -> RunState:
        def waits(name: str) -> None:
            raise ConflictError(f"{name} cannot be fetched: its pod is not proven gone yet")

        def agree(name: str, candidate: Candidate) -> None:
            if not rent:
                raise UsageError(
                    f"the checkpoints of {name} are on a network volume: fetching them needs "
                    f"a {candidate.hardware} at {candidate.rate}/h, at most {candidate.worst_case}",
                    next_step="rent=True",
                )

        return checkpoint_requests.bring_from_volume(
            self._context, state, offers=offers_for_errand, waits=waits, agree=agree
        ).run
