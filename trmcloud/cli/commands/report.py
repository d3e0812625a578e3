"""``trmcloud report``: planned, accrued and billed; where the time went."""

from __future__ import annotations

import csv
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

from trmcloud.cli import options
from trmcloud.cli.catch_up import catch_up
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.metrics import checkpoint_cell, goal_lines, marked_words, target_lines
from trmcloud.cli.views.month import month_lines, month_page
from trmcloud.cli.views.streams import as_is
from trmcloud.cli.views.text import duration, on_volume, table
from trmcloud.cli.views.troubles import failure_lines, trouble_code
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.errors import ConflictError, UsageError
from trmcloud.io.files import write_atomic
from trmcloud.operations import views
from trmcloud.operations.context import Context, find_run, run_by_id, shown_runs
from trmcloud.operations.encoding import Verbatim
from trmcloud.operations.launch.labels import has_tags, parse_tags
from trmcloud.operations.money.spending import focus_csv, month_view
from trmcloud.operations.narration import pace_lines
from trmcloud.operations.plans.measurements import note_measured, speeds_of
from trmcloud.operations.runs.run_facts import CSV_COLUMNS, csv_row, report_run
from trmcloud.operations.runs.run_views import run_account, run_reported, totals_of, volume_notes
from trmcloud.operations.views import RunAccount, filled
from trmcloud.wiring import build_chain, build_context

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
        _write_picture(context, run, plot)
    elif html:
        _write_receipt(context, run, html, as_json=as_json)
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
    pairs = list(zip(states, reports, strict=True))
    if as_json:
        rows = tuple(run_reported(context, *each) for each in pairs)
        print_document(views.Reports(runs=rows))
    elif as_csv:
        writer = csv.writer(as_is())
        writer.writerow(CSV_COLUMNS)
        writer.writerows(map(csv_row, reports))
    else:
        accounts = [run_account(context, *each) for each in pairs]
        told = {report.run_id: report.data_told for report in reports}
        _show(accounts, told, verbose=verbose)
        for line in _lines_below(context, accounts, is_one=bool(run), verbose=verbose):
            print(line)


def _lines_below(
    context: Context, accounts: Sequence[RunAccount], *, is_one: bool, verbose: bool
) -> Iterator[str]:
    """Each run's pace, targets, goals and trials, and the volumes, below the tables."""
    states = [run_by_id(context, account.run) for account in accounts]
    for state in states:
        for pace in state.paces:
            yield from (f"{state.run_id}: {line}" for line in pace_lines(state, pace))
    for account in accounts:
        said = target_lines(account.verdict) + goal_lines(account.goal)
        yield from (f"{account.run}: {text}" for text in said)
    if is_one:
        from trmcloud.operations.commands.failed_commands import failure_of

        yield from failure_lines(failure_of(context, states[0]))
    for state in states:
        if state.spec.sweep is not None:
            yield from _swept(context, state.run_id, whole=is_one, verbose=verbose)
    run_id = states[0].run_id if is_one else ""
    notes = volume_notes(context.ledger.read(), context.wall(), run_id)
    yield from (note.message for note in notes)


def _swept(context: Context, run_id: str, *, whole: bool, verbose: bool) -> list[str]:
    """The results that a sweep's dollars bought; its trials, too, where it alone is reported."""
    from trmcloud.cli.views.sweep import report_lines, trial_lines
    from trmcloud.operations.sweeps.sweep_facts import sweep_of
    from trmcloud.operations.sweeps.sweep_priors import priors_of

    run = run_by_id(context, run_id)
    swept = sweep_of(context, run)
    if swept is None:
        return []
    lines = [f"{run_id}: {line}" for line in report_lines(swept, priors_of(run.plan, swept.terms))]
    return lines + (trial_lines(swept, verbose=verbose) if whole else [])


def _write_picture(context: Context, run_id: str, file: str) -> None:
    from trmcloud.cli.views.sweep import picture
    from trmcloud.operations.sweeps.sweep_facts import sweep_of

    run = find_run(context, run_id or None)
    swept = sweep_of(context, run)
    if swept is None:
        raise UsageError(
            f"--plot draws a sweep, and {run.run_id} is one training",
            next_step=f"trmcloud report {run.run_id} --html FILE",
        )
    size = _write(file, picture(swept))
    print(f"{run.run_id}: picture written to {file}, {size / 1e3:,.0f} kB")


def _write_receipt(context: Context, name: str, file: str, *, as_json: bool) -> None:
    from importlib.metadata import version

    from trmcloud.operations.money.html_page import page_of
    from trmcloud.operations.money.receipts import receipt_of

    run, made_by = find_run(context, name or None), f"trmcloud {version('trmcloud')}"
    receipt = receipt_of(context, build_chain(), run, made_by)
    size = _write(file, page_of(receipt))
    written = views.ReceiptWritten(
        run=run.run_id,
        path=file,
        size_bytes=size,
        final=bool(receipt.account["final"]),
        receipt=Verbatim(json.loads(receipt.text)),
    )
    final = "" if written.final else "; not final: its costs may still change"
    lines = (
        f"{run.run_id}: receipt written to {file}, {size / 1e3:,.0f} kB{final}",
        f"  check it: trmcloud report --verify {shlex.quote(file)}",
    )
    print_answer(written, lines, as_json=as_json)


def _write_focus(context: Context, month: str, file: str, *, as_json: bool) -> None:
    _require_month(month)
    made = focus_csv(context.ledger.read(), context.wall(), month)
    size = _write(file, made.text)
    charges = f"{made.rows} charge{'s' if made.rows != 1 else ''}"
    line = f"{made.month}: {charges}, {made.billed}, written to {file} as FOCUS 1.0"
    written = filled(views.FocusWritten, made, path=file, size_bytes=size)
    print_answer(written, [line], as_json=as_json)


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
    report = month_view(context.ledger.read(), now, month, html)
    if html:
        from importlib.metadata import version

        size = _write(html, month_page(report, now, f"trmcloud {version('trmcloud')}"))
    written = ["", f"written to {html}, {size / 1e3:,.0f} kB"] if html else []
    print_answer(report, [*month_lines(report), *written], as_json=as_json)


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


def _show(accounts: Sequence[RunAccount], told: Mapping[str, str], *, verbose: bool) -> None:
    """``told``: what each run's machine said of its data."""
    if not accounts:
        print("no runs yet")
        return
    of_commands = [each.recipe == RECIPE for each in accounts]
    heads: tuple[str, ...] = _MONEY_OF_COMMANDS if any(of_commands) else _MONEY
    heads = heads[:-1] if all(of_commands) else heads
    rows = [_money_row(each)[: len(heads)] for each in accounts]
    print("\n".join(table(heads, rows)))
    if any(each.best and each.best.evaluated and each.best.reported_by for each in accounts):
        print(marked_words())
    print()
    print("\n".join(table(_TIME, [_time_row(each) for each in accounts])))
    print()
    if any(each.planned_s is not None for each in accounts):
        print("\n".join(table(_PREDICTED, [_predicted_row(each) for each in accounts])))
        print()
    for each in accounts:
        if each.bucket and each.best is not None:
            whose = "" if each.trained_here else "pod's "
            print(f"{each.run}: its {whose}best is {each.best.checkpoint} in {each.bucket}")
        if each.on_volume and each.best is None:
            print(f"{each.run}: its best is {on_volume(each.run)}")
    for each in accounts:
        if line := _data_line(each.data, told[each.run], verbose=verbose):
            print(f"{each.run}: {line}")
    whole = totals_of(accounts)
    alarm = "  ← billed and accrued differ" if whole.is_alarming else ""
    counted = f"{len(accounts)} run{'s' if len(accounts) > 1 else ''}"
    drift = f" · drift {round(whole.drift or 0.0, 3) or 0.0:+.1%}{alarm}"
    print(
        f"total {counted} · planned {whole.planned} · accrued {whole.accrued} · "
        f"billed {whole.billed}"
        + (f" and {whole.unbilled} not known yet" if whole.unbilled else "")
        + (f" · at most {whole.at_most} until all bills are final" if whole.is_open else "")
        + (drift if whole.drift is not None else "")
    )


_PREDICTED = (
    *("run", "time planned", "paid", "tokens/s planned", "measured", "$ planned", "paid"),
)
_MONEY = ("run", "hardware", "planned", "accrued", "billed", "best bpb", "$ per −0.01 bpb")
_MONEY_OF_COMMANDS = (*_MONEY[:-2], "best", _MONEY[-1])
_TIME = ("run", "paid", "training", "startup", "compile", "eval+save", "other")


def _money_row(r: RunAccount) -> tuple[str, ...]:
    """Return the row of a run's cost, and what that bought."""
    return (
        f"{r.run} {r.name or ''}".rstrip(),
        r.hardware,
        str(r.planned_usd),
        str(r.accrued_usd),
        "unknown" if r.billed_usd is None else str(r.billed_usd),
        checkpoint_cell(r.best),
        _per_centibpb(r.per_centibpb_usd),
    )


def _predicted_row(r: RunAccount) -> tuple[str, ...]:
    """Return the row of the plan's P50 beside the measured values."""

    def count(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    return (
        r.run,
        "–" if r.planned_s is None else duration(r.planned_s),
        duration(r.paid_s),
        count(r.planned_tokens_per_second),
        count(r.tokens_per_second),
        str(r.planned_usd),
        str(r.accrued_usd if r.billed_usd is None else r.billed_usd),
    )


def _time_row(r: RunAccount) -> tuple[str, ...]:
    """Return the row of the time that it paid for, by use."""

    def share(*names: str) -> str:
        part = sum(r.parts_s[name] for name in names)
        return f"{100 * part / r.paid_s:.0f} %" if r.paid_s else "–"

    return (
        r.run,
        duration(r.paid_s),
        share("training"),
        share("startup"),
        share("compile"),
        share("evaluating", "saving", "landing"),
        share("data", "other"),
    )


def _data_line(data: views.DataWait, told: str, *, verbose: bool) -> str:
    """Describe the time that training waited for data that its machine made, and the planned time;
    where it did not wait, that is a detail."""
    if round(data.waited_s) < 1 and not (verbose and told):
        return ""
    words = [f"waited {duration(data.waited_s)} for data ({data.waited_usd})"]
    words.append(f"planned {duration(data.planned_s)} ({data.planned_usd})")
    return " · ".join([*words, *filter(None, [told])])


def _per_centibpb(usd: float | None) -> str:
    if usd is None:
        return "–"
    return f"${usd:.4f}" if usd >= 0.00005 else "< $0.0001"
