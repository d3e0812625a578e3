"""A checkpoint of a run that trains, now, without stopping it: asked for, and found again."""

from __future__ import annotations

from collections.abc import Sequence

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.contract.pod_contract import CheckpointRef, PhaseState, SaveAnswers
from trmcloud.core.control import events as ev
from trmcloud.core.control.actions import is_pulled
from trmcloud.core.control.pod_facts import forgotten_saves
from trmcloud.core.control.run_state import IllegalTransition, RunState, State
from trmcloud.core.errors import ConflictError, LinkError, NotSupported
from trmcloud.core.values import Value
from trmcloud.operations.checkpoints import inventory
from trmcloud.operations.context import Context, run_by_id
from trmcloud.operations.run_queries import last_beat, last_report

_NO_STEPS = ("landing", "ended")


class SaveRequest(Value):
    """The ``number``-th request to the pod of this ``generation``."""

    run_id: str
    generation: int
    number: int

    def answer(self, context: Context, run: RunState) -> SaveAnswers | None:
        """Return the answer to the request, by the agent's report; None while there is none."""
        if run.generation is None or run.generation.number != self.generation:
            return None
        report = last_report(context, run)
        saves = report.saves if report is not None else None
        return saves if saves is not None and saves.answered >= self.number else None


class Place(Value):
    """A checkpoint, and where it is by now, in words and for programs. ``final``: where the run's
    checkpoints are kept; before that it is on its pod alone."""

    kept: CheckpointRef
    words: str
    at: inventory.Place

    @property
    def final(self) -> bool:
        return self.at.kind != inventory.POD

    @property
    def is_here(self) -> bool:
        """Whether it is on this machine."""
        return self.at.kind == inventory.HERE

    @property
    def label(self) -> str:
        return self.kept.label


def request_save(context: Context, run_id: str, by: str) -> SaveRequest:
    """Put the wish on record; the run's driver passes it on.

    Raises:
        ConflictError: the run is not training. NotSupported: its pod cannot be asked.
    """
    run = run_by_id(context, run_id)
    if why := why_not_saved(context, run):
        raise ConflictError(
            f"{run.run_id} is not training: {why}", next_step=f"trmcloud status {run.run_id}"
        )
    report, generation = last_report(context, run), run.generation
    assert generation is not None
    if report is not None and report.saves is None:
        raise NotSupported(
            f"the pod of {run.run_id} was made by an earlier trmcloud, which cannot save on "
            "request",
            next_step=f"trmcloud stop {run.run_id} saves; trmcloud resume continues from there",
        )
    forgotten = forgotten_saves(generation, report) if report is not None else ()
    try:
        for wish in (*forgotten, ev.SaveRequested(generation.number, by)):
            context.ledger.request(run.run_id, wish, context.wall())
    except IllegalTransition:
        raise ConflictError(
            f"{run.run_id} is no longer training", next_step=f"trmcloud status {run.run_id}"
        ) from None
    asked = run_by_id(context, run_id).generation
    number = asked.saves_asked if asked is not None else 1
    return SaveRequest(run.run_id, generation.number, number)


def why_not_saved(context: Context, run: RunState) -> str:
    """Why a run cannot be asked to save now; empty where it can."""
    if not run.live:
        return f"it has ended: {run.outcome.value if run.outcome else run.state.value}"
    if run.stop is not None:
        return "it is stopping, and saves a checkpoint then"
    if run.state is not State.RUNNING:
        return f"it is {run.state.value}"
    report, beat = last_report(context, run), last_beat(context, run)
    if report is not None and report.result is not None:
        return "it has finished"
    if report is not None and report.waiting:
        return f"its pod is still {report.waiting}"
    if report is not None and all(phase.state is not PhaseState.RUNNING for phase in report.phases):
        return "no phase is running"
    if beat is not None and beat.state in _NO_STEPS:
        return "it is stopping, and saves a checkpoint then"
    return ""


class SaveWaiter:
    """For the pod's answer, then for the copy; for each no longer than ``wait_s``."""

    def __init__(self, context: Context, asked: SaveRequest, wait_s: float) -> None:
        self._context, self._asked, self._wait_s = context, asked, wait_s
        self._began = context.wall()
        self._answered = False

    def is_over(self, run: RunState) -> bool:
        answer = self._asked.answer(self._context, run)
        if answer is not None and not self._answered:
            self._answered, self._began = True, self._context.wall()
        if answer is not None and answer.why:
            return True
        place = find_saved(self._context, run, answer) if answer is not None else None
        late = not 0 <= self._context.wall() - self._began < self._wait_s
        return late or not run.live or (place is not None and place.final)

    def place(self, run: RunState) -> Place:
        """
        Raises:
            NotSupported: the trainer cannot save when it is asked to. ConflictError: the run ended
                before it did. LinkError: its pod has not said that it did.
        """
        answer = self._asked.answer(self._context, run)
        if answer is not None and answer.why:
            raise NotSupported(
                f"{run.run_id} was not saved: {answer.why}",
                next_step=f"trmcloud stop {run.run_id} saves; trmcloud resume continues from there",
            )
        place = find_saved(self._context, run, answer) if answer is not None else None
        if place is not None:
            return place
        if not run.live:
            ended = run.outcome.value if run.outcome else run.state.value
            raise ConflictError(
                f"{run.run_id} ended before it saved again: {ended}",
                next_step=f"trmcloud fetch-best {run.run_id}",
            )
        raise LinkError(
            f"within {self._wait_s:.0f} s there was no report that {run.run_id} has saved",
            next_step=f"trmcloud status {run.run_id}; it may save later, or its pod was made by "
            "an earlier trmcloud",
        )


def find_saved(context: Context, run: RunState, saves: SaveAnswers) -> Place | None:
    """The checkpoint that ``saves`` tells of, or a later one of its phase, where it is kept; else
    where it is on its way from. None where it cannot be found."""
    generation, report = run.generation, last_report(context, run)
    if generation is None or saves.step is None:
        return None
    manifests = context.files.manifests(run.run_id)
    folders = {m.bits: context.files.folder_of(m) for m in manifests}
    here = [m.ref for m in manifests]
    if generation.provider == LOCAL:
        local = _of(saves, here)
        return _place(local, inventory.HERE, folders[local.bits]) if local is not None else None
    plan = run.plan
    pulls = is_pulled(run, plan, generation)
    if pulls:
        copy = _of(saves, [kept for kept in here if (kept.phase, kept.step) in run.pulled])
        if copy is not None:
            folder = folders[copy.bits]
            return _place(copy, inventory.HERE, folder, f"{folder}, pulled and verified")
    elif plan.spec.pod_uploads:
        stored = _of(saves, report.uploaded if report is not None else ())
        if stored is not None:
            return _place(stored, inventory.BUCKET, f"{run.bucket}/runs/{run.run_id}")
    there = _of(saves, report.kept if report is not None else ())
    if there is None:
        return None
    if plan.spec.volume and not pulls:
        return _place(there, inventory.VOLUME, "", "its network volume")
    return _place(there, inventory.POD, "", "its pod only, so far")


def _place(kept: CheckpointRef, kind: str, where: str, words: str = "") -> Place:
    return Place(kept, words or where, inventory.Place(kind, where))


def _of(saves: SaveAnswers, found: Sequence[CheckpointRef]) -> CheckpointRef | None:
    mine = [k for k in found if k.phase == saves.phase and k.step >= (saves.step or 0)]
    return min(mine, key=lambda kept: kept.step, default=None)
