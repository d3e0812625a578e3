"""The words that a press of Tab offers, asked as bash asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, ledger_at
from tests.plans import plan_json
from trmcloud.adapters.ledger.names import RunNames, read_names
from trmcloud.cli import main
from trmcloud.core.control import events as ev
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd

ENTRY = Path(sys.executable).parent / "trmcloud"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a run that has ended, and a live one that has a name."""
    made = tmp_path_factory.mktemp("home")
    for run_id, name in (("r-aaaaaa", ""), ("r-bbbbbb", "nightly")):
        # A name that only looks like one stands in its tags.
        tags = (("name", "other"), ("note", '"name": "wrong"'))
        planned = ev.RunPlanned(plan_json(), Usd(10), "thesis", name=name, tags=tags)
        ledger = ledger_at(made / "ledger.db")
        epoch = ledger.open_run(run_id, planned, Usd(1), WHO, AT)
        if not name:
            ledger.append(run_id, epoch, [ev.Closed(Outcome.NOT_STARTED.value)], AT + 1)
    (made / "here").mkdir()
    return made


def tab(home: Path, *words: str) -> list[str]:
    """The answer that bash gets when Tab is pressed after ``words``, the last one partial."""
    done = subprocess.run(
        [str(ENTRY)],
        env={
            **os.environ,
            "TRMCLOUD_HOME": str(home),
            "_TRMCLOUD_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("trmcloud", *words)),
            "COMP_CWORD": str(len(words)),
        },
        cwd=home / "here",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("sto",), ["stop"]),
        (("status", "r-"), ["r-bbbbbb", "r-aaaaaa"]),
        (("stop", ""), ["r-bbbbbb", "nightly"]),
        (("save", "ni"), ["nightly"]),
        (("eval", ""), ["r-bbbbbb", "nightly", "r-aaaaaa"]),
        (("report", "--verify", "r-a"), ["r-aaaaaa"]),
        (("bud",), ["budget"]),
        (("budget", "se"), ["set"]),
        (("admin", "reap", "--js"), ["--json"]),
        (("launch", "local", "--idem"), ["--idempotency-key"]),
        (("launch", "local", "--recipe", "trm-"), ["trm-tiny"]),
        (("status", "--tag", ""), []),
        (("nonsense", "x"), []),
    ],
    ids=" ".join,
)
def test_a_press_of_tab(home: Path, words: tuple[str, ...], offered: list[str]) -> None:
    assert tab(home, *words) == offered


def test_a_home_that_cannot_be_read_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "ledger.db").write_text("no ledger")
    assert tab(tmp_path, "stop", "") == []


def test_names_are_read_without_a_fold(home: Path, tmp_path: Path) -> None:
    assert read_names(home / "ledger.db") == [
        RunNames("r-bbbbbb", "nightly", True), RunNames("r-aaaaaa", "", False),
    ]  # fmt: skip
    assert read_names(tmp_path / "ledger.db") == ()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_another_shell_is_offered_every_command(home: Path, shell: str) -> None:
    done = subprocess.run(
        [str(ENTRY)],
        env={
            **os.environ, "TRMCLOUD_HOME": str(home), "_TRMCLOUD_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": "trmcloud ", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [name for name in main.COMMANDS if name not in done.stdout] == []


def test_no_command_is_imported_to_complete_its_name(home: Path) -> None:
    program = (
        "import sys\nfrom trmcloud.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name.startswith('trmcloud.cli.commands')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ, "TRMCLOUD_HOME": str(home), "_TRMCLOUD_COMPLETE": "complete_bash",
            "COMP_WORDS": "trmcloud re", "COMP_CWORD": "1",
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["resume", "report", "rehearse", "[]"]
