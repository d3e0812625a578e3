"""Launching: the same steps and checks behind every door.

A ``Launch`` is made of what somebody asks for. ``earlier`` finds the run of a repeated launch;
``look`` makes and saves the plan; ``prepare`` makes the plan, checks it, and makes data and code
ready; ``begin`` reserves its worst case. What keeps a prepared launch from beginning stands in
``CHECKS``, in the order in which it is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.control import bookkeeping
from trmcloud.core.control.bookkeeping import KeyUsed
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import NotSupported
from trmcloud.core.spec.plan import Plan, at_limit
from trmcloud.core.spec.spec import AT_BUDGET, TIGHT, RunSpec
from trmcloud.core.sweep.priors import Priors
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import Value, replace
from trmcloud.operations.commands import commands
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.context import Context, find_run, run_by_id
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.launch import quotes, sweeping
from trmcloud.operations.launch.labels import Labels, find_earlier, is_left_alone, labels_of
from trmcloud.operations.launch.launching import start
from trmcloud.operations.launch.sweeping import SweepRequest
from trmcloud.operations.money import grants
from trmcloud.operations.plans import preparing
from trmcloud.operations.plans.launch_checks import check_capped, require_own_machine, require_user
from trmcloud.operations.plans.planning import Planner, is_plan_id, load_plan
from trmcloud.operations.plans.preparing import DataProgress, PreparedLaunch
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.sending.working_tree import WorkingTree, pack
from trmcloud.operations.sweeps.sweep_priors import with_priors
from trmcloud.operations.sweeps.sweep_terms import first_words
from trmcloud.options import LaunchRequest
from trmcloud.ports.machine import Progress

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAMES = ("recipe", "data", "chat_data", "goal", "initial_from")
"""Options whose value may be the path of a file or folder."""


class Wish(Value):
    """What is asked for, as it was typed: a recipe or a saved plan; with ``asked`` a command; with
    ``search``, too, a sweep, of a command or of a recipe."""

    request: LaunchRequest
    asked: CommandRequest | None = None
    search: SweepRequest | None = None
    here: Path = Path()
    """The folder it was typed in, to which its paths are relative."""
    quote: str = ""
    """The id of a plan that was made of the same before: launched is what it says, or nothing."""

    @property
    def verb(self) -> str:
        """The command that takes it."""
        if self.asked is None:
            return "launch"
        return "run" if self.search is None else "sweep"


class Caller(Value):
    """Who launches. ``confirms``: a person sees the plan and is asked before it begins.
    ``follows``: it stays with the run, and moves its stop where the work needs that."""

    confirms: bool = False
    follows: bool = False
    uses_machine: bool = True
    """False for a client who may be another user of this machine: none of its files is read and
    none of its commands is run for it."""
    is_agent: bool = False
    """It launches what was quoted, tried here or simulated before."""


class Outlook(Value):
    """The plan of a launch, and what would be sent with it."""

    plan: Plan
    tree: WorkingTree | None = None
    """A command's files."""
    terms: SweepTerms | None = None
    priors: Priors | None = None
    """Of a sweep."""

    def code(self, home: Path) -> Path:
        """Pack a command's files below ``home``; return their folder."""
        assert self.tree is not None
        return pack(self.tree, home)


class Prepared(Value):
    """A launch that was checked, with data and code made ready; as ``Outlook``."""

    ready: PreparedLaunch
    tree: WorkingTree | None = None
    terms: SweepTerms | None = None
    priors: Priors | None = None

    @property
    def plan(self) -> Plan:
        return self.ready.plan

    def code(self, home: Path) -> Path:
        return Path(self.ready.data.code)


class Earlier(Value):
    """The run that was launched with the same key before. ``driver``: its launch was killed before
    it trained, and this process drives it on."""

    run: RunState
    driver: RunDriver | None = None


def find_started(context: Context, labels: Labels) -> Earlier | None:
    """Return the run that was started with the key of ``labels``, as ``find_earlier`` does."""
    run = find_earlier(context, labels) if labels.key else None
    if run is None:
        return None
    if not is_left_alone(context, run):
        return Earlier(run)
    epoch = context.take_over(run.run_id)
    return Earlier(run, RunDriver(context, run.run_id, epoch))


class Launch:
    """One launch of ``wish``.

    Args:
        trainer: returns the folder of the trainer's package.
        simulate: simulates an agent's run, and raises ``TrialFailed`` where it breaks a promise.

    Raises:
        UsageError: a label, or a value that could be a token. GrantRefused, NotSupported: an option
            is not for this caller.
    """

    def __init__(
        self,
        context: Context,
        planner: Planner,
        wish: Wish,
        caller: Caller,
        trainer: Callable[[], Path],
        simulate: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        self.context, self.planner, self.caller = context, planner, caller
        self._trainer, self.simulate = trainer, simulate
        self.wish = wish = replace(wish, asked=_silenced(context, wish.asked))
        request, asked = wish.request, wish.asked
        grants.require_wish(
            context,
            {
                "env": asked.env if asked is not None else (),
                "accept_exposure": request.accept_exposure,
                "allow_key": request.allow_key,
                "bucket": request.bucket,
            },
        )
        if not caller.uses_machine and wish.verb != "run":
            require_names(request)
        if caller.is_agent and request.initial_from and wish.verb == "launch":
            find_run(context, request.initial_from)
        beside = (each for each in (asked, wish.search) if each is not None)
        self.labels: Labels = labels_of(wish.verb, request, *beside)

    def earlier(self) -> Earlier | None:
        """Return the run of an earlier launch with the same key; None where this is the first.

        Raises:
            UsageError: it was launched with other arguments. RunQuarantined: damaged records may
                hold the key.
        """
        return find_started(self.context, self.labels)

    def look(self) -> Outlook:
        """Make and save the plan that would be launched. Nothing is made ready, and no account is
        asked.

        Raises:
            TrmcloudError: there can be no such plan, or nothing to send.
        """
        wish, here = self.wish, self.wish.here
        spec = self._spec()
        if spec is None:
            found = Outlook(preparing.dry_run(self.context, self.planner, wish.request))
        elif wish.search is None:
            found = Outlook(*commands.dry_run(self.planner, spec, here))
        else:
            found = Outlook(*sweeping.dry_run(self.planner, spec, here))
        return replace(found, plan=self.stopped(found.plan))

    def stopped(self, plan: Plan) -> Plan:
        """``plan`` with the stop that it is carried out with: a tight one where this caller stays
        to move it, or asks for one."""
        wanted = self.wish.request.stop
        follows = self.caller.follows and not self.wish.request.detach
        is_tight = wanted == TIGHT or (follows and wanted != AT_BUDGET)
        return plan if is_tight else at_limit(plan)

    def prepare(self, progress: DataProgress) -> Prepared:
        """Make the plan and check it, before anybody is asked for money; then make its data and its
        code ready.

        Raises:
            TrmcloudError: whatever keeps it from being launched.
        """
        context, planner, wish = self.context, self.planner, self.wish
        request, here = wish.request, wish.here
        spec = self._spec()
        find_earlier(context, self.labels)  # whether a live run has the name
        if spec is None:
            if self.caller.is_agent and is_plan_id(request.hardware):
                quotes.require_quote(context, planner, request.hardware)
            made = Prepared(preparing.prepare(context, planner, request, progress))
        elif wish.search is None:
            made = Prepared(*commands.prepare(context, planner, request, spec, here))
        else:
            told = context, planner, request, spec, here, self._trainer(), progress
            made = Prepared(*sweeping.prepare(*told))
        return replace(made, ready=replace(made.ready, plan=self.stopped(made.ready.plan)))

    def foresee(self) -> Plan:
        """Return the saved plan that is asked for, once it has passed all that needs no data.

        Raises:
            TrmcloudError: what would keep it from being launched.
        """
        plan = self.stopped(preparing.check_saved(self.context, self.planner, self.wish.request))
        self.check(Prepared(PreparedLaunch(plan, LaunchData())))
        return plan

    def _spec(self) -> RunSpec | None:
        """The checked wish; None of a recipe or a saved plan, which ``preparing`` reads."""
        context, planner, wish = self.context, self.planner, self.wish
        if wish.asked is None:
            context.ledger.read()  # one that cannot be used is told before any work is done
            return None
        if wish.search is None or sweeping.divide_words(wish.asked.words)[1]:
            # A recipe's sweep reads none.
            require_user("reading files of this machine", uses_machine=self.caller.uses_machine)
        if wish.search is None:
            spec = commands.wish_of(planner, wish.request, wish.asked, wish.here)
        else:
            spec = sweeping.wish_of(planner, wish.request, wish.asked, wish.search, wish.here)
        context.ledger.read()
        quoted = self._quoted()
        if quoted is not None and quoted.spec.sweep is not None and spec.sweep is not None:
            known = quoted.spec.sweep
            sweep = replace(spec.sweep, first=known.first, earlier=known.earlier)
            spec = replace(spec, sweep=sweep)
        elif wish.search is not None and not wish.search.no_earlier:
            spec = with_priors(context, planner, spec, wish.here)
        if quoted is not None and spec.deadline_at is not None:  # 12h from the quote, not from now
            spec = replace(spec, deadline_at=quoted.spec.deadline_at)
        return spec

    def _quoted(self) -> Plan | None:
        if not self.wish.quote:
            return None
        return load_plan(self.context.home, self.wish.quote, 0.0, self.context.caller.principal)

    def check(self, prepared: Prepared) -> None:
        """
        Raises:
            TrmcloudError: the first of ``CHECKS`` that fails.
        """
        for each in CHECKS:
            each(self, prepared)

    def begin(self, prepared: Prepared, progress: Progress) -> RunDriver | Earlier:
        """Reserve the worst case of what was prepared and checked, and become its driver.

        Args:
            progress: (done, total) bytes of what goes to a bucket.

        Returns:
            the run of another process, where that has used the key meanwhile.

        Raises:
            TrmcloudError: whatever keeps it from being launched; nothing is rented then.
        """
        context, ready = self.context, prepared.ready
        preparing.upload_data(context, ready, progress)
        try:
            return start(
                context,
                ready.plan,
                data=ready.data,
                initial_weights=ready.initial_weights,
                detached=self.wish.request.detach,
                name=self.labels.name,
                tags=self.labels.tags,
                key=self.labels.key,
                request=self.labels.request,
            )
        except KeyUsed as used:
            return self.earlier() or Earlier(run_by_id(context, used.run_id))


# -- checks ----------------------------------------------------------------------------------------


def _require_quoted(launch: Launch, prepared: Prepared) -> None:
    """
    Raises:
        QuoteRefused, UsageError: it is not what was quoted, or costs more now.
    """
    if launch.wish.quote:
        told = launch.context, launch.planner, launch.wish.quote, prepared.plan
        quotes.require_same(*told, launch.stopped)


def _require_cap(launch: Launch, prepared: Prepared) -> None:
    """
    Raises:
        BudgetRefused: nobody is asked, and there is no limit.
    """
    check_capped(launch.context, prepared.plan, confirmed=launch.caller.confirms)


def _require_grant(launch: Launch, prepared: Prepared) -> None:
    """
    Raises:
        GrantRefused: the principal's grant does not pay for it.
    """
    grants.require_allowed(launch.context, prepared.plan)


def _require_machine(launch: Launch, prepared: Prepared) -> None:
    """
    Raises:
        NotSupported: it would start a command here for a client who may be another user.
    """
    require_own_machine(prepared.plan, uses_machine=launch.caller.uses_machine)


def _require_rehearsal(launch: Launch, prepared: Prepared) -> None:
    """
    Raises:
        TrialFailed, GrantRefused: an agent's command was not tried, or its trial failed; a recipe
            breaks a promise where it is simulated.
    """
    plan, asked, terms = prepared.plan, launch.wish.asked, prepared.terms
    if not launch.caller.is_agent:
        return
    if plan.spec.command is None or asked is None:
        launch.simulate(plan)
        return
    words = first_words(plan, terms) if terms is not None else asked.words
    quotes.require_tried(launch.context, plan, Path(prepared.ready.data.code), words)


CHECKS: tuple[Callable[[Launch, Prepared], None], ...] = (
    _require_quoted, _require_cap, _require_grant, _require_machine, _require_rehearsal,
)  # fmt: skip
"""Each looks at a prepared launch; together with ``preparing``'s, which need no data, they are all
that a door asks before it begins."""


def _silenced(context: Context, asked: CommandRequest | None) -> CommandRequest | None:
    """A principal's command counts as hung after no longer than its grant lets a run idle: its pod
    sees to that without any process here."""
    if asked is None or not context.caller.principal:
        return asked
    idle_s = next((each.idle_s for each in grants.grants(context)), 0.0)
    return replace(asked, silent=min(asked.silent, idle_s)) if idle_s else asked


def require_names(request: LaunchRequest) -> None:
    """
    Raises:
        NotSupported: what is named would be read from this machine as the ledger's owner, for a
            client who may be another user.
    """
    for name in _NAMES:
        given = str(getattr(request, name) or "")
        if given and (not _PLAIN_NAME.fullmatch(given) or Path(given).exists()):
            raise NotSupported(
                f"{name}: a file or folder is refused: it would be read as the ledger's owner",
                next_step="use one that goes by a name: trmcloud data list",
            )


def run_of_key(context: Context, key: str) -> RunState | None:
    """Return the run that was launched with this idempotency key; None where there is none."""
    return bookkeeping.run_of_key(context.ledger.read(), key)
