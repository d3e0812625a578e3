"""Budgets at four levels: reservations, room, and accepted exposure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from functools import cached_property

from trmcloud.core.catalog.providers import ProviderTraits
from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.control import events as ev
from trmcloud.core.control.grants import GrantBook, money_of, month_of
from trmcloud.core.control.ledger_facts import (
    Grant,
    LedgerFacts,
    Quarantine,
    RestoredCopy,
    StrayPod,
    holds,
    rents_volume,
)
from trmcloud.core.control.run_book import POD, RunBook, changed_copy, find_runs, with_run
from trmcloud.core.control.run_state import IllegalTransition, RunState, State, apply_event
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import Value, replace

# Exposure: what could be spent while nothing of ours can act, and who has to accept it.
#
# A rented pod whose agent has failed, seen from a laptop that is off, is ended by nobody. So a
# launch asks for two kill layers that do not depend on this machine, each seen to work for the
# account not long ago; or for the user's word, in dollars. A cluster is billed for minutes before
# its own layers are set up: so one of the two must work from its creation on. Where nothing shows
# what a provider bills an hour, the rent itself has no cap, and only the user's word will do.

LAYERS_NEEDED = 2
VERIFIED_FOR_S = 30 * 86_400.0


class Exposure(Value):
    """Which independent layers count now, and which could but do not."""

    verified: tuple[str, ...]
    unverified: tuple[str, ...]
    begins_exposed: bool
    """Whether there are some that count, and none of them would end a machine that is not set up
    yet."""

    @property
    def enough(self) -> bool:
        return len(self.verified) >= LAYERS_NEEDED and not self.begins_exposed


def exposure_of(
    traits: ProviderTraits, verified: Mapping[tuple[str, str], float], now: float
) -> Exposure:
    """Return the state of a provider's independent layers at ``now``.

    ``verified`` is (provider, layer) → when it was last seen to work, in epoch seconds.
    """
    fresh: list[str] = []
    stale: list[str] = []
    for layer in traits.layers.independent:
        at = verified.get((traits.name, layer))
        counts = at is not None and now - at <= VERIFIED_FOR_S
        (fresh if counts else stale).append(layer)
    later = bool(fresh) and set(fresh) <= set(traits.layers.armed_later)
    return Exposure(tuple(fresh), tuple(stale), later)


class UnacceptedExposure(Value):
    """The exposure of a launch that was not accepted: ``rate`` USD/h at ``provider``.

    ``verified``: the layers that count, where they are too few or begin too late; None where they
    are enough.
    """

    provider: str
    rate: Usd
    is_capped: bool
    """Whether something shows what an hour is billed, which is its cap."""
    verified: tuple[str, ...] | None
    begins_exposed: bool = False
    """See ``Exposure``."""


def unaccepted_exposure(
    traits: ProviderTraits,
    verified: Mapping[tuple[str, str], float],
    rate: Usd,
    accepted: Usd | None,
    now: float,
) -> UnacceptedExposure | None:
    """Why a launch must not be; None where it may.

    Hardware that is this machine itself exposes nothing: it costs no one's rent. What a user
    accepts must cover an hour's rate, the least in which a person would notice.
    """
    if not traits.rented:
        return None
    exposure = exposure_of(traits, verified, now)
    asked = accepted is None or accepted < rate
    if not asked or (exposure.enough and traits.prices.shows_rate):
        return None
    too_few = None if exposure.enough else exposure.verified
    return UnacceptedExposure(
        traits.name, rate, traits.prices.shows_rate, too_few, exposure.begins_exposed
    )


# Budgets at five levels: account, month, project, a project's month, and run.
#
# At every level that has a cap, settled + reserved ≤ cap, always. A run's reservation and what it
# settles count towards the month in which its latest reservation was made, so that a run across
# midnight is not held against two months.

PROJECT_MONTH = "project-month"
_MONTHS_NAME = re.compile(r"(?<=.) [0-9]{4}-(0[1-9]|1[0-2])\Z", re.DOTALL)
LEVELS = ("account", "month", "project", PROJECT_MONTH, "run")
GRANT = "grant"
"""The level of a principal's grant, which stands beside those and is given, not set."""


def project_month(project: str, month: str) -> str:
    """The key of a project's month: ``vision 2026-11``. Its cap may be kept under the project's
    name alone: it is then that of each month."""
    return f"{project} {month}"


def is_project_month(key: str) -> bool:
    """Whether a key of that level names a month, too."""
    return _MONTHS_NAME.search(key) is not None


class Line(Value):
    """One budget: ``remaining`` is None where it has no cap."""

    level: str
    key: str
    cap: Usd | None
    settled: Usd
    reserved: Usd
    strays: Usd = ZERO
    """The share of both that is held by pods without an owner."""
    unproven: Usd = ZERO
    """Of both, what stands there at most: bills that are not final yet."""
    volumes: Usd = ZERO
    """Of both, what network volumes hold that have outlived their pods."""
    quarantined: Usd = ZERO
    """Of what is reserved, what runs with damaged records hold at the most."""

    @property
    def remaining(self) -> Usd | None:
        return None if self.cap is None else self.cap - self.settled - self.reserved

    @cached_property
    def over(self) -> Usd:
        """The amount by which it exceeds its cap."""
        left = self.remaining
        return -left if left is not None and left < ZERO else ZERO


class Refusal(Value):
    """Why money cannot be reserved: the level that lacks it."""

    line: Line
    asked: Usd

    def __str__(self) -> str:
        line = self.line
        name = line.level if line.level in ("account",) else f"{line.level} {line.key}"
        return (
            f"{self.asked} does not fit the {name} budget of {line.cap}: "
            f"{line.settled} spent, {line.reserved} reserved, {line.remaining} left"
        )


class RunSums(Value):
    """What the runs of one budget have settled and reserved, by themselves."""

    settled: Usd
    reserved: Usd
    unproven: Usd
    renting_volumes: int
    """The number of runs that rent a volume."""

    def moved(self, before: RunState | None, after: RunState | None) -> RunSums:
        """The sums with ``after`` in the place of ``before``; None where the run does not count."""
        settled, reserved, unproven = self.settled, self.reserved, self.unproven
        renting = self.renting_volumes
        if before is not None:
            settled -= before.settled
            reserved -= before.reserved
            unproven -= before.unbilled
            renting -= rents_volume(before)
        if after is not None:
            settled += after.settled
            reserved += after.reserved
            unproven += after.unbilled
            renting += rents_volume(after)
        return RunSums(settled, reserved, unproven, renting)


NO_RUNS = RunSums(ZERO, ZERO, ZERO, 0)


class LedgerState(LedgerFacts):
    """Everything a ledger says, and the budgets that follow from it."""

    def line(self, level: str, key: str) -> Line:
        """The budget of ``level`` for ``key`` (an account's and a default month's key is '')."""
        known = self._lines.get((level, key))
        if known is None:
            known = self._lines[level, key] = self._line(level, key)
        return known

    @cached_property
    def _lines(self) -> dict[tuple[str, str], Line]:
        return {}

    @cached_property
    def _kept_within(self) -> set[str]:
        """Runs of which is known that no level is overdrawn, whenever that is asked."""
        return set()

    @cached_property
    def _known_sums(self) -> dict[tuple[str, str], RunSums]:
        """Sums over runs that were asked for, of this state or of one before it."""
        return {}

    def know_sums(self, project: str, month: str) -> None:
        """Compute the sums that bind a reservation, so that states after this one know them."""
        for level, key in (("account", ""), ("month", month), ("project", project)):
            self._sums(level, key)
        if self.cap_of(PROJECT_MONTH, key := project_month(project, month)) is not None:
            self._sums(PROJECT_MONTH, key)

    def _sums(self, level: str, key: str) -> RunSums:
        if level == "run":
            run = self.runs.get(key)
            return NO_RUNS if run is None else NO_RUNS.moved(None, run)
        known = self._known_sums.get((level, key))
        if known is None:
            known = self._known_sums[level, key] = _sums_of(self.runs, level, key)
        return known

    def _line(self, level: str, key: str) -> Line:
        sums = self._sums(level, key)
        settled, reserved, unproven = sums.settled, sums.reserved, sums.unproven
        volumes = ZERO
        for hold in holds(self) if sums.renting_volumes else ():
            run = self.runs[hold.run_id]
            if rents_volume(run) and counts_towards(run, level, key):
                volumes += hold.amount
                settled += hold.amount if hold.deleted_at is not None else ZERO
                reserved += hold.amount if hold.deleted_at is None else ZERO
        strays = ZERO
        for stray in self.strays.values() if self.strays else ():
            if self._burdens(stray, level, key):
                strays += stray.cost
                settled += stray.billed or ZERO
                reserved += stray.amount if stray.billed is None else ZERO
                unproven += stray.amount if stray.billed is None else ZERO
        quarantined = ZERO
        for hurt in self.quarantined.values() if self.quarantined else ():
            if not _holds(hurt, level, key):
                continue
            if hurt.settled is not None:
                settled += hurt.settled
            elif hurt.most is not None:
                reserved += hurt.most
                unproven += hurt.most
                quarantined += hurt.most
        cap = self.cap_of(level, key)
        return Line(level, key, cap, settled, reserved, strays, unproven, volumes, quarantined)

    def strays_of(self, run_id: str) -> tuple[StrayPod, ...]:
        return tuple(stray for stray in self.strays.values() if stray.run_id == run_id)

    def _burdens(self, stray: StrayPod, level: str, key: str) -> bool:
        if level == "month":
            return month_of(stray.at) == key
        if level == "project":
            return stray.run_id in self.runs and self.runs[stray.run_id].project == key
        if level == PROJECT_MONTH:
            project, _, month = key.rpartition(" ")
            return self._burdens(stray, "project", project) and month_of(stray.at) == month
        return level == "account" or stray.run_id == key

    def cap_of(self, level: str, key: str) -> Usd | None:
        """The cap of one budget, None where it has none."""
        if level == "run":
            return self.runs[key].cap if key in self.runs else None
        cap = self.caps.get((level, key))
        if cap is None and level == PROJECT_MONTH:
            return self.caps.get((level, key.rpartition(" ")[0]))
        return self.caps.get((level, "")) if cap is None and level == "month" else cap

    def lines_for(self, project: str, at: float) -> tuple[Line, ...]:
        """The account's, the month's and the project's budgets that bind a reservation now, and
        that of the project's month where it has a cap."""
        of_month = project_month(project, month_of(at))
        is_capped = self.cap_of(PROJECT_MONTH, of_month) is not None
        return (
            self.line("account", ""),
            self.line("month", month_of(at)),
            self.line("project", project),
            *((self.line(PROJECT_MONTH, of_month),) if is_capped else ()),
        )

    def has_cap(self, project: str, at: float) -> bool:
        return any(line.cap is not None for line in self.lines_for(project, at))


def fold_ledger(ledger_id: str, records: Iterable[ev.Record]) -> LedgerState:
    """The ledger's state after ``records``, in their order.

    Raises:
        IllegalTransition: a record that cannot follow those before it.
    """
    return extend_ledger(LedgerState(ledger_id), records)


def extend_ledger(ledger: LedgerState, records: Iterable[ev.Record]) -> LedgerState:
    """The state after further ``records``; ``ledger`` itself is unchanged.

    Raises:
        IllegalTransition: a record that cannot follow those before it.
    """
    runs = changed_copy(ledger.runs)
    caps = dict(ledger.caps)
    history = list(ledger.cap_history)
    verified = dict(ledger.verified)
    strays = dict(ledger.strays)
    restored = ledger.restored
    deleted = dict(ledger.deleted_volumes)
    tokens, data = dict(ledger.tokens), dict(ledger.data)
    quarantined, unread = dict(ledger.quarantined), ledger.unread
    low_balances = dict(ledger.low_balances)
    grants = GrantBook.of(ledger)
    changed: set[str] = set()
    reserved: set[tuple[str, str]] = set()
    for record in records:
        event = record.event
        if not isinstance(event, ev.LedgerEvent):
            changed.add(record.run_id)
            _of_a_run(runs, strays, grants.grants, record)
            if isinstance(event, ev.Reserved):
                reserved.add((runs[record.run_id].project, month_of(record.at)))
        elif isinstance(event, ev.GrantEvent):
            grants.add(record, event)
        elif isinstance(event, ev.CapSet):
            history.append(record)
            if event.cap is None:
                caps.pop((event.level, event.key), None)
            else:
                caps[(event.level, event.key)] = event.cap
        elif isinstance(event, ev.LayerVerified):
            verified[(event.provider, event.layer)] = record.at
        elif isinstance(event, ev.StrayCharged | ev.StrayBilled) and is_owned(runs, event.pod_id):
            pass  # its run owns it, even where that could not be read then, and settles it
        elif isinstance(event, ev.StrayCharged | ev.StrayBilled):
            strays[(event.provider, event.pod_id)] = _with_stray(strays, event, record.at)
        elif isinstance(event, ev.VolumeDeleted):
            place = event.provider, event.place
            deleted[place] = (*deleted.get(place, ()), record.at)
        elif isinstance(event, ev.TokensPinned):
            tokens[event.bucket, event.key] = _with_pins(tokens, event)
        elif isinstance(event, ev.DataPinned):
            data[event.source] = event
        elif isinstance(event, ev.BalanceLow):
            low_balances.pop(event.provider, None)
            if event.hours:
                low_balances[event.provider] = event
        elif isinstance(event, ev.LedgerRestored):
            restored = RestoredCopy(record.at, event.since)
        elif isinstance(event, ev.LedgerReconciled):
            if restored is None or restored.reconciled_at is not None:
                raise IllegalTransition(
                    "the ledger was not restored: there is nothing to reconcile"
                )
            restored = replace(restored, reconciled_at=record.at)
        elif isinstance(event, ev.DamageSettled):
            unread = tuple(lost for lost in unread if lost.name != event.of)
            hurt = quarantined.get(event.of)
            if hurt is not None:
                told = replace(hurt, settled=event.amount, settled_at=record.at)
                quarantined[event.of] = told
    after = LedgerState(
        ledger.ledger_id,
        runs,
        caps,
        tuple(history),
        verified,
        strays,
        restored,
        deleted,
        tokens,
        data,
        quarantined,
        unread,
        low_balances,
        grants.grants,
        grants.approvals,
        grants.history,
    )
    if ledger.runs:  # the first read is of all runs at once, and most commands reserve nothing
        for project, month in reserved:
            ledger.know_sums(project, month)
    return _with_sums(ledger, after, changed)


def _with_pins(
    tokens: Mapping[tuple[str, str], tuple[CachedFile, ...]], event: ev.TokensPinned
) -> tuple[CachedFile, ...]:
    """A slot's first pin stays: a later one of the same slot changes nothing."""
    before = tokens.get((event.bucket, event.key), ())
    slots = {file.slot for file in before}
    return (*before, *(file for file in event.files if file.slot not in slots))


def with_run_event(ledger: LedgerState, record: ev.Record) -> LedgerState:
    """The state after one more event of a run.

    Raises:
        IllegalTransition: it is none of a run's, or cannot follow those before it.
    """
    runs, strays = changed_copy(ledger.runs), dict(ledger.strays)
    _of_a_run(runs, strays, ledger.grants, record)
    if isinstance(record.event, ev.Reserved):
        ledger.know_sums(runs[record.run_id].project, month_of(record.at))
    return _with_sums(ledger, replace(ledger, runs=runs, strays=strays), (record.run_id,))


def _with_sums(before: LedgerState, after: LedgerState, changed: Iterable[str]) -> LedgerState:
    """``after``, with the sums that ``before`` knows moved on: they differ in the ``changed`` runs,
    and a sum over all would take as long as there are runs, for each reservation."""
    if before._known_sums:
        pairs = [(before.runs.get(run_id), after.runs.get(run_id)) for run_id in changed]
        for (level, key), sums in before._known_sums.items():
            after._known_sums[level, key] = _moved(sums, pairs, level, key)
    return after


def _of_a_run(
    runs: MutableMapping[str, RunState] | RunBook,
    strays: dict[tuple[str, str], StrayPod],
    grants: Mapping[str, Grant],
    record: ev.Record,
) -> None:
    """A pod that a run comes to own is no stray any more: its run settles it."""
    run = apply_event(runs.get(record.run_id) or RunState(record.run_id), record)
    if run.payer.principal and isinstance(record.event, ev.RunPlanned | ev.Reopened):
        grant = grants.get(run.payer.principal)
        run = replace(run, payer=grant.payer) if grant is not None else run
    runs[record.run_id] = run
    if isinstance(record.event, ev.PodUp):
        owner = run.generations[record.event.generation - 1]
        strays.pop((owner.provider, record.event.pod_id), None)


def owned_pods(runs: Mapping[str, RunState], pod_ids: Iterable[str]) -> set[str]:
    """Those pods of ``pod_ids`` that some run has come to know as its own."""
    if isinstance(runs, RunBook):
        return {pod_id for pod_id in pod_ids if is_owned(runs, pod_id)}
    known = {g.pod_id for run in runs.values() for g in run.generations}
    return {pod_id for pod_id in pod_ids if pod_id in known}


def is_owned(runs: Mapping[str, RunState], pod_id: str) -> bool:
    """Whether some run has come to know this pod as its own."""
    mine = find_runs(runs, POD, pod_id)
    return any(pod_id == g.pod_id for run in mine for g in run.generations)


def _with_stray(
    strays: Mapping[tuple[str, str], StrayPod], event: ev.StrayCharged | ev.StrayBilled, at: float
) -> StrayPod:
    before = strays.get((event.provider, event.pod_id))
    if before is not None and before.billed is not None:
        raise IllegalTransition(f"{event.pod_id} already has its final bill")
    if isinstance(event, ev.StrayBilled):
        if before is None:
            raise IllegalTransition(f"{event.pod_id} was never charged")
        return replace(before, billed=event.amount)
    if before is not None and event.amount <= before.amount:
        raise IllegalTransition(f"{event.pod_id} is already charged with {before.amount}")
    return StrayPod(
        provider=event.provider,
        pod_id=event.pod_id,
        pod_name=event.pod_name,
        run_id=event.run_id,
        since=event.since,
        at=at if before is None else before.at,
        amount=event.amount,
        charged_at=at,
    )


def admit(ledger: LedgerState, run: RunState, amount: Usd, at: float) -> Refusal | None:
    """Return the refusal to reserve ``amount`` for ``run`` now; None means that it may be reserved.

    The run's own open reservation, if any, is replaced by ``amount``, not added to it.
    """
    mine = replace(run, reserved=ZERO, reserved_at=at)
    book = replace(ledger, runs=with_run(ledger.runs, mine))
    book = _with_sums(ledger, book, (run.run_id,))
    for line in (*book.lines_for(run.project, at), book.line("run", run.run_id)):
        if line.remaining is not None and amount > line.remaining:
            return Refusal(line, amount)
    return None


def overdrawn(ledger: LedgerState, run: RunState, at: float) -> tuple[Line, ...]:
    """The levels whose cap is below what is spent and reserved on them.

    The month is the one in which the run's money was reserved: it counts in no other.
    """
    known = ledger.runs.get(run.run_id) is run
    if known and run.run_id in ledger._kept_within:
        return ()
    reserved_at = run.reserved_at or at
    lines = []
    for level, key in (
        ("account", ""),
        ("month", month_of(reserved_at)),
        ("project", run.project),
        (PROJECT_MONTH, project_month(run.project, month_of(reserved_at))),
        ("run", run.run_id),
    ):
        if ledger.cap_of(level, key) is None:
            continue  # asked at every look, and most levels have none
        line = ledger.line(level, key)
        # What a damaged record may hold at the most is no reason to end a run that is sound.
        if line.over > line.quarantined:
            lines.append(line)
    payer = run.payer
    of_grant = grant_line(ledger, payer.principal, payer.grant) if payer.principal else None
    if of_grant is not None and of_grant.over > of_grant.quarantined:
        lines.append(of_grant)
    if known and not lines and run.reserved_at:
        ledger._kept_within.add(run.run_id)
    return tuple(lines)


def grant_line(ledger: LedgerState, principal: str, number: int | None = None) -> Line | None:
    """Return the budget of a principal's grant; None where they have none, or not one of that
    number."""
    grant = ledger.grants.get(principal)
    if grant is None or number not in (None, grant.number):
        return None
    held = money_of(ledger, grant)
    return Line(
        GRANT,
        principal,
        grant.terms.total,
        held.settled,
        held.reserved,
        held.strays,
        held.unproven,
        held.volumes,
        held.quarantined,
    )


def _holds(hurt: Quarantine, level: str, key: str) -> bool:
    """Whether a run in quarantine burdens this budget: it does where that cannot be told."""
    if level == "month":
        return hurt.reserved_at is None or month_of(hurt.reserved_at) == key
    if level == "project":
        return hurt.project is None or hurt.project == key
    if level == PROJECT_MONTH:
        project, _, month = key.rpartition(" ")
        return _holds(hurt, "project", project) and _holds(hurt, "month", month)
    return level == "account" or hurt.run_id == key


def _sums_of(runs: Mapping[str, RunState], level: str, key: str) -> RunSums:
    if isinstance(runs, RunBook):
        settled, reserved, unproven, renting = runs.archive.sums(level, key)
        micros = Usd.from_micros
        sums = RunSums(micros(settled), micros(reserved), micros(unproven), renting)
        pairs = [(runs.before(run_id), run) for run_id, run in runs.changed.items()]
        return _moved(sums, pairs, level, key)
    return _moved(NO_RUNS, [(None, run) for run in runs.values()], level, key)


def _moved(
    sums: RunSums, pairs: Iterable[tuple[RunState | None, RunState | None]], level: str, key: str
) -> RunSums:
    """``sums`` with each pair's second run in the place of its first."""
    for pair in pairs:
        counted = [
            run if run is not None and counts_towards(run, level, key) else None for run in pair
        ]
        sums = sums.moved(*counted)
    return sums


def summed(
    sums: Mapping[tuple[str, str], RunSums], pairs: Iterable[tuple[RunState | None, RunState]]
) -> dict[tuple[str, str], RunSums]:
    """The sums of all budgets with each pair's second run in the place of its first."""
    after = dict(sums)
    for before, run in pairs:
        for each in budgets_of(before) if before is not None else ():
            after[each] = after.get(each, NO_RUNS).moved(before, None)
        for each in budgets_of(run):
            after[each] = after.get(each, NO_RUNS).moved(None, run)
    return after


def budgets_of(run: RunState) -> tuple[tuple[str, str], ...]:
    """(level, key) of each budget that the run counts towards, beside its own. A level that is
    added here is summed in every ledger; see ``RunSums``."""
    if run.state is State.NEW:
        return ()
    always = ("account", ""), ("project", run.project)
    if run.reserved_at <= 0:
        return always
    month = month_of(run.reserved_at)
    return (*always, ("month", month), (PROJECT_MONTH, project_month(run.project, month)))


def counts_towards(run: RunState, level: str, key: str) -> bool:
    return run.run_id == key if level == "run" else (level, key) in budgets_of(run)
