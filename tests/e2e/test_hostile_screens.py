"""Words that would steer a terminal, in every field of every screen: none reaches it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e import hostile_bar
from tests.e2e.test_terminal import Desk, terminal
from tests.e2e.user import User
from tests.reasons import quoted
from tests.typist import InProcess
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import load_heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import FailureKind
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import plan_to_json
from trmcloud.core.text import strip_control
from trmcloud.ports.ledger import ControllerId

__all__ = ["terminal"]

STEER = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\x85\u202e\u2066\u200f\u2028\ufeff\x00\x7f\x08"
FORGED = "error: all your money is gone"
WORDS = f"a{STEER}b\r\n{FORGED}\n\tc"
ME = ControllerId("here", 1, "1")


def _verdict(odd: bool) -> dict[str, object]:
    if odd:
        return {"passed": True, WORDS: WORDS}
    check = {"name": WORDS, "passed": False, "blocking": True, "detail": WORDS}
    return {"phase": "fast", "passed": False, "checks": [check]}


def _hostile_run(ledger: SqliteLedger, plan: object, run_id: str, *, ends: bool, odd: bool) -> None:
    """A run whose pod, provider and agent said nothing else."""
    at = 1_790_000_000.0
    planned = ev.RunPlanned(plan, Usd("1"), "default")  # type: ignore[arg-type]
    epoch = ledger.open_run(run_id, planned, Usd("0.5"), ME, at)
    candidate = plan["candidates"][0]["id"]  # type: ignore[index]
    name = f"trmc-{ledger.ledger_id}-{run_id.replace('-', '')}-g1-1790003600"
    act = f"{run_id}/g1/create/1"
    events: list[ev.RunEvent] = [
        ev.PodIntended(1, name, "local", candidate, Usd("3.6"), at + 3000, at + 3600),
        ev.ActionStarted(act, "create"),
        ev.ActionFailed(act, "create", FailureKind.AMBIGUOUS, WORDS),
        ev.PodUp(1, name, Usd("3.6")),
        ev.AgentUp(1),
        ev.PhaseEnded(1, "fast", "finished", 5, 1.5, {WORDS: 3.0, "training": 2.0}),
        ev.GateJudged(1, "fast", False, _verdict(odd)),
        ev.ResultKnown("failed", quoted(WORDS)),
        ev.PodGone(1, at + 60),
        ev.Settled(1, Usd("0.1"), Usd("0.1")),
    ]
    if ends:
        events += [ev.Closed("failed", quoted(WORDS)), ev.Fetched("fast", 5, "ab" * 32, WORDS)]
    for event in events:
        ledger.append(run_id, epoch, [event], at + 1)


@pytest.fixture
def told(typist: InProcess, ended_home: Path) -> User:
    """A home in which every word that came from elsewhere is hostile."""
    owner = typist
    shutil.copytree(ended_home, owner.home)
    ledger = SqliteLedger(owner.ledger_path)
    run = owner.only_run()
    plan = plan_to_json(run.plan)
    _hostile_run(ledger, plan, "r-aaaaaa", ends=True, odd=False)
    _hostile_run(ledger, plan, "r-bbbbbb", ends=True, odd=True)
    good = owner.home / "runs" / run.run_id / "fast"
    for run_id in ("r-aaaaaa", "r-bbbbbb"):
        folder = owner.home / "runs" / run_id / "fast"
        folder.mkdir(parents=True)
        (folder / "train.log").write_bytes(
            WORDS.encode() + b"\xff\xed\xa0\x80\n" + b"last\x1b[2J\n"
        )
        beat = load_heartbeat((good / "heartbeat.json").read_text())
        (folder / "heartbeat.json").write_text(
            contract.dump(replace(beat, run_id=run_id, message=WORDS))
        )
        rows = (good / "metrics.jsonl").read_text() + json.dumps({"kind": WORDS, WORDS: WORDS})
        (folder / "metrics.jsonl").write_text(rows + "\n" + "[" * 200_000)
        _damaged(folder / "checkpoints" / "step-00000005", good)
    return owner


def _damaged(folder: Path, good: Path) -> None:
    """A checkpoint of which its own manifest tells in hostile words."""
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"version": WORDS, "files": WORDS}))
    (folder / ("x" + WORDS.replace("\x00", ""))).write_text("x")


SCREENS = (
    ("status",), ("status", "--all"), ("status", "r-aaaaaa"), ("status", "r-bbbbbb"),
    ("report",), ("report", "r-aaaaaa"), ("report", "--csv"),
    ("fetch-best", "r-aaaaaa"), ("prune", "r-aaaaaa", "--dry-run"), ("prune", "r-aaaaaa"),
    ("admin", "reap"), ("admin", "reap", "--yes"), ("resume", "r-aaaaaa"),
    ("stop", "-y", "r-aaaaaa"),
    ("budget", "show"), ("budget", "history"), ("admin", "volumes", "list"), ("doctor",),
    ("eval", "r-aaaaaa"), ("sample", "r-aaaaaa"),
    ("status", WORDS.replace("\x00", "")), ("launch", WORDS.replace("\x00", "")),
)  # fmt: skip
LOGS = (("logs", "r-aaaaaa"), ("logs", "r-aaaaaa", "-n", "3"), ("logs", "-f", "r-aaaaaa"))
DATA = (
    ("status", "--json"), ("status", "r-aaaaaa", "--json"),
    ("report", "--json"), ("admin", "reap", "--json"), ("budget", "show", "--json"),
    ("budget", "history", "--json"),
)  # fmt: skip


def _shown(user: User, *arguments: str) -> tuple[str, str]:
    _, out, err = user.ended(*arguments)
    assert "unexpected" not in err, err
    return out, err


def test_no_screen_log_or_json_passes_on_what_steers_a_terminal(told: User) -> None:
    for arguments in (*DATA, *LOGS, *SCREENS):
        out, err = _shown(told, *arguments)
        for text in (out, err):
            assert strip_control(text) == text, arguments
            is_forged = FORGED in text.splitlines() and arguments not in LOGS
            assert not is_forged, f"{arguments}: what somebody said passes for a line of ours"
        if arguments in LOGS:
            assert "last" in out.splitlines()
        if arguments in DATA:
            assert json.loads(out) is not None
            assert out.isascii()


def test_a_verdict_of_an_earlier_version_breaks_no_screen(told: User) -> None:
    assert "its verdict cannot be read" in told.run("status", "r-bbbbbb")
    assert "✘ a]0;PWNED" in told.run("status", "r-aaaaaa"), (
        "what it said is told, and steers nothing"
    )


def test_the_end_of_a_launch_is_shown_likewise(
    told: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from trmcloud.cli.views.run import show_end
    from trmcloud.cli.views.streams import forgive_streams
    from trmcloud.operations.launch.run_end import end_of
    from trmcloud.wiring import build_context

    for name, value in told.env().items():
        monkeypatch.setenv(name, value)
    world = build_context()
    forgive_streams()
    for run in world.ledger.read().runs.values():
        show_end(end_of(world, run))
    out = capsys.readouterr().out
    assert strip_control(out) == out
    assert FORGED not in out.splitlines()


@pytest.mark.parametrize("columns", [400, 60])
def test_the_live_bar_of_a_launch_is_steered_by_nobody(
    user: User, terminal: Desk, columns: int
) -> None:
    """On a real pseudo-terminal, where rich draws with cursor movements of its own."""
    user.program = (str(Path(hostile_bar.__file__)),)
    window = terminal(user, str(user.folder / "told"), columns=columns)
    assert window.ends() == 0, window.shown
    assert "Traceback" not in window.shown
    # All that rich moves with: colours, the cursor hidden and shown, lines up, lines cleared.
    text = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)", "", window.shown).replace("\r", "")
    assert strip_control(text) == text
    assert hostile_bar.FORGED in text.replace("\n", " ")
    if columns == 400:  # where nothing is wrapped
        assert {place for place in hostile_bar.PLACES if f"<{place}>" not in text} == set()
        assert hostile_bar.FORGED not in [line.strip() for line in text.splitlines()]
