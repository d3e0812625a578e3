"""The actions on a run and the most that each costs, shown before it is done."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.app import volume_fetch
from trmcloud.app.checkpoints.inventory import checkpoints_of
from trmcloud.app.checkpoints.saving import why_not_saved
from trmcloud.app.context import Context
from trmcloud.app.run_facts import Money, Training, money_of, training_of
from trmcloud.app.run_queries import last_beat
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import Outcome, TrmcloudError, UsageError
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.values import dataclass

LAND, SAVE, STOP, FETCH, RAISE = VERBS = ("land", "save", "stop", "fetch", "raise")
RESUMABLE = (
    Outcome.STOPPED, Outcome.LANDED, Outcome.KILLED, Outcome.LOST, Outcome.UNREPORTED,
    Outcome.FAILED, Outcome.NEXT_PHASE_REFUSED,
)  # fmt: skip
"""Ends after which there may be something left to train."""


@dataclass(frozen=True)
class Foreseen:
    """The forecast of one of ``VERBS`` on a run, as of now.

    ``at_most`` is the most that it spends from now on, all of it within ``cap``; ``freed`` is what
    of the reservation it gives back at least. ``lost_steps`` were trained and are not saved, at a
    cost of ``lost``. ``seconds`` is how long it takes at most. ``refused``: why it cannot be done
    now; empty where it can.
    """

    verb: str
    run: str
    refused: str = ""
    at_most: Usd = ZERO
    freed: Usd = ZERO
    cap: Usd = ZERO
    lost_steps: int = 0
    lost: Usd = ZERO
    seconds: float = 0.0
    what: str = ""
    """Of a fetch, the checkpoint; of a fetch that rents a machine, its hardware behind it."""
    rents: str = ""


def foresee(
    context: Context,
    run: RunState,
    verb: str,
    *,
    cap: Usd | None = None,
    offers: Sequence[Offer] = (),
    disk_rate: Usd = ZERO,
) -> Foreseen:
    """``cap``: the run's whole budget that a raise would set; None: half as much again.
    ``offers``: what can be rented, for a fetch from a volume without a pod.

    Raises:
        UsageError: no such verb.
    """
    money, beat = money_of(context, run), last_beat(context, run)
    training = training_of(run, beat) if beat is not None else None
    if verb == LAND:
        return _land(run, money, training)
    if verb == STOP:
        return _stop(run, money, training)
    if verb == SAVE:
        return _save(context, run, money, training)
    if verb == FETCH:
        return _fetch(context, run, offers, disk_rate)
    if verb == RAISE:
        return _raise(context, run, cap)
    raise UsageError(f"nothing is done by {verb!r}", next_step=", ".join(VERBS))


def _ended(run: RunState) -> str:
    return f"it has ended: {run.outcome.value if run.outcome else run.state.value}"


def _within(run: RunState, money: Money, amount: Usd) -> Usd:
    """No more than what is still held for it: the hard stop sees to that."""
    return min(amount, max(ZERO, run.cap - money.proven))


def _land(run: RunState, money: Money, training: Training | None) -> Foreseen:
    if not run.live:
        return Foreseen(LAND, run.run_id, _ended(run))
    if run.stop is not None:
        return Foreseen(LAND, run.run_id, "it was told to already")
    generation = run.generation
    if generation is None or not generation.open:
        return Foreseen(LAND, run.run_id, freed=run.reserved, cap=run.cap)
    chosen = run.candidate(generation.candidate_id)
    landing_s = chosen.landing_s if chosen is not None else 0.0
    if training is not None and training.landing_s is not None:
        landing_s = max(landing_s, training.landing_s)
    traits = traits_of(generation.provider)
    seconds = landing_s + traits.end_grace_s + traits.kill_latency_s
    at_most = _within(run, money, cost(money.rate or ZERO, seconds))
    return Foreseen(
        LAND, run.run_id, at_most=at_most, freed=_freed(run, money, at_most), cap=run.cap,
        seconds=seconds,
    )  # fmt: skip


def _stop(run: RunState, money: Money, training: Training | None) -> Foreseen:
    if not run.live:
        return Foreseen(STOP, run.run_id, _ended(run))
    if run.stop is not None and run.stop.at_once:
        return Foreseen(STOP, run.run_id, "it was told to already")
    generation = run.generation
    if generation is None or not generation.open:
        return Foreseen(STOP, run.run_id, freed=run.reserved, cap=run.cap)
    seconds = traits_of(generation.provider).kill_latency_s
    at_most = _within(run, money, cost(money.rate or ZERO, seconds))
    steps, lost = 0, ZERO
    if training is not None:
        steps = max(0, training.step - (training.saved_step or 0))
        lost = cost(money.rate or ZERO, steps * (training.step_s or 0.0))
    return Foreseen(
        STOP, run.run_id, at_most=at_most, freed=_freed(run, money, at_most), cap=run.cap,
        lost_steps=steps, lost=lost, seconds=seconds,
    )  # fmt: skip


def _freed(run: RunState, money: Money, at_most: Usd) -> Usd:
    """Of the reservation, what neither was nor will be spent."""
    spent = money.at_most - run.settled
    return max(ZERO, run.reserved - spent - at_most)


def _save(context: Context, run: RunState, money: Money, training: Training | None) -> Foreseen:
    if why := why_not_saved(context, run):
        return Foreseen(SAVE, run.run_id, why)
    # It is evaluated, too: the trainer's own measure is of both.
    seconds = (training.landing_s or 0.0) if training is not None else 0.0
    at_most = _within(run, money, cost(money.rate or ZERO, seconds))
    return Foreseen(SAVE, run.run_id, at_most=at_most, cap=run.cap, seconds=seconds)


def _fetch(context: Context, run: RunState, offers: Sequence[Offer], disk_rate: Usd) -> Foreseen:
    known = checkpoints_of(context, run)
    chosen = next((c for c in known if c.best), next((c for c in known if c.latest), None))
    if volume_fetch.is_needed(context, run):
        if run.live:
            return Foreseen(FETCH, run.run_id, "its pod is not proven gone yet")
        try:
            made = volume_fetch.errand_for(run, offers, 0, disk_rate, context.wall())
        except TrmcloudError as error:
            return Foreseen(FETCH, run.run_id, error.what)
        return Foreseen(
            FETCH, run.run_id, at_most=made.worst_case, cap=max(run.cap, made.worst_case),
            seconds=made.hard_stop_s, rents=f"{made.hardware} at {made.rate}/h",
            what=chosen.label if chosen is not None else "",
        )  # fmt: skip
    if chosen is None and not run.live:
        return Foreseen(FETCH, run.run_id, "no checkpoint of it is known")
    if chosen is None and not any(kept.places for kept in known):
        return Foreseen(FETCH, run.run_id, "it has saved no checkpoint yet")
    return Foreseen(FETCH, run.run_id, cap=run.cap, what=chosen.label if chosen else "")


def _raise(context: Context, run: RunState, cap: Usd | None) -> Foreseen:
    if run.live:
        return Foreseen(
            RAISE, run.run_id,
            "its pod's end was fixed when it was rented: it can go on with more once it has landed",
        )  # fmt: skip
    if run.outcome not in RESUMABLE:
        return Foreseen(RAISE, run.run_id, f"there is nothing to go on with: {_ended(run)}")
    line = context.ledger.read().line("run", run.run_id)
    spent = line.settled + line.reserved
    whole = cap if cap is not None else Usd.from_micros(run.cap.micros * 3 // 2)
    if whole <= spent:
        return Foreseen(RAISE, run.run_id, f"{spent} of it is spent: name more", cap=whole)
    return Foreseen(RAISE, run.run_id, at_most=whole - spent, cap=whole)
