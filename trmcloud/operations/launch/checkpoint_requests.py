"""Requests for a run's checkpoints: save one now, bring them from a volume, fetch the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.catalog.offers import Offer
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.values import replace
from trmcloud.operations.checkpoints import fetching
from trmcloud.operations.checkpoints.fetching import BestCheckpoint, FetchedCheckpoint
from trmcloud.operations.checkpoints.saving import Place, SaveRequest, SaveWaiter, request_save
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.launch import short_rentals
from trmcloud.operations.launch.launching import follow_or_drive
from trmcloud.operations.money import grants
from trmcloud.ports.machine import Progress

Watch = Callable[[RunState], None]


class Brought(NamedTuple):
    """A run whose checkpoints are here, and the cost of the machine that was rented for that."""

    run: RunState
    cost: Usd = ZERO


def save(
    context: Context,
    run: str | None,
    by: str,
    *,
    wait_s: float,
    waits: Callable[[SaveRequest], bool] = lambda _: True,
) -> tuple[RunState, Place] | None:
    """Have a checkpoint made now, and wait until it is where the run's checkpoints are kept, or on
    its pod alone; training continues.

    Args:
        run: its id or name; None: the newest.
        by: who asks, for the record.
        wait_s: the longest wait for the pod's answer, and for the copy.
        waits: called when the request is on record; whether to wait.

    Returns:
        The run and its new checkpoint; None without waiting.

    Raises:
        NotFoundError, ConflictError, NotSupported: see ``judge_run``, ``request_save`` and
            ``SaveWaiter.place``. AuthError: its pod cannot be reached from here. LinkError: it
            could not be confirmed in time.
    """
    asked = request_save(context, grants.judge_run(context, run).run_id, by)
    if not waits(asked):
        return None
    state = run_by_id(context, asked.run_id)
    if state.generation is not None:
        context.machines.require_reach(state.generation.provider)
    waiting = SaveWaiter(context, asked, wait_s)
    state = follow_or_drive(context, asked.run_id, waiting.is_over, _nothing)
    return state, waiting.place(state)


def bring_from_volume(
    context: Context,
    run: RunState,
    *,
    offers: Callable[[float], tuple[Sequence[Offer], Usd]],
    waits: Callable[[str], None],
    agree: Callable[[str, Candidate], None],
    watching: Callable[[], AbstractContextManager[Watch]] = lambda: nullcontext(_nothing),
) -> Brought:
    """Return the run once its best and latest checkpoints are here; itself where they are already.

    Args:
        offers: returns what can be rented at a time (epoch s), and USD/h of such a machine's disks.
        waits: called with the run's id before its pod's end is waited for; raises where it is not
            to be.
        agree: called with the run's id and the machine that would be rented; raises where it is
            not to be.
        watching: gives a function that shows every state.

    Raises:
        AuthError, NoCapacity: nothing can be rented. BudgetRefused, ConflictError, MissingTool: see
            ``short_rentals.start``.
    """
    if not short_rentals.is_needed(context, run):
        return Brought(run)
    name = run.run_id
    if run.live:
        waits(name)
        with watching() as watch:
            run = follow_or_drive(context, name, lambda state: not state.live, watch)
    found, disk_rate = offers(context.wall())
    candidate = short_rentals.errand_for(run, found, 0, disk_rate, context.wall())
    agree(name, candidate)
    before = run.settled
    with watching() as watch:
        run = short_rentals.carry_out(context, run, candidate, watch)
    return Brought(run, run.settled - before if not run.live else ZERO)


def fetch_best(
    context: Context,
    run: RunState,
    into: Path | None,
    *,
    weights_only: bool,
    phase: str | None = None,
    step: int | None = None,
    begin: Callable[[BestCheckpoint], Progress] = lambda _: _nothing,
) -> FetchedCheckpoint:
    """Copy its best checkpoint, every hash verified; that of a command lies in ``own`` of the
    folder, too, under the names that its script gave it. Where it is not known which one is the
    best, copy those that may be: see ``manifest.rivals``.

    Args:
        into: a folder to make; None: RUN-PHASE-STEP in the working directory. Further candidates
            are in INTO-2 and INTO-3.
        phase, step: of a checkpoint in place of the best.
        begin: called with the checkpoint that is copied now; returns what is told the progress.

    Raises:
        NotFoundError, CheckpointError, ProviderError, ConflictError, DoesNotFit: see
            ``fetching.find_best``, ``fetching.copy`` and ``fetching.under_own_names``.
    """
    found = fetching.find_best(context, run, phase=phase, step=step, weights_only=weights_only)
    made = [
        _bring(context, run, each, _folder_of(each, into, number), weights_only, begin)
        for number, each in enumerate((found, *found.rivals), 1)
    ]
    return replace(made[0], rivals=tuple(made[1:]))


def _folder_of(found: BestCheckpoint, into: Path | None, number: int) -> Path:
    if into is None:
        return fetching.default_folder(found.manifest, Path.cwd())
    return into if number == 1 else into.with_name(f"{into.name}-{number}")


def _bring(
    context: Context,
    run: RunState,
    found: BestCheckpoint,
    folder: Path,
    weights_only: bool,
    begin: Callable[[BestCheckpoint], Progress],
) -> FetchedCheckpoint:
    progress = begin(found)
    fetched = fetching.fetch(
        context, run, found, folder, weights_only=weights_only, progress=progress
    )
    if run.spec.command is None:
        return fetched
    return replace(fetched, own=fetching.under_own_names(fetched.manifest, fetched.folder))


def _nothing(*_: object) -> None:
    pass
