"""Actions on a run: what each costs at most, and what new settings change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from trmcloud.core.catalog.hardware import GPUS, LOCAL
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.manifest import CheckpointManifest, pick_latest
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    CheckpointError,
    ConflictError,
    DoesNotFit,
    Outcome,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.planner.memory import USABLE_SHARE, predict_memory
from trmcloud.core.spec.overrides import Change, decisive_changes, with_overrides
from trmcloud.core.spec.plan import Candidate, PhasePlan
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.operations.checkpoints.inventory import checkpoints_of
from trmcloud.operations.checkpoints.saving import why_not_saved
from trmcloud.operations.checkpoints.sources import sources_of
from trmcloud.operations.context import Context
from trmcloud.operations.launch import short_rentals
from trmcloud.operations.run_queries import last_beat
from trmcloud.operations.runs.run_facts import Money, Training, money_of, training_of

# Comparison of a run's new settings with those that it was trained with, before anything is
# rented.

ACCEPT = "--accept-change"
_FOR_MEMORY = frozenset({"batch", "sequence", "optimizer", "ema", "dtype", "loops"})


class ChangedSettings(Value):
    """``settings``: by phase, what takes the place of the plan's. ``accepted``: by name, [before,
    after] of what decides what is trained; None: nothing of it differs. ``processes``: so many
    train from now on; 0: as many as before."""

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accepted: Mapping[str, Any] | None = None
    processes: int = 0


def changed_settings(
    context: Context,
    run: RunState,
    typed: Sequence[tuple[str, Any]],
    *,
    accept: bool,
    processes: int = 0,
) -> ChangedSettings:
    """Return the settings with which a closed run continues: its plan's, and those ``typed``. Other
    ``processes`` share the same global batch.

    The newest checkpoint of each phase is looked up on this machine and in the run's bucket. One
    that lies on a network volume is not known here: then what the run was told to train with
    counts.

    Raises:
        UsageError: ``typed`` names what cannot change within a run; nothing is to be accepted; or
            so many processes cannot share a step's sequences, or are not this machine's to choose.
        ConflictError: the run has finished, and is given no more steps.
        CheckpointError: what was trained would go on as something else, and that is not accepted.
        DoesNotFit: with ``typed`` it needs more memory than the machine has.
        ProviderError: what was trained lies in a bucket that cannot be asked, and a difference is
            to be accepted.
    """
    candidate = next((run.candidate(name) for name in run.plan.launchable), None)
    phases = _phases_ahead(run, candidate, dict(typed)) if candidate is not None else ()
    if candidate is None or not phases:
        return ChangedSettings()
    overrides = dict(typed)
    if processes == candidate.gpus:
        processes = 0
    world_size = candidate.world_size
    if processes:
        _check_processes(run, candidate, processes)
        world_size = processes
    after = {
        phase.name: with_overrides(phase.settings, _shared(phase, candidate, processes, overrides))
        for phase in phases
    }
    if processes or _FOR_MEMORY & set(overrides):
        for phase in phases:
            _check_memory(candidate, phase.settings, after[phase.name], world_size)
    changes: dict[str, Change] = {}

    def note(before: PhaseRecipe, now: PhaseRecipe, world_before: int) -> None:
        worlds = {"world_before": world_before, "world_after": world_size}
        for change in decisive_changes(before, now, **worlds):
            changes.setdefault(change.name, change)

    trained = _trained(context, run, [phase.name for phase in phases], must_know=accept)
    for name, manifest in trained.items():
        with suppress(TypeError, ValueError, AttributeError):  # the trainer judges that one itself
            before = PhaseRecipe.from_json(manifest.settings)
            note(before, after[name], manifest.world_size)
    if run.spec.volume:
        for planned in phases:
            note(planned.settings, after[planned.name], candidate.world_size)
    told = one_line(", ".join(map(str, changes.values())))
    as_typed = "".join(f" --set {name}={value}" for name, value in typed)
    as_typed += f" --processes {processes}" if processes else ""
    again = f"trmcloud resume {run.run_id}{as_typed}"
    if changes and not accept:
        raise CheckpointError(
            f"the checkpoint of {run.run_id} was trained with other settings: {told}",
            next_step=f"{again} {ACCEPT} continues anyway; trmcloud launch … --from "
            f"{run.run_id} starts another run from its weights",
        )
    if accept and not changes:
        raise UsageError(
            f"{ACCEPT}: {run.run_id} has the same settings already",
            next_step=f"{again} without it",
        )
    return ChangedSettings(
        {phase.name: new for phase in phases if (new := _new(phase.settings, after[phase.name]))},
        {c.name: [c.before, c.after] for c in changes.values()} if changes else None,
        processes,
    )


def _check_processes(run: RunState, candidate: Candidate, processes: int) -> None:
    """
    Raises:
        UsageError: it is no number of processes, or the run is on rented hardware.
    """
    if processes < 0:
        raise UsageError(f"--processes must be above zero, not {processes}")
    if candidate.provider != LOCAL:
        raise UsageError(
            f"{run.run_id} trains on {candidate.hardware}, with one process per GPU",
            where="--processes",
            next_step="to start another run on other hardware: trmcloud launch … --from "
            f"{run.run_id}",
        )


def _shared(
    phase: PhasePlan, candidate: Candidate, processes: int, overrides: Mapping[str, Any]
) -> Mapping[str, Any]:
    """``overrides``, and the batch with which so many processes share the same global one.

    Raises:
        UsageError: they cannot.
    """
    if not processes or {"batch", "accumulation"} & set(overrides):
        return overrides
    planned = phase.settings
    rows = planned.global_batch(candidate.world_size)
    each, over = divmod(rows, processes)
    if over:
        raise UsageError(
            f"{processes} processes cannot share the {rows} sequences of a step",
            where="--processes",
            next_step=f"use a divisor of {rows}; or train with another batch: --set batch=… --set "
            f"accumulation=… {ACCEPT}",
        )
    batch = max(size for size in range(1, planned.batch + 1) if each % size == 0)
    return {**overrides, "batch": batch, "accumulation": each // batch}


def _phases_ahead(
    run: RunState, candidate: Candidate, overrides: Mapping[str, Any]
) -> tuple[PhasePlan, ...]:
    """The phases that a resumed run trains: those that have not finished, or the last one where it
    has and is given more steps.

    Raises:
        ConflictError: there is nothing left to do.
    """
    finished = {name for name, ended in run.phases.items() if ended.outcome in DONE}
    ahead = tuple(phase for phase in candidate.phases if phase.name not in finished)
    of_command = run.spec.command is not None
    if run.outcome is not Outcome.FINISHED and (ahead or not candidate.phases):
        return ahead
    last = candidate.phases[-1] if candidate.phases else None
    done = (run.phases[last.name].step or 0) if last is not None and not ahead else 0
    if done and last is not None and run.phases[last.name].outcome == "stopped_paying":
        done = last.settings.steps  # fewer are none more than it might have had
    if last is None or ahead or overrides.get("steps", 0) <= done or of_command:
        more = f"trmcloud resume {run.run_id} --set steps={2 * done} continues it; " if done else ""
        anew = f"{more}launch --from starts a new run from these weights"
        raise ConflictError(
            f"{run.run_id} has finished: there is nothing to resume",
            next_step=f"trmcloud fetch-best {run.run_id}" if of_command else anew,
        )
    return (last,)


def _new(before: PhaseRecipe, after: PhaseRecipe) -> Mapping[str, Any]:
    """Return the settings that differ in ``after``, by key."""
    told = before.to_json()
    return {key: value for key, value in after.to_json().items() if value != told[key]}


def _trained(
    context: Context, run: RunState, phases: Sequence[str], *, must_know: bool
) -> Mapping[str, CheckpointManifest]:
    """Return the checkpoint that each phase would continue from, as far as that is known from
    here."""
    found = known_checkpoints(context, run, must_know=must_know)
    latest = {name: pick_latest(m for m in found if m.phase == name) for name in phases}
    return {name: manifest for name, manifest in latest.items() if manifest is not None}


def known_checkpoints(
    context: Context, run: RunState, *, must_know: bool = False
) -> list[CheckpointManifest]:
    """Return the whole checkpoints of a run, as far as they are known from here.

    Raises:
        TrmcloudError: a place cannot be asked, and all ``must_know`` be.
    """
    found: list[CheckpointManifest] = []
    for source in sources_of(context, run):
        listing = source.list()
        if listing.trouble is not None and must_know:
            raise listing.trouble
        found += listing.whole
    return found


def _check_memory(
    candidate: Candidate, planned: PhaseRecipe, after: PhaseRecipe, world_size: int
) -> None:
    on_gpu = candidate.sku in GPUS
    planned_gb, need_gb = (
        predict_memory(each, world, on_gpu=on_gpu).total
        for each, world in ((planned, candidate.world_size), (after, world_size))
    )
    memory_gb = candidate.memory_gb
    if not on_gpu:  # it is shared out to the processes
        memory_gb *= candidate.world_size / world_size
    if need_gb > max(planned_gb, memory_gb * USABLE_SHARE):
        raise DoesNotFit(
            f"with these settings {after.phase} needs {need_gb:.0f} GB on {candidate.hardware}, "
            f"which has {memory_gb:.0f}",
            where="--set",
            next_step=f"--set batch={max(1, after.batch // 2)} "
            f"--set accumulation={2 * after.accumulation}",
        )


# The actions on a run and the most that each costs, shown before it is done.

LAND, SAVE, STOP, FETCH, RAISE = VERBS = ("land", "save", "stop", "fetch", "raise")
RESUMABLE = (
    Outcome.STOPPED, Outcome.LANDED, Outcome.KILLED, Outcome.LOST, Outcome.UNREPORTED,
    Outcome.FAILED, Outcome.NEXT_PHASE_REFUSED,
)  # fmt: skip
"""Ends after which there may be something left to train."""


class Forecast(Value):
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
) -> Forecast:
    """``cap``: the run's whole budget that a raise would set; None: half as much again.
    ``offers``: what can be rented, for a fetch from a volume without a pod.

    Raises:
        UsageError: no such verb.
    """
    money, beat = money_of(context, run), last_beat(context, run)
    training = training_of(run, beat) if beat is not None else None
    foreseen = {
        LAND: lambda: _land(run, money, training),
        STOP: lambda: _stop(run, money, training),
        SAVE: lambda: _save(context, run, money, training),
        FETCH: lambda: _fetch(context, run, offers, disk_rate),
        RAISE: lambda: _raise(context, run, cap),
    }
    if verb in foreseen:
        return foreseen[verb]()
    raise UsageError(f"{verb!r} has no effect", next_step=", ".join(VERBS))


def refusals_of(context: Context, run: RunState) -> dict[str, str]:
    """Return why each action cannot be done now, by its verb; those that can are left out. A raise
    whose amount alone is too small counts as one that can."""
    seen = (foresee(context, run, verb) for verb in (SAVE, LAND, STOP, RAISE))
    return {each.verb: each.refused for each in seen if each.refused and not each.cap}


def _ended(run: RunState) -> str:
    return f"it has ended: {run.outcome.value if run.outcome else run.state.value}"


def _within(run: RunState, money: Money, amount: Usd) -> Usd:
    """No more than what is still held for it: the hard stop sees to that."""
    return min(amount, max(ZERO, run.cap - money.proven))


def _land(run: RunState, money: Money, training: Training | None) -> Forecast:
    generation = run.generation
    if refused := _refusal_to_end(run, told=run.stop is not None):
        return Forecast(LAND, run.run_id, refused)
    if generation is None or not generation.open:
        return Forecast(LAND, run.run_id, freed=run.reserved, cap=run.cap)
    chosen = run.candidate(generation.candidate_id)
    landing_s = chosen.landing_s if chosen is not None else 0.0
    if training is not None and training.landing_s is not None:
        landing_s = max(landing_s, training.landing_s)
    traits = traits_of(generation.provider)
    return _ending(LAND, run, money, landing_s + traits.end_grace_s + traits.kill_latency_s)


def _stop(run: RunState, money: Money, training: Training | None) -> Forecast:
    generation = run.generation
    if refused := _refusal_to_end(run, told=run.stop is not None and run.stop.at_once):
        return Forecast(STOP, run.run_id, refused)
    if generation is None or not generation.open:
        return Forecast(STOP, run.run_id, freed=run.reserved, cap=run.cap)
    seen = _ending(STOP, run, money, traits_of(generation.provider).kill_latency_s)
    if training is None:
        return seen
    steps = max(0, training.step - (training.saved_step or 0))
    lost = cost(money.rate or ZERO, steps * (training.step_s or 0.0))
    return replace(seen, lost_steps=steps, lost=lost)


def _refusal_to_end(run: RunState, *, told: bool) -> str:
    if not run.live:
        return _ended(run)
    return "it was already asked" if told else ""


def _ending(verb: str, run: RunState, money: Money, seconds: float) -> Forecast:
    at_most = _within(run, money, cost(money.rate or ZERO, seconds))
    freed = _freed(run, money, at_most)
    return Forecast(verb, run.run_id, at_most=at_most, freed=freed, cap=run.cap, seconds=seconds)


def _freed(run: RunState, money: Money, at_most: Usd) -> Usd:
    """Of the reservation, what neither was nor will be spent."""
    spent = money.at_most - run.settled
    return max(ZERO, run.reserved - spent - at_most)


def _save(context: Context, run: RunState, money: Money, training: Training | None) -> Forecast:
    if why := why_not_saved(context, run):
        return Forecast(SAVE, run.run_id, why)
    # It is evaluated, too: the trainer's own measure is of both.
    seconds = (training.landing_s or 0.0) if training is not None else 0.0
    at_most = _within(run, money, cost(money.rate or ZERO, seconds))
    return Forecast(SAVE, run.run_id, at_most=at_most, cap=run.cap, seconds=seconds)


def _fetch(context: Context, run: RunState, offers: Sequence[Offer], disk_rate: Usd) -> Forecast:
    known = checkpoints_of(context, run)
    chosen = next((c for c in known if c.best), next((c for c in known if c.latest), None))
    if short_rentals.is_needed(context, run):
        if run.live:
            return Forecast(FETCH, run.run_id, "its pod is not proven gone yet")
        try:
            made = short_rentals.errand_for(run, offers, 0, disk_rate, context.wall())
        except TrmcloudError as error:
            return Forecast(FETCH, run.run_id, error.what)
        return Forecast(
            FETCH, run.run_id, at_most=made.worst_case, cap=max(run.cap, made.worst_case),
            seconds=made.hard_stop_s, rents=f"{made.hardware} at {made.rate}/h",
            what=chosen.label if chosen is not None else "",
        )  # fmt: skip
    if chosen is None and not run.live:
        return Forecast(FETCH, run.run_id, "no checkpoint is known")
    if chosen is None and not any(kept.places for kept in known):
        return Forecast(FETCH, run.run_id, "it has saved no checkpoint yet")
    return Forecast(FETCH, run.run_id, cap=run.cap, what=chosen.label if chosen else "")


def _raise(context: Context, run: RunState, cap: Usd | None) -> Forecast:
    if run.live:
        return Forecast(
            RAISE, run.run_id,
            "the end of its pod was fixed when it was rented; resume it with a larger budget "
            "once it has landed",
        )  # fmt: skip
    if run.outcome not in RESUMABLE:
        return Forecast(RAISE, run.run_id, f"there is nothing to continue: {_ended(run)}")
    line = context.ledger.read().line("run", run.run_id)
    spent = line.settled + line.reserved
    whole = cap if cap is not None else Usd.from_micros(run.cap.micros * 3 // 2)
    if whole <= spent:
        return Forecast(
            RAISE, run.run_id, f"{spent} of it is spent: give a larger budget", cap=whole
        )
    return Forecast(RAISE, run.run_id, at_most=whole - spent, cap=whole)
