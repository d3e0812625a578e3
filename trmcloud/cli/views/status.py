"""Status of runs: tables, JSON, volumes, runs that could not be brought up to date."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from trmcloud.app.conditions import (
    BOOT_LOG,
    BUCKET,
    LINK,
    clock_words,
    conditions_of,
    low_balance_of,
    waiting_words,
)
from trmcloud.app.context import Context, is_unasked
from trmcloud.app.kill_layers import ABSENT, VERIFIED, WORKING, Layer, guards_of, home_of
from trmcloud.app.narration import pace_lines
from trmcloud.app.reasons import low_balance, sentence
from trmcloud.app.run_facts import report_run, spending
from trmcloud.app.run_queries import (
    data_progress_text,
    is_driven,
    last_report,
    mark_reported,
    waits_for,
)
from trmcloud.app.trainings import verdicts_of
from trmcloud.cli.views.health import format_rows, health_rows, recovered_rows
from trmcloud.cli.views.metrics import (
    marked_words,
    metric_cell,
    next_buys,
    score_words,
    training_rows,
)
from trmcloud.cli.views.text import (
    CHECKPOINTS,
    duration,
    fields,
    on_volume,
    own_name,
    table,
)
from trmcloud.core.catalog.providers import is_brokered, traits_of
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.grants import OWNER
from trmcloud.core.control.ledger_facts import Hold, due_volumes, holds
from trmcloud.core.control.report import RunReport, Spending
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.control.waiting import failed_boots, is_waiting, spent_on_boots
from trmcloud.core.money import Usd, total
from trmcloud.core.reported import MARK
from trmcloud.core.spec.spec import DELETE, DELETE_FETCHED, KEEP

_THEN = {
    KEEP: "then it is kept, beyond every budget",
    DELETE_FETCHED: "then it is deleted if best and latest were fetched",
    DELETE: "then it is deleted with everything on it",
}


def volume_lines(ledger: LedgerState, now: float, run_id: str = "") -> list[str]:
    """One for each volume, of one run's or of all: what is reserved and until when; and where that
    day is over, that it goes on, for how much, why, and what ends it."""
    mine: dict[tuple[str, str, str], list[Hold]] = {}
    for hold in holds(ledger):
        if hold.deleted_at is None and hold.rate and run_id in ("", hold.run_id):
            mine.setdefault((hold.run_id, hold.provider, hold.place), []).append(hold)
    lines = [_reserved(each, now) for each in mine.values() if now < _until(each)]
    places = {(hold.provider, hold.place) for hold in holds(ledger) if hold.run_id == run_id}
    for over in due_volumes(ledger, now):
        if not over.per_day or (run_id and (over.provider, over.place) not in places):
            continue
        why = sentence(over.why_kept) or "it is about to be deleted"
        lines.append(
            f"network volume in {over.place}: {over.per_day} a day beyond every budget since"
            f" {_day(over.since)}, {over.beyond(now)} so far: {why};"
            f" trmcloud admin volumes delete {over.place}"
        )
    return lines


def _reserved(mine: Sequence[Hold], now: float) -> str:
    """Of one run's pods on one volume."""
    accrued, amount = total(hold.accrued(now) for hold in mine), total(hold.amount for hold in mine)
    return (
        f"network volume in {mine[-1].place}: {accrued} of {amount} reserved until"
        f" {_day(_until(mine))}, {mine[-1].per_day} a day; {_THEN.get(mine[-1].then, _THEN[KEEP])}"
    )


def _until(mine: Sequence[Hold]) -> float:
    return max(hold.until for hold in mine)


def _day(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%d")


_TOLD = Usd("0.01")
"""From here on, proven amounts and upper bounds are told apart."""


def show_table(context: Context, runs: Sequence[RunState]) -> None:
    of_recipes = all(run.spec.command is None for run in runs)
    head = "bpb" if of_recipes else "metric"
    header = ("run", "state", "spent / cap", head, "best", "kill layers", "max overspend")
    rows = [_row(context, run) for run in runs]
    print("\n".join(table(header, rows)))
    if any(cell.endswith((MARK, f"{MARK}, fetched")) for row in rows for cell in row[3:5]):
        print(marked_words())
    for text in volume_lines(context.ledger.read(), context.wall()):
        print(text)
    unasked = [run for run in runs if run.live and is_unasked(context, run)]
    if unasked:
        vias = " and ".join(dict.fromkeys(map(_via, unasked)))
        names = ", ".join(run.run_id for run in unasked)
        print(f"not asked about {names}: {vias} (trmcloud status --live)")


def _via(run: RunState) -> str:
    """Return the service that would be asked about the run's present pod."""
    return traits_of(run.generation.provider).via if run.generation is not None else ""


def principal_words(run: RunState) -> str:
    """Return who launched a run and, where that is another, who pays for it now."""
    pays = f", resumed by {run.principal or OWNER}, who pays for it"
    return (run.creator or OWNER) + (pays if run.principal != run.creator else "")


def show_one(context: Context, run: RunState, *, verbose: bool = False) -> None:
    """One run: its state, money, training and checkpoints, what guards it, and what to type next;
    with ``verbose`` also what each kill layer lacks that is absent."""
    # The table of all runs, which is shown far more often, needs none of these.
    from trmcloud.app.short_rentals import meaning_of
    from trmcloud.cli.views.launch import resumed_rows, run_credential_rows
    from trmcloud.cli.views.run import show_verdict

    report = report_run(context, run)
    now, spent = context.wall(), spending(context, run)
    ended = meaning_of(run, run.outcome) if run.outcome is not None else ""
    rows = [
        ("run", f"{run.run_id} · {report.recipe} on {report.hardware} · project {run.project}"),
        *([("name", run.name)] if run.name else []),
        *([("principal", principal_words(run))] if run.creator or run.principal else []),
        *([("tags", ", ".join(f"{key}={value}" for key, value in run.tags))] if run.tags else []),
        ("state", " · ".join(filter(None, (_state(run), ended)))),
        ("spent", f"{spent.proven} of {run.cap} · {run.reserved} reserved"),
    ]
    if spent.unproven >= _TOLD:
        rows.append(("at most", f"{spent.at_most}, {_why_unproven(context, run)}"))
    rows += [
        ("volume", text.removeprefix("network volume "))
        for text in volume_lines(context.ledger.read(), now, run.run_id)
    ]
    if why := sentence(run.reason):
        rows.insert(2, ("why", why))
    if any(is_brokered(generation.provider) for generation in run.generations):
        rows.append(("bill", "an estimate from catalogue prices and time, not a provider's bill"))
    if run.live and is_unasked(context, run):
        rows.append(
            ("not asked", f"{_via(run)} and the pod; {_heard(context, run)}: status --live")
        )
    guards = guards_of(context, run)
    if run.live and (place := home_of(context, run, context.ledger.driver(run.run_id))):
        rows.append(("home", f"{place}; its files are there"))
    rows += _in_the_way(context, run)
    if low := low_balance_of(context, run):
        rows.append(("balance", low_balance(low, now)))
    if run.generation is not None and run.generation.board is not None:
        rows.append(("board", sentence(run.generation.board)))
    if run.paces:
        first, *more = pace_lines(run, run.paces[-1])
        rows.append(("measured", first.removeprefix("Measured: ").removeprefix("Measured ")))
        rows += [("slow", line) for line in more]
    beat = guards.beat
    if run.live and (told := data_progress_text(context, run)):
        rows.append(("data", told))
    if beat is not None:
        rows += training_rows(run.spec.command, mark_reported(run, beat))
        if run.live and (buys := next_buys(run, beat)):
            rows.append(("pays", buys))

    rows += format_rows(context, run)
    rows += recovered_rows(context, run)
    rows += health_rows(context, run)
    if run.live and (via := _via(run)):
        rows.append(("host key", f"the pod's key is pinned; {via}'s first hop is not"))
    rows += run_credential_rows(context, run)
    if boots := failed_boots(run):
        rows.append(("failed boots", f"{len(boots)}, {spent_on_boots(run)} at most"))
    if clock := clock_words(run, beat, now):
        rows.append(("clock", clock))
    rows += _checkpoint_rows(run, report)
    rows += resumed_rows(run)
    for fetched in run.fetched:
        rows.append(("fetched", f"{fetched.phase} step {fetched.step} → {fetched.path}"))
    rows += _guard_rows(guards.layers, verbose=verbose)
    if run.live:
        rows.append(("max overspend", guards.overshoot.text))
    for label, why in context.files.damaged(run.run_id):
        rows.append(("damaged", f"{label}: {why}"))
    print("\n".join(fields(rows)))

    if run.spec.sweep is not None:
        print("\n".join(_trials(context, run, verbose=verbose)))
    for phase, verdict in verdicts_of(context, run).items():
        show_verdict(phase, mark_reported(run, verdict))
    if next_commands := _next_commands(run, has_checkpoint=bool(report.best or report.latest)):
        print(f"next: {next_commands}")


def _checkpoint_rows(run: RunState, report: RunReport) -> list[tuple[str, str]]:
    """Return rows: the best and the latest checkpoint, and where checkpoints are."""
    rows = []
    if report.best is not None:
        best = report.best
        metric = score_words(run.spec.command, mark_reported(run, best))
        rows.append(("best", f"{best.label} · {metric} · {best.sha256}"))
    elif report.own_best is not None:
        best = report.own_best
        rows.append(("best", f"{best.label} · the script's own, {own_name(best)} · {best.sha256}"))
    if report.latest is not None and report.latest.val_bpb is None:
        latest = report.latest
        rows.append(("latest", f"{latest.label} · not evaluated · {latest.sha256}"))
    if report.best is None and report.latest is None and report.on_volume:
        rows.append(("best", on_volume(run.run_id)))
    if report.bucket:
        rows.append((CHECKPOINTS, report.bucket))
    return rows


def _guard_rows(layers: Sequence[Layer], *, verbose: bool) -> list[tuple[str, str]]:
    """Return rows: each kill layer, the absent ones in one row unless ``verbose``."""
    shown = [layer for layer in layers if verbose or layer.state != ABSENT]
    rows = [(f"guard: {layer.name}", f"{layer.state} · {layer.detail}") for layer in shown]
    absent = [layer.name for layer in layers if layer not in shown]
    if absent:
        rows.append(("guards absent", f"{' · '.join(absent)}; details: -v"))
    return rows


def _trials(context: Context, run: RunState, *, verbose: bool) -> list[str]:
    """The trials of a sweep; the modules that read them are of no use to other runs."""
    from trmcloud.app.sweep_facts import sweep_of
    from trmcloud.cli.views.sweep import progress_words, trial_lines

    swept = sweep_of(context, run)
    if swept is None:
        return []
    return [progress_words(swept), *trial_lines(swept, verbose=verbose)]


def _next_commands(run: RunState, *, has_checkpoint: bool) -> str:
    """Return the next command to type about a run."""
    from trmcloud.cli.views.run import RESUMABLE

    if run.live:
        return f"trmcloud logs -f {run.run_id} · save {run.run_id} · stop {run.run_id}"
    verbs = ["fetch-best"] if has_checkpoint and not run.fetched else []
    verbs += ["resume"] if run.outcome in RESUMABLE else []
    return f"trmcloud {' · '.join(f'{verb} {run.run_id}' for verb in verbs)}" if verbs else ""


def _why_unproven(context: Context, run: RunState) -> str:
    """Why a run may have cost more than is proven."""
    strays = context.ledger.read().strays_of(run.run_id)
    pods = [f"{stray.pod_id}, an orphaned pod" for stray in strays if stray.billed is None]
    if awaiting_bill(run) or run.state is State.SETTLING:
        pods.insert(0, "its pod")
    if pods:
        return f"until the bill is final of {' and '.join(pods)}"
    return "counted from the request for its pod"


def _heard(context: Context, run: RunState) -> str:
    report = last_report(context, run)
    if report is None:
        return "it has not reported yet"
    return f"last report {duration(max(0.0, context.wall() - report.at))} ago"


def _in_the_way(context: Context, run: RunState) -> list[tuple[str, str]]:
    """Return rows: what the run waits for, and why its pod cannot be asked."""
    rows = []
    waiting, now = waits_for(context, run), context.wall()
    if waiting is not None:
        rows.append(("waits for", waiting_words(waiting, now)))
    if is_waiting(run) and not is_driven(context, context.ledger.driver(run.run_id)):
        rows.append(("asks", f"only the guard asks now; trmcloud logs -f {run.run_id}"))
    found = conditions_of(context, run, now)
    return rows + [(x.name, x.text) for x in found if x.name in (LINK, BOOT_LOG, BUCKET)]


def _state(run: RunState) -> str:
    """Return a live run's state, and an ended run's outcome."""
    return run.outcome.value if run.outcome is not None else run.state.value


def _row(context: Context, run: RunState) -> tuple[str, ...]:
    report = report_run(context, run)
    guards = guards_of(context, run)
    beat = guards.beat
    best = "–"
    if report.best is not None:
        told = mark_reported(run, report.best.step)
        best = told.as_marked(lambda step: f"step {step:,}") + (", fetched" if run.fetched else "")
    layers = " · ".join(
        x.name + (" ✔" if x.state == VERIFIED else "") for x in guards.layers if x.state in WORKING
    )
    return (
        " ".join(filter(None, (run.run_id, run.name, report.hardware))),
        _state(run),
        f"{_spent(spending(context, run))} / {run.cap}",
        metric_cell(run.spec.command, mark_reported(run, beat) if beat is not None else None),
        best,
        layers or ("–" if not run.live else "none armed"),
        guards.overshoot.text if run.live else "–",
    )


def _spent(spent: Spending) -> str:
    return f"{spent.proven} (≤ {spent.at_most})" if spent.unproven >= _TOLD else str(spent.proven)
