"""Status of runs as text: one run, or a table of several, from their views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trmcloud.cli.views.health import format_rows, health_rows, recovered_rows, verdict_lines
from trmcloud.cli.views.metrics import (
    buys_words,
    checkpoint_words,
    marked_words,
    metric_cell,
    told_of,
    training_rows,
)
from trmcloud.cli.views.text import CHECKPOINTS, fields, on_volume, table
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.reported import MARK

if TYPE_CHECKING:
    from trmcloud.operations import views

RESUMABLE = (Outcome.STOPPED, Outcome.KILLED, Outcome.LOST, Outcome.UNREPORTED)
"""Ends after which a run is usually resumed."""
_TOLD = Usd("0.01")
"""From here on, proven amounts and upper bounds are told apart."""
_ABSENT, _WORKING = "absent", ("verified", "armed")


def show_table(rows: Sequence[views.RunRow], volumes: Sequence[views.Note]) -> None:
    """Print a row for each run, and a line for each of ``volumes``."""
    of_recipes = all(row.recipe != RECIPE for row in rows)
    head = "bpb" if of_recipes else "metric"
    header = ("run", "state", "spent / cap", head, "best", "kill layers", "max overspend")
    cells = [_cells(row) for row in rows]
    print("\n".join(table(header, cells)))
    if any(cell.endswith((MARK, f"{MARK}, fetched")) for row in cells for cell in row[3:5]):
        print(marked_words())
    for note in volumes:
        print(note.message)
    unasked = [row for row in rows if row.unasked]
    if unasked:
        vias = " and ".join(dict.fromkeys(row.via or "" for row in unasked))
        names = ", ".join(row.run for row in unasked)
        print(f"not asked about {names}: {vias} (trmcloud status --live)")


def _cells(row: views.RunRow) -> tuple[str, ...]:
    best = "–"
    if row.best is not None:
        best = told_of(row.best).as_marked(lambda made: f"step {made.step:,}")
        best += ", fetched" if row.fetched else ""
    layers = " · ".join(
        x.name + (" ✔" if x.state == "verified" else "") for x in row.guards if x.state in _WORKING
    )
    return (
        " ".join(filter(None, (row.run, row.name, row.hardware))),
        row.state,
        f"{_spent(row)} / {row.cap_usd}",
        metric_cell(row),
        best,
        layers or ("–" if not row.live else "none armed"),
        next(iter(_messages(row, "max_overspend")), "–"),
    )


def _spent(row: views.RunRow) -> str:
    if row.at_most_usd - row.spent_usd >= _TOLD:
        return f"{row.spent_usd} (≤ {row.at_most_usd})"
    return str(row.spent_usd)


def _notes(row: views.RunRow, code: str) -> list[views.Note]:
    return [note for note in row.notes if note.code == code]


def _messages(row: views.RunRow, code: str) -> list[str]:
    return [note.message for note in _notes(row, code)]


_IN_THE_WAY = {
    "estimate": "bill",
    "not_asked": "not asked",
    "home": "home",
    "waits": "waits for",
    "asks": "asks",
    "link": "link",
    "boot": "pod's log",
    "bucket": "bucket",
    "balance": "balance",
    "wrong_board": "board",
    "slower_board": "board",
    "other_board": "board",
    "said": "board",
    "measured": "measured",
    "slow": "slow",
}
"""Notes by code, in the order in which they are shown, and the names of their rows."""
_OF_THE_MACHINE = {"host_key": "host key", "on_machine": "on the machine", "by_hand": "by hand"}


def _noted(view: views.RunView, names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the rows of those notes that ``names`` names."""
    texts = ((name, text) for code, name in names.items() for text in _messages(view, code))
    return [
        (name, text.removeprefix("Measured: ").removeprefix("Measured ")) for name, text in texts
    ]


def show_one(view: views.RunView, trials: Sequence[str] = (), *, verbose: bool = False) -> None:
    """Print one run: its state, money, training and checkpoints, what guards it, and the next
    command; with ``verbose`` also why each absent kill layer is absent. ``trials``: of a sweep."""
    rows = [
        ("run", f"{view.run} · {view.recipe} on {view.hardware} · project {view.project}"),
        *([("name", view.name)] if view.name else []),
        *_noted(view, {"principal": "principal"}),
        *([("tags", ", ".join(f"{k}={v}" for k, v in view.tags.items()))] if view.tags else []),
        ("state", " · ".join((view.state, *_messages(view, "meaning")))),
        ("spent", f"{view.spent_usd} of {view.cap_usd} · {view.reserved_usd} reserved"),
    ]
    if view.at_most_usd - view.spent_usd >= _TOLD:
        rows += [("at most", f"{view.at_most_usd}, {x}") for x in _messages(view, "unproven")]
    rows += [("volume", x.removeprefix("network volume ")) for x in _messages(view, "volume")]
    if view.reason is not None and view.reason.message:
        rows.insert(2, ("why", view.reason.message))
    rows += _noted(view, _IN_THE_WAY)
    rows += _noted(view, {"data": "data"}) if view.live else []
    rows += training_rows(view)
    if view.live and (buys := buys_words(view.next_usd_buys_bpb, view.next_hour_buys_bpb)):
        rows.append(("pays", buys))

    rows += format_rows(view.precision)
    rows += recovered_rows(view.recoveries)
    rows += health_rows(view.health)
    rows += _noted(view, _OF_THE_MACHINE)
    if view.failed_boots:
        rows.append(("failed boots", f"{view.failed_boots}, {view.failed_boots_usd} at most"))
    rows += _noted(view, {"clock": "clock"})
    rows += _checkpoint_rows(view)
    rows += [(note.facts["what"], note.message) for note in _notes(view, "resumed")]
    rows += [("fetched", f"{x.phase} step {x.step} → {x.path}") for x in view.fetched]
    rows += _guard_rows(view.guards, verbose=verbose)
    rows += _noted(view, {"max_overspend": "max overspend"})
    rows += [
        ("damaged", f"{note.facts['checkpoint']}: {note.message}")
        for note in _notes(view, "damaged_checkpoint")
    ]
    lines = [*fields(rows), *trials, *verdict_lines(view)]
    if commands := _next_commands(view):
        lines.append(f"next: {commands}")
    print("\n".join(lines))


def _checkpoint_rows(view: views.RunView) -> list[tuple[str, str]]:
    """Return rows: the best and the latest checkpoint, and where checkpoints are."""
    rows = []
    best, own, latest = view.best, view.own_best, view.latest
    if best is not None:
        words = checkpoint_words(view, best)
        rows.append(("best", f"{best.checkpoint} · {words} · {best.sha256}"))
    elif own is not None:
        rows.append(
            ("best", f"{own.checkpoint} · the script's own, {own.name or ''} · {own.sha256}")
        )
    if latest is not None and not latest.evaluated:
        rows.append(("latest", f"{latest.checkpoint} · not evaluated · {latest.sha256}"))
    if best is None and latest is None and view.on_volume:
        rows.append(("best", on_volume(view.run)))
    if view.bucket:
        rows.append((CHECKPOINTS, view.bucket))
    return rows


def _guard_rows(layers: Sequence[views.Guard], *, verbose: bool) -> list[tuple[str, str]]:
    """Return rows: each kill layer, the absent ones in one row unless ``verbose``."""
    shown = [layer for layer in layers if verbose or layer.state != _ABSENT]
    rows = [(f"guard: {layer.name}", f"{layer.state} · {layer.message}") for layer in shown]
    absent = [layer.name for layer in layers if layer not in shown]
    if absent:
        rows.append(("guards absent", f"{' · '.join(absent)}; details: -v"))
    return rows


def _next_commands(view: views.RunView) -> str:
    """Return the next command to type about a run."""
    run = view.run
    if view.live:
        return f"trmcloud logs -f {run} · save {run} · stop {run}"
    verbs = ["fetch-best"] if (view.best or view.latest) and not view.fetched else []
    verbs += ["resume"] if view.outcome in RESUMABLE else []
    return f"trmcloud {' · '.join(f'{verb} {run}' for verb in verbs)}" if verbs else ""
