"""How a run stands now, in sentences: what is in its way, what it waits for, how it ended, when it
stops."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.controller import WaitState
from trmcloud.core.control.events import BalanceLow
from trmcloud.core.control.reason import MEANINGS, OF_KINDS, kind_of
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.durations import duration
from trmcloud.core.errors import HostKeyChanged, LedgerError, Outcome
from trmcloud.core.spec.spec import IGNORE
from trmcloud.core.values import Value
from trmcloud.operations.context import Context
from trmcloud.operations.reasons import FOLLOWS, low_balance, sentence
from trmcloud.operations.run_queries import (
    boot_trouble,
    bucket_trouble,
    is_listed_as_running,
    link_trouble,
    waits_for,
)

LINK, BUCKET, BOOT_LOG, BALANCE = "link", "bucket", "pod's log", "balance"
UNREAD, UNFORESEEN = "unread", "unforeseen"
LASTING = frozenset({BOOT_LOG, BALANCE, UNREAD, UNFORESEEN})
"""Conditions that come and go: once told, each is told again only with other words."""
_LINK_AFTER_S = 6.0
"""A connection that drops is opened again at once; one that fails for longer is worth a line."""
_WAIT_AFTER_S = 5.0
"""A provider takes a moment to list what it made."""
_BEFORE_A_POD = (State.RESERVED, State.RENTING)


class Condition(Value):
    """Something in a run's way. ``text`` is a sentence, ``more`` what to try.

    It is the same one as long as ``key`` stays, and is worth a line once it has lasted for
    ``after_s``, counted from the beginning of the condition ``of`` where that is named.
    """

    name: str
    text: str
    key: str = ""
    after_s: float = 0.0
    more: str = ""
    of: str = ""


def conditions_of(context: Context, run: RunState, now: float) -> list[Condition]:
    """All that is in a live run's way now, as far as this process knows."""
    found = [*_link(context, run, now)]
    error = context.troubles.get(run.run_id)
    if error is not None:
        said = f"unexpected {type(error).__name__}: {error}"
        if isinstance(error, LedgerError):
            said = f"{error}; retrying, nothing new is started"
        text = f"{said}; its pod still ends at its hard stop"
        found.append(Condition(UNFORESEEN, text))
    if boot := boot_trouble(context, run):
        text = f"the provider's log of the pod: {boot}"
        found.append(Condition(BOOT_LOG, text, boot))
    if bucket := bucket_trouble(context, run):
        found.append(Condition(BUCKET, f"{bucket}; retrying", bucket))
    provider = run.generation.provider if run.generation is not None else ""
    reading = context.machines.balances.last(provider)
    if reading is not None and reading.trouble:
        text = f"the {provider} balance could not be read, retrying: {reading.trouble}"
        found.append(Condition(UNREAD, text))
    with suppress(LedgerError):  # that is a condition of its own
        low = low_balance_of(context, run)
        if low is not None and run.balance_policy != IGNORE:
            key = f"{low.hours} {low.read_at}"
            found.append(Condition(BALANCE, low_balance(low, now), key))
    waiting = waits_for(context, run)
    if waiting is not None and run.state in _BEFORE_A_POD:
        # The number of requests counts on: it makes no other wait.
        facts = sorted((k, v) for k, v in waiting.what.facts.items() if k != "asked")
        name = f"waits for {waiting.what.kind.value} {facts}"
        text = f"waits for {waiting_words(waiting, now)}"
        found.append(Condition(name, text, after_s=_WAIT_AFTER_S))
    return found


def _link(context: Context, run: RunState, now: float) -> list[Condition]:
    trouble = link_trouble(context, run)
    if trouble is None:
        return []
    stranger, boots = isinstance(trouble, HostKeyChanged), run.state is State.BOOTING
    after_s, then = 0.0 if stranger else _LINK_AFTER_S, "its agent still runs and ends it in time"
    if boots:
        waiting = waits_for(context, run)
        until_at = waiting.until_at if waiting is not None else None
        then = f"retrying for {duration((until_at or now) - now)}, then the pod is ended"
        if stranger:
            then = "if this lasts for a minute, the pod is ended"
    text = f"{'' if stranger else 'the pod does not answer: '}{trouble}; {then}"
    # While it boots nothing else is told: there each new trouble has its line.
    key, more = (trouble.what, trouble.next_step) if boots else ("", "")
    found = [Condition(LINK, text, key, after_s, more=more)]
    if run.state is State.RUNNING and not is_listed_as_running(context, run):
        gone = "its provider no longer lists it as running"
        found.append(Condition("listed", gone, after_s=after_s, of=LINK))
    return found


def low_balance_of(context: Context, run: RunState) -> BalanceLow | None:
    """Return the warning on record of the balance that a live run's machine is paid from."""
    generation = run.generation
    if not run.live or generation is None or not generation.open:
        return None
    return context.ledger.read().low_balances.get(generation.provider)


def waiting_words(waiting: WaitState, now: float) -> str:
    """``runpod to list the pod …; 9 min 40 s more, then it counts as never made``."""
    what = sentence(waiting.what)
    if waiting.until_at is None:
        return what
    return f"{what}; {duration(waiting.until_at - now)} more, then {FOLLOWS[waiting.what.kind]}"


# -- the end -------------------------------------------------------------------------------------
SMOKE = "smoke"
"""The recipe of a smoke run."""
_MEANINGS: Mapping[Outcome, str] = {
    Outcome.FINISHED: "its pod was checked, and has ended",
    Outcome.STOPPED: "its pod was ended on request",
    Outcome.LANDED: "its pod has ended in time",
    Outcome.KILLED: "its pod has ended at its hard stop",
    Outcome.LOST: "its pod has ended",
    Outcome.FAILED: "its pod could not be set up, and has ended",
}
"""Nothing is trained in a smoke run, and nothing saved."""


def meaning_of(run: RunState, outcome: Outcome) -> str:
    """Describe an outcome of this run in a sentence."""
    kind = kind_of(run.spec)
    own = _MEANINGS.get(outcome) if run.spec.recipe == SMOKE else OF_KINDS[kind].get(outcome)
    if own is None and outcome is Outcome.LOST and never_heard(run):
        return "no machine of the run ever reported: nothing was trained"
    if outcome is Outcome.FINISHED and any(
        account.outcome == "stopped_paying" for account in run.phases.values()
    ):
        return "stopped by its rule, because more steps no longer paid; evaluated and saved"
    return own or MEANINGS[outcome]


def never_heard(run: RunState) -> bool:
    """Whether machines were rented, and the agent of none of them was ever reached."""
    rented = [generation for generation in run.generations if generation.up_at is not None]
    return bool(rented) and all(generation.agent_at is None for generation in rented)


# -- the clock ------------------------------------------------------------------------------------
_SECONDS_WITHIN_S = 900.0


def clock_words(run: RunState, beat: Heartbeat | None, now: float) -> str:
    """``asks to stop at 14:02 (budget), killed at 14:05``, in this machine's time zone: when the
    trainer of a live run is asked to land, by what limit, and when its machine is ended; empty
    where it has none."""
    generation = run.generation
    if not run.live or generation is None or not generation.open:
        return ""
    killed = f"killed at {_time(generation.hard_stop_at, now)}"
    if run.stop is not None:
        how = "ends at once" if run.stop.at_once else "stops and saves now"
        return f"{how} ({sentence(run.stop.reason)}), {killed}"
    if beat is not None and beat.state == "ended":
        return killed
    at, limit = stops_at(run, beat)
    return f"asks to stop at {_time(at, now)} ({limit}), {killed}"


def stops_at(run: RunState, beat: Heartbeat | None) -> tuple[float, str]:
    """Return when the trainer is asked to stop (epoch s), and by which limit."""
    machine, spec = run.generation, run.spec
    assert machine is not None
    at, lasts_s = machine.soft_stop_at, machine.hard_stop_at - machine.intended_at
    limit = "budget" if machine.rate and (spec.budget is not None or spec.fills) else "time limit"
    latency_s = traits_of(machine.provider).kill_latency_s + 60.0
    if machine.legacy.first_stop_at is not None:
        limit = "set earlier for another run"
    elif machine.limit_at > machine.hard_stop_at:
        limit = "the time that is reserved"
    elif spec.deadline_at is not None and machine.hard_stop_at >= spec.deadline_at - latency_s:
        limit = "deadline"
    elif spec.hours is not None and lasts_s >= spec.hours * 3600.0:
        limit = "hours"
    if spec.hours is not None and spec.command is not None and beat is not None:
        hours_at = beat.at + spec.hours * 3600.0 - sum(beat.seconds.values())
        at, limit = min((at, limit), (hours_at, "hours"))
    return at, limit


def _time(at: float, now: float) -> str:
    """The time of day, with a date where that is another day, and seconds where they count."""
    time_of_day = "%H:%M:%S" if at - now < _SECONDS_WITHIN_S else "%H:%M"
    then, today = time.localtime(at), time.localtime(now)
    day = "" if then[:3] == today[:3] else "%Y-%m-%d "
    return time.strftime(f"{day}{time_of_day}", then)
