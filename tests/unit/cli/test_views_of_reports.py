"""Views: a pod's word is shown as its own, every screen fits its width, and a month adds up."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.documents import valid
from tests.unit.cli import told_home
from tests.unit.cli.told_home import own_home, told
from tests.unit.core.test_strays import AT, ENDED, Book
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.adapters.local.machine import SystemClock
from trmcloud.cli.commands.stop import _show
from trmcloud.cli.main import COMMANDS, load_command, main
from trmcloud.cli.page.shown import run_json
from trmcloud.cli.views import run_bar, status
from trmcloud.cli.views.metrics import checkpoint_cell
from trmcloud.cli.views.month import month_lines, month_page
from trmcloud.cli.views.run import _show_left
from trmcloud.cli.views.streams import padded, width, wrap
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.contract.pod_contract import CheckpointRef
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import PROJECT_MONTH, LedgerState
from trmcloud.core.control.grants import month_of
from trmcloud.core.control.month import KINDS, NO_RUN
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.operations.checkpoints import inventory
from trmcloud.operations.checkpoints.saving import Place
from trmcloud.operations.context import Context
from trmcloud.operations.encoding import as_object
from trmcloud.operations.money.html_page import page_of
from trmcloud.operations.money.receipts import receipt_of
from trmcloud.operations.money.spending import month_view
from trmcloud.operations.narration import words_of
from trmcloud.operations.runs.live_run import left_run, paid_of, progress_of, share_done, stage_of
from trmcloud.operations.runs.run_facts import facts_of, report_run
from trmcloud.operations.runs.run_views import own_metric, run_row, run_view, saved_view
from trmcloud.operations.views import RunCheckpoint
from trmcloud.options import LaunchRequest, rows_of
from trmcloud.wiring import build_chain, build_context

__all__ = ["own_home", "told"]

# -- views of reports ---------------------------------------------------------------------------
# A rented pod's word on every screen: said to be the pod's; a run on this machine as it was.


BY_POD = "by the pod's report"


@pytest.fixture
def context(own_home: Path) -> Context:
    return build_context()


def local_run(context: Context) -> RunState:
    runs = context.ledger.read().runs
    return next(runs[i] for o, i in told_home.RUNS.items() if runs[i].trained_here and _kept(o))


def rented_run(context: Context) -> RunState:
    return context.ledger.read().runs[told_home.LIVE_RUN]


def _kept(outcome: Outcome) -> bool:
    return outcome not in (Outcome.NOT_STARTED, Outcome.UNFIT, Outcome.LOST)


def test_the_table_marks_what_a_pod_told(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_table([run_row(context, rented_run(context))], ())
    shown = capsys.readouterr().out
    assert "1.402*" in shown
    assert "step 1,000*" in shown
    assert [line for line in shown.splitlines() if line.startswith(f"* {BY_POD}")]
    status.show_table([run_row(context, local_run(context))], ())
    shown = capsys.readouterr().out
    assert "1.402" in shown
    assert "*" not in shown
    assert BY_POD not in shown


def test_one_run_says_whose_training_losses_and_gate_it_shows(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show_one(run_view(context, rented_run(context)))
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for row in ("training", "losses", "best"):
        assert BY_POD in rows[row], row
    landed = context.ledger.read().runs[told_home.RUNS[Outcome.FINISHED]]
    for run in (landed, local_run(context)):
        status.show_one(run_view(context, run))
        shown = capsys.readouterr().out
        assert (f"passed {BY_POD}" in shown) == (not run.trained_here)
        assert (BY_POD in shown) == (not run.trained_here)


def test_the_text_of_a_run_is_that_of_its_view(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    context.ledger.note(ev.BalanceLow("runpod", 6, Usd(9), Usd("2.5"), NOW, NOW + 9e3), NOW)
    codes = set()
    for run in context.ledger.read().runs.values():
        view = run_view(context, run)
        status.show_one(view, verbose=True)
        shown = capsys.readouterr().out
        for each in view.notes:
            codes.add(each.code)
            assert each.code == "unproven" or each.message in shown, each
        for guard in view.guards:
            assert f"{guard.state} · {guard.message}" in shown
        assert all(check.message in shown for gate in view.verdicts for check in gate.checks)
    assert {"max_overspend", "meaning", "link", "clock", "balance", "unproven"} <= codes


def test_json_of_status_names_who_reported(context: Context) -> None:
    rented, local = (run_view(context, run(context)) for run in (rented_run, local_run))
    assert rented.best is not None
    assert local.best is not None
    assert (rented.reported_by, rented.best.reported_by) == ("pod", "pod")
    assert (local.reported_by, local.best.reported_by) == (None, None)


def test_a_low_balance_stands_beside_the_run_that_it_pays_for(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    run, now = rented_run(context), context.wall()
    assert run.generation is not None
    provider = run.generation.provider
    status.show_one(run_view(context, run))
    assert "balance  " not in capsys.readouterr().out
    low = ev.BalanceLow(provider, 6, Usd(9), Usd("2.5"), now, now + 12_960.0)
    context.ledger.note(low, now)
    status.show_one(run_view(context, run))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"balance the {provider} balance was $9.00" in shown
    assert "at $2.50/h for the whole account; add credit" in shown
    told_of = run_view(context, run).balance
    assert told_of is not None
    assert (told_of.balance_usd, told_of.ends_at) == (Usd(9), low.ends_at)
    context.ledger.note(replace(low, hours=0, balance=Usd(900)), now)
    assert run_view(context, run).balance is None


def money_of_bar(run: RunState, beat: Heartbeat) -> list[str]:
    return run_bar.money_words(paid_of(run, beat.at), progress_of(run, beat, beat.at))


def words_of_bar(run: RunState, beat: Heartbeat) -> list[str]:
    return run_bar.training_words(progress_of(run, beat, beat.at)) + money_of_bar(run, beat)


def test_the_bar_says_whose_losses_and_best_they_are(context: Context) -> None:
    for run in (rented_run(context), local_run(context)):
        beat = context.files.heartbeat(run.run_id, "fast")
        assert beat is not None
        beat = replace(beat, saved_step=900, best_step=900)
        words = words_of_bar(run, beat)
        about = [word for word in words if "1.4" in word or "ℓ" in word or "saved" in word]
        assert len(about) == 4
        assert all(word.startswith("pod") != run.trained_here for word in about), about


def test_the_bars_percentage_is_of_what_it_names(context: Context) -> None:
    run = local_run(context)
    beat, generation = context.files.heartbeat(run.run_id, "fast"), run.generations[-1]
    assert beat is not None
    beat = replace(beat, step=300, steps=1_000)
    whole_s = generation.soft_stop_at - generation.intended_at
    live = replace(run, state=State.RUNNING)

    def shown(share_of_time: float) -> tuple[float, str]:
        at = generation.intended_at + share_of_time * whole_s
        share, of_what = share_done(live, beat, at)
        return round(share, 3), of_what

    assert shown(0.1) == (0.3, "steps")
    assert shown(0.8) == (0.8, "time")
    assert shown(7.0) == (1.0, "time")


def test_a_run_on_this_machine_rents_and_boots_nothing(context: Context) -> None:
    here, there = local_run(context), rented_run(context)
    for state in (State.RENTING, State.BOOTING, State.ENDING):
        assert "pod" not in stage_of(replace(here, state=state), None, None, "").lower()
    names = [
        [stage_of(replace(run, state=state), None, None, "") for run in (here, there)]
        for state in (State.RENTING, State.BOOTING, State.ENDING)
    ]
    assert names == [
        ["Starting", "Renting"],
        ["Starting", "Booting"],
        ["Ending its processes", "Ending the pod"],
    ]


def test_without_a_rate_no_budget_is_shown(context: Context) -> None:
    run = local_run(context)
    beat = context.files.heartbeat(run.run_id, "fast")
    assert beat is not None
    priced = money_of_bar(run, beat)[0]
    assert re.fullmatch(r"\$[\d.,]+ of \$[\d.,]+", priced)
    free = replace(
        run,
        settled=ZERO,
        generations=tuple(replace(each, rate=ZERO) for each in run.generations),
    )
    assert money_of_bar(free, beat)[0] == "free (no --rate)"


def watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[str, list[float]]:
    """What ``status --watch`` prints until it has slept twice; its pauses."""
    pauses: list[float] = []

    def sleep(clock: SystemClock, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    with pytest.raises(SystemExit) as ended:
        main(["status", "--watch", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out, pauses


def test_status_is_watched_until_the_user_leaves(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del context
    told, pauses = watched(monkeypatch, capsys, "--all")
    assert told.count("every 10 s · Ctrl-C leaves") == 2
    assert told.count("max overspend") == 2
    assert pauses == [10.0, 10.0]
    told, pauses = watched(monkeypatch, capsys, "--all", "--json")
    lines = [json.loads(line) for line in told.splitlines()]
    assert len(lines) == len(pauses) == 2
    assert all(valid(line)["schema"] == "status/1" for line in lines)


def test_watching_a_run_that_has_ended_ends(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = local_run(context)
    monkeypatch.setattr(SystemClock, "sleep", lambda clock, seconds: pytest.fail("it waits"))
    with pytest.raises(SystemExit):
        main(["status", "--watch", run.run_id])
    shown = capsys.readouterr().out
    assert run.outcome is not None
    assert re.search(rf"^state +{run.outcome.value} · ", shown, re.MULTILINE)


@pytest.mark.parametrize("command", ["plan", "launch", "run", "rehearse", "export"])
def test_options_are_listed_by_groups(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    shown = capsys.readouterr().out
    titles = re.findall(r"^(\S[^:\n]*):$", shown, re.MULTILINE)
    assert titles[0] == "Arguments" or command in ("plan", "try")
    assert titles[-1] == "Other options"
    assert {"Model and data", "Budget and length"} <= set(titles)
    for row in rows_of(LaunchRequest, command).values():
        if not row.is_positional:
            listed = re.search(rf"^  (?:-\w, )?{row.flag}\b", shown, re.MULTILINE)
            assert listed is not None, row.flag
            above = re.findall(r"^(\S[^:\n]*):$", shown[: listed.start()], re.MULTILINE)
            assert above[-1] == row.group, row.flag
    assert not re.search("<(str|int|float|list)", shown)


def test_a_notice_of_a_pods_word_says_so() -> None:
    facts: dict[NoticeKind, dict[str, Any]] = {
        NoticeKind.STARTED: {"phase": "fast"},
        NoticeKind.GATE: {"phase": "fast", "passed": True},
        NoticeKind.ENDED: {"outcome": "finished", "phase": "fast", "step": 9, "val_bpb": 1.4},
        NoticeKind.TROUBLE: {"what": "crashed", "phase": "fast", "step": 9, "mended": False},
    }
    for kind, known in facts.items():
        bare = words_of(Notice("i", kind, "r-1", 1.0, known))
        assert BY_POD not in bare["text"]
        said = words_of(Notice("i", kind, "r-1", 1.0, known | {"reported_by": "pod"}))
        assert BY_POD in said["text"], kind


def test_the_page_says_whose_numbers_it_shows(context: Context) -> None:
    for run in (rented_run(context), local_run(context)):
        training = run_json(facts_of(context, run))["training"]
        by = None if run.trained_here else "pod"
        assert (training.get("reported_by", ""), training["value"]) == (by, "1.402")
        assert (BY_POD in training["best"]) == (by == "pod")


def test_a_receipts_page_says_whose_numbers_it_shows(context: Context) -> None:
    chain = build_chain()
    rented = context.ledger.read().runs[told_home.RUNS[Outcome.LANDED]]
    runs = [rented, local_run(context)]
    if rented.trained_here:
        runs[0] = rented_run(context)
    for run in runs:
        page = unescape(page_of(receipt_of(context, chain, run, "trmcloud")))
        if run.trained_here:
            assert BY_POD not in page
        else:
            summary, _, rest = page.partition('<section id="asked">')
            assert BY_POD in summary
            assert BY_POD in rest.partition('<section id="checkpoints">')[2].partition("<script")[0]


@pytest.mark.parametrize(
    ("kind", "safe"),
    [(inventory.HERE, True), (inventory.BUCKET, False), (inventory.VOLUME, False),
     (inventory.POD, False)],
)  # fmt: skip
def test_saved_is_safe_only_where_bytes_were_read_here(
    context: Context, capsys: pytest.CaptureFixture[str], kind: str, safe: bool
) -> None:
    run = rented_run(context)
    kept = CheckpointRef("fast", 120, "ab" * 32, 1010, val_bpb=1.5)
    place = Place(kept, "s3://x/y", at=inventory.Place(kind, "s3://x/y"))
    saved = saved_view(run, place)
    _show(saved, "final-step bpb", place.words, as_json=True)
    made = json.loads(capsys.readouterr().out)
    assert (made["safe"], made.get("reported_by")) == (safe, "pod")
    _show(saved, "final-step bpb", place.words, as_json=False)
    first = capsys.readouterr().out.splitlines()[0]
    assert (BY_POD in first) == (not safe)
    assert len(first) <= 80


@pytest.mark.parametrize(
    ("metric", "higher", "score", "shown"),
    [("accuracy=([0-9.]+)", True, -0.93, "accuracy 0.93*"),
     ("val_loss", False, 1.5, "val_loss 1.5*"), ("", False, 1.5, "–")],
)  # fmt: skip
def test_a_checkpoint_known_by_a_report_shows_its_commands_metric(
    context: Context, metric: str, higher: bool, score: float, shown: str
) -> None:
    run = rented_run(context)
    command = Command(words=("python", "train.py"), metric=metric, higher_is_better=higher)
    best = CheckpointRef("train", 120, "ab" * 32, 1010, val_bpb=score if metric else None)
    report = replace(report_run(context, run), best=best, command=command)
    made = RunCheckpoint(
        checkpoint=best.label, name=None, step=best.step, evaluated=best.val_bpb is not None,
        val_bpb=None, metric=own_metric(command, best.val_bpb), sha256=best.sha256,
        reported_by="pod",
    )  # fmt: skip
    assert checkpoint_cell(made) == shown
    assert report.best_metric == (abs(score) if metric else None)


# -- widths -------------------------------------------------------------------------------------
# Every screen at 40, 60 and 80 columns: no line is wider than the terminal, and nothing that
# matters is cut into pieces.


LANDED, FAILED = told_home.RUNS[Outcome.LANDED], told_home.RUNS[Outcome.FAILED]
RENTED = ("--recipe", "trm", "--phase", "extreme", "--budget", "1000")
SCREENS = (
    ("status",), ("status", "--all"), *(("status", run) for run in told_home.RUNS.values()),
    ("status", told_home.LIVE_RUN), ("status", told_home.LIVE_RUN, "-v"),
    ("report",), ("report", "-v"), ("report", FAILED), ("logs", LANDED),
    ("prune", LANDED), ("fetch-best", LANDED), ("resume", FAILED), ("stop", LANDED),
    ("save", FAILED), ("admin", "reap"), ("budget", "show"), ("budget", "history"),
    ("budget", "raise", "month", "100"), ("doctor",), ("admin", "ledger", "check"),
    ("admin", "ledger", "backups"),
    ("admin", "guard", "status"), ("data", "list"),
    ("data", "show", "gsm8k"), ("prices", "show", "H100-SXM"), ("prices", "list"),
    ("prices", "list", "--guides"), ("prices", "diff"), ("plan", "--budget", "1000"),
    ("plan", "--budget", "1000", "-v", "--all"), ("plan", "--budget", "15"),
    ("plan", "--budget", "1000", "--explain", "8xA100"), ("plan", "--hardware", "4xA100",
    "--provider", "aws"), ("plan", "--hardware", "8xH100", "--budget", "1"),
    ("launch", "8xA100", *RENTED, "--dry-run"), ("launch", "8xA100", *RENTED, "--dry-run", "-v"),
    ("launch", "8xA100", *RENTED), ("launch", "local", "--recipe", "d24"), ("lunch",),
    ("rehearse", "8xH100", "--budget", "400", "--runs", "3", "--faults", "none"),
    ("rehearse", "1xH100", "--budget", "9", "--runs", "2", "--", "python", "train.py"),
    ("export", "8xA100", "--as", "bsh"), ("fetch-best", "."), ("admin", "volumes"),
    ("smoke", "--max-usd", "0.25"), ("report", "--to", "tensorboard", LANDED),
    ("eval", LANDED), ("--help",),
    ("budget",), *((name, "--help") for name in COMMANDS),
)  # fmt: skip


class Window(io.StringIO):
    """A terminal of a number of columns, as far as what is printed to it can tell."""

    def isatty(self) -> bool:
        return True


Typed = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To be copied, never used itself."""
    made = tmp_path_factory.mktemp("told") / "home"
    told_home.write(made)
    return made


@pytest.fixture
def typed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """What a command shows in a window of so many columns, stdout and stderr as they come."""
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("TRMCLOUD_", "RUNPOD_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # what is spent, and how long ago, stands still

    def type_(*words: str, columns: int) -> str:
        window = Window()
        with monkeypatch.context() as patched:
            patched.setenv("COLUMNS", str(columns))
            patched.setattr(sys, "stdout", window)
            patched.setattr(sys, "stderr", window)
            patched.setattr(sys, "stdin", io.StringIO())
            with pytest.raises(SystemExit):
                main(list(words))
        shown = window.getvalue()
        assert "unexpected" not in shown, shown
        assert shown.strip(), "a screen shows something"
        return re.sub(r"\x1b\[[0-9;]*m", "", shown)

    return type_


def too_wide(line: str, columns: int) -> bool:
    """A path, an address or a hash is not cut: it may be wider, on a line of its own."""
    return len(line) > columns and len(line.split()) > 1


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal_or_cut(typed: Typed, words: tuple[str, ...]) -> None:
    # A plan's id is new each time, and so are a doctor's figures and what a rehearsal's dice say.
    is_stable = words[0] not in ("plan", "launch", "rehearse", "doctor")
    whole = _whole(typed(*words, columns=400)) if is_stable and "--help" not in words else set()
    for columns in (80, 60, 40):
        shown = typed(*words, columns=columns)
        wide = [line for line in shown.splitlines() if too_wide(line, columns)]
        assert wide == [], f"{columns} columns:\n" + "\n".join(wide)
        assert whole <= _whole(shown), f"cut at {columns} columns"


def _whole(shown: str) -> set[str]:
    """Ids, amounts and hashes that stand on one line each."""
    return set(re.findall(r"\b[rp]-[0-9a-f]{4,6}\b|\$\d[\d,.]*\d|\b[0-9a-f]{64}\b", shown))


def test_every_command_has_a_screen_here() -> None:
    assert {words[0] for words in SCREENS} >= set(COMMANDS) - {"sample"}
    groups = {name for name in COMMANDS if hasattr(load_command(name), "commands")}
    assert groups == {
        "admin", "budget", "prices", "data", "grant",
    }  # fmt: skip
    below = {words[1] for words in SCREENS if words[0] == "admin" and len(words) > 1}
    assert below >= set(load_command("admin").commands) - {"notify"}


LONG = (
    "  hardware        8 × A100-80GB-SXM, runpod EU-RO-1, then 2 more candidates at most",
    "error: r-a10c01 has spent $104.20 of $104.20; try: trmcloud resume r-a10c01 --budget 200",
    "✔ Sending code and data        4 h 58 min · $1,234.5678 · 1.3 MB in all · and so on and on",
    "  folder          /very/long/path" + "/and/longer" * 9,
    "                              (through SkyPilot), or so",
    "no data was found where you said that it lies, in " + "/very/long" * 12 + " as you said",
)


@pytest.mark.parametrize("columns", range(20, 100))
def test_words_stay_whole_and_in_their_order(columns: int) -> None:
    for line in LONG:
        pieces = wrap(line, columns)
        assert [word for piece in pieces for word in piece.split()] == line.split()
        assert not [piece for piece in pieces if too_wide(piece, columns)]
        assert all(piece.strip() for piece in pieces)


def test_what_belongs_together_stays_together() -> None:
    line = "x " * 12 + "trmcloud resume r-a10c01 --budget 200 · it lands in 4 h 58 min or 12.4 GB"
    shown = wrap(line, 40)
    assert any("trmcloud resume r-a10c01 --budget 200" in piece for piece in shown)
    assert any("4 h 58 min" in piece for piece in shown)
    assert any("12.4 GB" in piece for piece in shown)
    assert not any(piece.strip().startswith("·") for piece in shown)


def test_what_stands_beside_a_name_is_indented_below_it() -> None:
    assert wrap("  stops  lands 3 min 11 s after its start, killed at 3 min 17 s", 40) == [
        "  stops  lands 3 min 11 s after its",
        "         start, killed at 3 min 17 s",
    ]
    assert wrap("error: no provider in the price table offers 4xA100 at aws", 40) == [
        "error: no provider in the price table",
        "  offers 4xA100 at aws",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert (width("step 12"), width("模型"), width("e\u0301"), width("ａ")) == (7, 4, 1, 2)
    line = "  lies in  ~/训练/检查点 and beside it ~/训练/数据 for the next run"
    pieces = wrap(line, 30)
    assert all(width(piece) <= 30 for piece in pieces)
    assert " ".join(" ".join(pieces).split()) == " ".join(line.split())
    assert padded("模型", 6) == "模型  "


def test_a_pipe_gets_a_line_for_each(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "isatty", lambda self: False)
    shown = typed("status", FAILED, columns=40)
    assert any(len(line) > 120 for line in shown.splitlines())
    rows = typed("status", "--all", columns=40).splitlines()
    assert len(rows) >= len(told_home.RUNS) + 2
    assert rows[0].split()[:2] == ["run", "state"] or any(line.startswith("run ") for line in rows)


@pytest.mark.parametrize(
    "words", [("status", "--json"), ("report", "--json"), ("report", "--csv")], ids=" ".join
)
def test_data_is_never_wrapped(
    typed: Typed, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal = typed(*words, columns=40)
    monkeypatch.setattr(Window, "isatty", lambda self: False)
    assert max(map(len, on_a_terminal.splitlines())) > 40
    assert _keys(typed(*words, columns=40)) == _keys(on_a_terminal)


def _keys(text: str) -> list[str]:
    return re.findall(r'^\s*"(\w+)":|^(run,.*)$', text, re.MULTILINE)


# -- month --------------------------------------------------------------------------------------
# A month, divided by project, provider and kind: each way it adds up to the month's own budget.


NOW = time.time()
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> LedgerState:
    """Runs of every end, one of them with orphaned pods, which the provider has billed or not."""
    home = tmp_path_factory.mktemp("month")
    told_home.write(home)
    made = SqliteLedger(home / "ledger.db")
    at = time.time()
    run_id = told_home.LIVE_RUN
    for pod_id, owner, amount in (("s-1", run_id, "0.40"), ("s-2", "", "0.07")):
        charge = ev.StrayCharged("runpod", pod_id, "trmc-x", owner, at - 60, Usd(amount))
        made.note(charge, at)
    made.note(ev.StrayBilled("runpod", "s-2", Usd("0.05")), at)
    return made.read()


def months(ledger: LedgerState) -> list[str]:
    return sorted({month_of(run.reserved_at) for run in ledger.runs.values()})


def test_each_list_adds_up_to_the_months_budget(ledger: LedgerState) -> None:
    assert month_of(NOW) in months(ledger) or len(months(ledger)) == 1
    for month in months(ledger):
        report = month_view(ledger, NOW, month)
        line = ledger.line("month", month)
        for shares in (report.projects, report.providers, report.kinds):
            assert total(share.spent_usd for share in shares) == line.settled
            assert total(share.reserved_usd for share in shares) == line.reserved
        assert {share.name for share in report.kinds} <= set(KINDS)
        if report.grown:
            grown = [(each.until_at, each.spent_usd) for each in report.grown]
            assert grown[-1][1] <= line.settled
            assert grown == sorted(grown)


def test_orphans_stand_apart_and_go_to_their_project(ledger: LedgerState) -> None:
    report = month_view(ledger, NOW, month_of(time.time()))
    orphans = next(share for share in report.kinds if share.name == "orphans")
    assert (orphans.spent_usd, orphans.reserved_usd) == (Usd("0.05"), Usd("0.40"))
    assert orphans.unproven_usd == Usd("0.40")
    without_run = next(s for s in report.projects if s.name == NO_RUN)
    assert without_run.spent_usd + without_run.reserved_usd == Usd("0.05")
    assert NO_RUN not in {share.name for share in report.providers}


def test_a_month_without_anything_says_so(ledger: LedgerState) -> None:
    report = month_view(ledger, NOW, "2019-02")
    assert (report.projects, report.grown) == ((), ())
    assert month_lines(report)[-1] == "no money was spent or reserved"
    assert "<svg" in month_page(report, NOW, "trmcloud test")


def test_caps_stand_beside_what_they_bind(ledger: LedgerState) -> None:
    month = month_of(time.time())
    report = month_view(ledger, NOW, month)
    lines = month_lines(report)
    # How many of the home's runs fall into this month depends on the day of the month.
    counted = "1 run" if len(report.runs) == 1 else f"{len(report.runs)} runs"
    assert lines[0].startswith(f"{month} · {counted} · ")
    assert " of $500.00, " in lines[0]
    data = valid(as_object(report))
    assert (data["month"], data["budget"]["cap_usd"]) == (month, "500")


def test_a_projects_month_stands_beside_what_it_binds(ledger: LedgerState) -> None:
    month = month_of(time.time())
    assert month_view(ledger, NOW, month).project_months == ()
    project = month_view(ledger, NOW, month).projects[0].name
    caps = {**ledger.caps, (PROJECT_MONTH, project): Usd(30), (PROJECT_MONTH, "z 2019-02"): Usd(4)}
    report = month_view(replace(ledger, caps=caps), NOW, month)
    (line,) = report.project_months
    share = next(each for each in report.projects if each.name == project)
    assert (line.name, line.cap_usd, line.spent_usd, line.reserved_usd) == (
        project, Usd(30), share.spent_usd, share.reserved_usd,
    )  # fmt: skip
    assert f"project {project} · " in "\n".join(month_lines(report))
    assert f"project {project}" in month_page(report, NOW, "trmcloud test")
    data = valid(as_object(report))
    assert [(row["name"], row["cap_usd"]) for row in data["project_months"]] == [(project, "30")]
    assert month_view(replace(ledger, caps=caps), NOW, "2019-02").project_months[1].name == "z"


def test_a_page_has_the_cap_as_a_line_and_no_tags_of_others(ledger: LedgerState) -> None:

    report = month_view(ledger, NOW, month_of(time.time()))
    shares = tuple(replace(share, name=EVIL) for share in report.projects)
    page = month_page(replace(report, projects=shares), NOW, EVIL)
    assert "<script" not in page
    assert page.count("<polyline") == 2
    assert "default-src 'none'" in page


def test_a_volumes_rent_stands_apart_from_its_machine() -> None:
    book = Book()
    book.run("r1")
    report = month_view(book.ledger, NOW, month_of(AT))
    line = book.ledger.line("month", month_of(AT))
    kinds = {share.name: share for share in report.kinds}
    assert kinds["compute"].spent_usd == line.settled == Usd(1)
    assert kinds["volumes"].reserved_usd == line.reserved > Usd(0)
    book.add("", ENDED + 60.0, ev.VolumeDeleted("runpod", "EU-RO-1", "me"))
    report = month_view(book.ledger, NOW, month_of(AT))
    volumes = next(share for share in report.kinds if share.name == "volumes")
    assert volumes.reserved_usd == Usd(0)
    assert volumes.spent_usd + Usd(1) == book.ledger.line("month", month_of(AT)).settled


def test_a_launch_that_leaves_says_at_what_the_run_is(
    told: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(told))
    context = build_context()
    run = context.ledger.read().runs[told_home.LIVE_RUN]
    _show_left(run.run_id, left_run(context, replace(run, state=State.BOOTING)))
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"{run.run_id}: not waited for its training; it is at: Booting"
    assert second == f"{run.run_id} continues without this command and stops at its limits."
    assert third.startswith(f"  trmcloud logs -f {run.run_id} · ")
    _show_left(run.run_id, left_run(context, replace(run, state=State.SETTLING)))
    assert "not waited" not in capsys.readouterr().out
