"""A machine rented for minutes, to bring checkpoints home from a network volume.

The run is opened once more for it: same reservation, same names, same kill layers as for training.
Its pod has nothing to train, and is held until what is best and what is latest are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trmcloud.app.context import Context
from trmcloud.app.drive import RunDriver
from trmcloud.app.launch_checks import check_needs
from trmcloud.app.reconciling import reconcile
from trmcloud.app.smoke_plan import make_smoke_plan
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_facts import is_deleted
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, NotFoundError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, candidate_to_json
from trmcloud.core.values import replace

_BOOT_S = 300.0
"""The time that a pod may take to boot and answer, before anything is copied."""
_SLOWEST_BYTES_PER_S = 4e6
_LEAST_S = 900.0
_ANYWHERE = ("", "any")


def lies_on_volume(run: RunState) -> bool:
    """Whether its checkpoints are on a network volume whose pod is gone, or seems to be."""
    generation = run.generation
    if generation is None or generation.up_at is None or run.errand is not None:
        return False
    seems_gone = generation.missed_at is not None or generation.ended_at is not None
    return (not run.live or seems_gone) and run.spec.volume


def is_needed(context: Context, run: RunState) -> bool:
    """Whether nothing of it is here, and all of it is there."""
    return lies_on_volume(run) and not context.files.manifests(run.run_id)


def errand_for(
    run: RunState, offers: Sequence[Offer], kept_bytes: int, disk_rate: Usd, now: float
) -> Candidate:
    """The cheapest machine in the volume's data centre, for as long as the copy may take.

    Raises:
        NoCapacity: nothing is offered there.
    """
    plan = run.plan
    generation = run.generation
    if generation is None:
        raise NotFoundError(f"{run.run_id} never had a machine")
    region = plan.candidate(generation.candidate_id).region
    if region in _ANYWHERE:
        region = plan.spec.regions[0] if plan.spec.regions else region
    there = [
        offer._replace(region=region) for offer in offers if offer.region in (region, *_ANYWHERE)
    ]
    hold_s = max(_LEAST_S, _BOOT_S + kept_bytes / _SLOWEST_BYTES_PER_S)
    traits = traits_of(generation.provider)
    made = make_smoke_plan(there, traits, Usd(1_000_000), hold_s, disk_rate, now)
    number = 1 + sum(c.id.startswith("fetch") for c in plan.candidates)
    return replace(made.candidates[0], id=f"fetch{number}")


def start(context: Context, run: RunState, candidate: Candidate) -> RunDriver:
    """Reserve the errand's worst case and become the run's driver.

    The run's own budget grows by it: asking for it was explicit.

    Raises:
        BudgetRefused: a level above the run lacks the money.
        ConflictError: the run is live.
        MissingTool: this machine could not reach it.
    """
    reconcile(context)
    ledger = context.ledger.read()
    run, line = ledger.runs[run.run_id], ledger.line("run", run.run_id)
    if is_deleted(ledger, run.run_id):
        raise NotFoundError(
            f"{run.run_id}'s network volume was deleted, and what was on it",
            next_step=f"trmcloud status {run.run_id}",
        )
    if run.live:
        raise ConflictError(
            f"{run.run_id} is {run.state.value}", next_step=f"trmcloud status {run.run_id}"
        )
    check_needs(context, candidate.provider)
    amount = candidate.worst_case
    cap = max(run.cap, line.settled + line.reserved + amount)
    reopened = ev.Reopened(cap, candidate_to_json(candidate))
    epoch = context.ledger.reopen_run(run.run_id, reopened, amount, context.who, context.wall())
    return RunDriver(context, run.run_id, epoch)


def carry_out(
    context: Context, run: RunState, candidate: Candidate, watch: Callable[[RunState], None]
) -> RunState:
    """``start``, and drive it until its checkpoints are here and its machine is gone, or it has
    ended without. ``watch`` is shown every state."""
    driver = start(context, run, candidate)

    def fetched(now: RunState) -> bool:
        generation = now.generation
        ended = generation is not None and generation.ended_at is not None
        return not now.live or (ended and bool(context.files.manifests(now.run_id)))

    after = driver.until(fetched, watch)
    if after.live:
        context.ledger.release(after.run_id, driver.epoch)
    return after
