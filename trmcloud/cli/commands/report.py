"""``trmcloud report``: planned, accrued and billed; where the time went."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trmcloud.app import views
from trmcloud.app.context import Context, find_run, shown_runs
from trmcloud.app.encoding import Verbatim
from trmcloud.app.labels import has_tags, parse_tags
from trmcloud.app.measurements import note_measured, speeds_of
from trmcloud.app.narration import pace_lines
from trmcloud.app.run_facts import report_run
from trmcloud.app.run_views import month_document, run_account, run_reported, volume_notes
from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.metrics import (
    goal_lines,
    marked_words,
    score_cell,
    target_lines,
)
from trmcloud.cli.views.month import month_lines, month_page
from trmcloud.cli.views.streams import as_is
from trmcloud.cli.views.text import duration, on_volume, table
from trmcloud.cli.views.troubles import failure_lines, trouble_code
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.control.focus import COLUMNS, focus_rows, total_of
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.report import DRIFT_ALARM, PARTS, RunReport, report_month
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, UsageError
from trmcloud.core.money import total
from trmcloud.core.text import one_line
from trmcloud.io.files import write_atomic
from trmcloud.wiring import build_chain, build_context

_COLUMNS = (
    "run", "hardware", "recipe", "state", "outcome", "budget_usd", "planned_usd", "accrued_usd",
    "billed_usd", "at_most_usd", "reserved_usd", "paid_seconds", "useful_fraction", "steps",
)  # fmt: skip


_BOARDS = ("tensorboard", "wandb")
_TOGETHER = frozenset(
    f"{one} {other}"
    for one, others in (
        ("--html", ("--month",)), ("--focus", ("--month",)), ("--csv", ("--tag",)),
        ("--json", ("--html", "--focus", "--month", "--verify", "--to", "--tag")),
    )
    for other in others
)  # fmt: skip
"""Options about the form of a report that go together."""


def report(
    run: Annotated[
        str,
        typer.Argument(
            help="Id of a run (default: all runs, this month); with --month a month such as "
            "2026-11; with --verify also a receipt or a checkpoint's folder.",
            autocompletion=options.complete_run,
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: options.Json = False,
    html: Annotated[
        str,
        typer.Option(
            help="Write a run's receipt, or a month's page, as one HTML file that works offline; "
            "--json prints the same as data.",
            metavar="FILE",
        ),
    ] = "",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check figures against the ledger, and a checkpoint against its manifest's "
            "hashes: of a run, a receipt's FILE or a checkpoint's FOLDER.",
        ),
    ] = False,
    against: options.Against = "",
    to: Annotated[
        str,
        typer.Option(
            help="tensorboard: serve a run's curves until Ctrl-C; wandb: send them to W&B until "
            "the run has ended.",
            metavar="BOARD",
        ),
    ] = "",
    port: options.BoardPort = 6006,
    wandb_project: options.WandbProject = "",
    wandb_entity: options.WandbEntity = "",
    plot: options.SweepPlot = "",
    focus: options.Focus = "",
    tag: options.Tags = None,
    month: Annotated[
        bool,
        typer.Option("--month", help="Show spending by project and provider, storage, and caps."),
    ] = False,
    verbose: options.Verbose = False,
) -> None:
    """Show what runs were planned to cost, what they cost and were billed, and their results.

    Example: trmcloud report --csv
    """
    _require_one_form(
        {"--csv": as_csv, "--json": as_json, "--html": html, "--plot": plot, "--focus": focus,
         "--month": month, "--verify": verify, "--to": to, "--tag": tag}
    )  # fmt: skip
    if verify:
        from trmcloud.cli.commands.verify import check_figures  # each Tab would pay for it

        sys.exit(check_figures(run, against, as_json=as_json))
    if to:
        _show_curves(run, to, port, wandb_project, wandb_entity, as_json=as_json)
        return
    context = build_context()
    catch_up(context)
    if focus:
        _write_focus(context, run, focus, as_json=as_json)
    elif month:
        _show_month(context, run, as_json=as_json, html=html)
    elif plot:
        _write_picture(context, find_run(context, run or None), plot)
    elif html:
        _write_receipt(context, find_run(context, run or None), html, as_json=as_json)
    else:
        _report(context, run, tag, as_csv=as_csv, as_json=as_json, verbose=verbose)
    is_month = focus or month or not (run or plot or html)
    sys.exit(trouble_code(context, "" if is_month else find_run(context, run or None).run_id))


def _require_one_form(given: Mapping[str, object]) -> None:
    """
    Raises:
        UsageError: naming the first two options that do not go together, or a picture's name.
    """
    typed = [flag for flag, value in given.items() if value]
    for one, other in itertools.combinations(typed, 2):
        if not {f"{one} {other}", f"{other} {one}"} & _TOGETHER:
            raise UsageError(f"{one} does not work with {other}", next_step=f"leave out {other}")
    if (plot := str(given["--plot"])) and not plot.endswith(".svg"):
        raise UsageError("--plot takes FILE.svg", next_step="--plot sweep.svg")
    if (to := given["--to"]) and to not in _BOARDS:
        raise UsageError(f"--to takes {' or '.join(_BOARDS)}, not {to!r:.40}")


def _show_curves(
    run: str, board: str, port: int, project: str, entity: str, *, as_json: bool
) -> None:
    from trmcloud.cli.commands.curves import send_to_wandb, serve_tensorboard

    if board == "wandb":
        send_to_wandb(run, project, entity, as_json=as_json)
    else:
        serve_tensorboard(run, port, as_json=as_json)


def _report(
    context: Context,
    run: str,
    tag: list[str] | None,
    *,
    as_csv: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the report on one run, or on all."""
    if tag and run:
        raise UsageError("--tag selects among all runs: leave out the run")
    wanted = parse_tags("--tag", tag or ())
    known = sorted(shown_runs(context).values(), key=lambda r: r.created_at)
    states = [find_run(context, run)] if run else [r for r in known if has_tags(r, wanted)]
    reports = [report_run(context, state, speeds_of(context, state)) for state in states]
    for state in states:
        with suppress(OSError):  # a home that cannot be written to can be reported on
            note_measured(context, state)
    if as_json:
        rows = tuple(
            run_reported(context, state, report)
            for state, report in zip(states, reports, strict=True)
        )
        print_document(views.Reports(runs=rows))
    elif as_csv:
        writer = csv.writer(as_is())
        writer.writerow(
            (*_COLUMNS, *(f"{name}_s" for name in PARTS), "best_bpb", "sha256", "metric", "best")
        )
        writer.writerows(_csv_row(report) for report in reports)
    else:
        _show(reports, {state.run_id: state.name for state in states}, verbose=verbose)
        for line in _lines_below(context, states, reports, is_one=bool(run), verbose=verbose):
            print(line)


def _lines_below(
    context: Context,
    states: Sequence[RunState],
    reports: Sequence[RunReport],
    *,
    is_one: bool,
    verbose: bool,
) -> Iterator[str]:
    """Each run's pace, targets, goals and trials, and the volumes, below the tables."""
    for state in states:
        for pace in state.paces:
            yield from (f"{state.run_id}: {line}" for line in pace_lines(state, pace))
    for state, report in zip(states, reports, strict=True):
        account = run_account(context, state, report)
        said = target_lines(account.verdict) + goal_lines(account.goal)
        yield from (f"{state.run_id}: {text}" for text in said)
    yield from failure_lines(context, states[0]) if is_one else ()
    for state in states:
        if state.spec.sweep is not None:
            yield from _swept(context, state, whole=is_one, verbose=verbose)
    run_id = states[0].run_id if is_one else ""
    notes = volume_notes(context.ledger.read(), context.wall(), run_id)
    yield from (note.message for note in notes)


def _swept(context: Context, run: RunState, *, whole: bool, verbose: bool) -> list[str]:
    """The results that a sweep's dollars bought; its trials, too, where it alone is reported."""
    from trmcloud.app.sweep_facts import sweep_of
    from trmcloud.app.sweep_priors import priors_of
    from trmcloud.cli.views.sweep import report_lines, trial_lines

    swept = sweep_of(context, run)
    if swept is None:
        return []
    lines = [
        f"{run.run_id}: {line}" for line in report_lines(swept, priors_of(run.plan, swept.terms))
    ]
    return lines + (trial_lines(swept, verbose=verbose) if whole else [])


def _write_picture(context: Context, run: RunState, file: str) -> None:
    from trmcloud.app.sweep_facts import sweep_of
    from trmcloud.cli.views.sweep import picture

    swept = sweep_of(context, run)
    if swept is None:
        raise UsageError(
            f"--plot draws a sweep, and {run.run_id} is one training",
            next_step=f"trmcloud report {run.run_id} --html FILE",
        )
    size = _write(file, picture(swept))
    print(f"{run.run_id}: picture written to {file}, {size / 1e3:,.0f} kB")


def _write_receipt(context: Context, run: RunState, file: str, *, as_json: bool) -> None:
    from importlib.metadata import version

    from trmcloud.app.receipts import receipt_of
    from trmcloud.cli.views.html_page import page_of

    made_by = f"trmcloud {version('trmcloud')}"
    receipt = receipt_of(context, build_chain(), run, made_by)
    size = _write(file, page_of(receipt))
    if as_json:
        made = views.ReceiptWritten(
            run=run.run_id,
            path=file,
            size_bytes=size,
            final=bool(receipt.account["final"]),
            receipt=Verbatim(json.loads(receipt.text)),
        )
        print_document(made)
        return
    final = "" if receipt.account["final"] else "; not final: its costs may still change"
    print(f"{run.run_id}: receipt written to {file}, {size / 1e3:,.0f} kB{final}")
    print(f"  check it: trmcloud report --verify {shlex.quote(file)}")


def _write_focus(context: Context, month: str, file: str, *, as_json: bool) -> None:
    _require_month(month)
    month = month or month_of(context.wall())
    rows = focus_rows(context.ledger.read(), month)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    size = _write(file, text.getvalue())
    if as_json:
        print_document(
            views.FocusWritten(
                month=month, path=file, rows=len(rows), billed_usd=total_of(rows), size_bytes=size
            )
        )
        return
    print(f"{month}: {len(rows)} charges, {total_of(rows)}, written to {file} as FOCUS 1.0")


def _require_month(month: str) -> None:
    """
    Raises:
        UsageError: it is none.
    """
    if month and not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", month):
        raise UsageError(f"{month!r} is not a month", next_step="trmcloud report 2026-11 --month")


def _show_month(context: Context, month: str, *, as_json: bool, html: str) -> None:
    _require_month(month)
    now = context.wall()
    shown = report_month(context.ledger.read(), month or month_of(now))
    report = month_document(shown, html)
    if html:
        from importlib.metadata import version

        size = _write(html, month_page(report, now, f"trmcloud {version('trmcloud')}"))
    if as_json:
        print_document(report)
        return
    print("\n".join(month_lines(report)))
    if html:
        print(f"\nwritten to {html}, {size / 1e3:,.0f} kB")


def _write(file: str, text: str) -> int:
    """
    Raises:
        ConflictError: it cannot be written.
    """
    try:
        write_atomic(Path(file), text, durable=False)
    except OSError as error:
        raise ConflictError(
            f"the file cannot be written: {error.strerror}",
            where=file,
            next_step="use --html with another file",
        ) from None
    return len(text.encode())


def _csv_row(report: RunReport) -> list[object]:
    amounts = (
        *(report.budget, report.planned, report.accrued),
        *(report.billed, report.at_most, report.reserved),
    )
    data = [
        *(report.run_id, report.hardware, report.recipe, report.state, report.outcome),
        *(None if amount is None else float(amount) for amount in amounts),
        *(report.paid_s, report.useful_fraction, report.steps_done),
    ]
    seconds = [f"{report.seconds[name]:.3f}" for name in PARTS]
    best = report.best
    found: list[object] = ["", "", "", ""]
    if best is not None:
        command = report.command
        name = command.metric_name if command is not None else "val_bpb"
        bits = best.val_bpb if command is None else ""
        found = [bits, best.sha256, one_line(name), report.best_metric]
    return [*data, *seconds, *found]


def _show(reports: list[RunReport], names: Mapping[str, str], *, verbose: bool) -> None:
    """``names``: the users' own, by run."""
    if not reports:
        print("no runs yet")
        return
    of_commands = [r.recipe == RECIPE for r in reports]
    heads: tuple[str, ...] = _MONEY_OF_COMMANDS if any(of_commands) else _MONEY
    heads = heads[:-1] if all(of_commands) else heads
    rows = [_money_row(r, names[r.run_id])[: len(heads)] for r in reports]
    print("\n".join(table(heads, rows)))
    if any(r.best is not None and r.best.val_bpb is not None and not r.here for r in reports):
        print(marked_words())
    print()
    print("\n".join(table(_TIME, [_time_row(r) for r in reports])))
    print()
    if any(r.planned_hours is not None for r in reports):
        print("\n".join(table(_PREDICTED, [_predicted_row(r) for r in reports])))
        print()
    for r in reports:
        if r.bucket and r.best is not None:
            whose = "" if r.here else "pod's "
            print(f"{r.run_id}: its {whose}best is {r.best.label} in {r.bucket}")
        if r.on_volume and r.best is None:
            print(f"{r.run_id}: its best is {on_volume(r.run_id)}")
    for r in reports:
        if told := _data_line(r, verbose=verbose):
            print(f"{r.run_id}: {told}")
    known = [r for r in reports if r.billed is not None]
    unknown = len(reports) - len(known)
    billed = total(r.billed for r in known if r.billed is not None)
    accrued = total(r.accrued for r in known)
    drift = billed.micros / accrued.micros - 1 if accrued else 0.0
    alarm = "  ← billed and accrued differ" if abs(drift) > DRIFT_ALARM else ""
    most, sum_accrued = total(r.at_most for r in reports), total(r.accrued for r in reports)
    counted = f"{len(reports)} run{'s' if len(reports) > 1 else ''}"
    print(
        f"total {counted} · planned {total(r.planned for r in reports)} · "
        f"accrued {sum_accrued} · billed {billed}"
        + (f" and {unknown} not known yet" if unknown else "")
        + (f" · at most {most} until all bills are final" if most > sum_accrued else "")
        + (f" · drift {drift:+.1%}{alarm}" if accrued else "")
    )


_PREDICTED = (
    *("run", "time planned", "paid", "tokens/s planned", "measured", "$ planned", "paid"),
)
_MONEY = ("run", "hardware", "planned", "accrued", "billed", "best bpb", "$ per −0.01 bpb")
_MONEY_OF_COMMANDS = (*_MONEY[:-2], "best", _MONEY[-1])
_TIME = ("run", "paid", "training", "startup", "compile", "eval+save", "other")


def _money_row(r: RunReport, name: str) -> tuple[str, ...]:
    """Return the row of a run's cost, and what that bought."""
    best = score_cell(r.command, r.best_told)
    return (
        f"{r.run_id} {name}".rstrip(),
        r.hardware,
        str(r.planned),
        str(r.accrued),
        "unknown" if r.billed is None else str(r.billed),
        best,
        _per_centibpb(r.usd_per_centibpb),
    )


def _predicted_row(r: RunReport) -> tuple[str, ...]:
    """Return the row of the plan's P50 beside the measured values."""

    def count(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    return (
        r.run_id,
        "–" if r.planned_hours is None else duration(r.planned_hours * 3600),
        duration(r.paid_s),
        count(r.planned_tokens_per_s),
        count(r.tokens_per_s),
        str(r.planned),
        str(r.accrued if r.billed is None else r.billed),
    )


def _time_row(r: RunReport) -> tuple[str, ...]:
    """Return the row of the time that it paid for, by use."""

    def share(*names: str) -> str:
        part = sum(r.seconds[name] for name in names)
        return f"{100 * part / r.paid_s:.0f} %" if r.paid_s else "–"

    return (
        r.run_id,
        duration(r.paid_s),
        share("training"),
        share("startup"),
        share("compile"),
        share("evaluating", "saving", "landing"),
        share("data", "other"),
    )


def _data_line(report: RunReport, *, verbose: bool) -> str:
    """Describe the time that training waited for data that its machine made, and the planned time;
    where it did not wait, that is a detail."""
    waited_s, planned_s = report.seconds["data"], report.planned_data_s
    if round(waited_s) < 1 and not (verbose and report.data_told):
        return ""
    words = [f"waited {duration(waited_s)} for data ({report.data_usd})"]
    words.append(f"planned {duration(planned_s)} ({report.planned_data_usd})")
    return " · ".join([*words, *filter(None, [report.data_told])])


def _per_centibpb(usd: float | None) -> str:
    if usd is None:
        return "–"
    return f"${usd:.4f}" if usd >= 0.00005 else "< $0.0001"
