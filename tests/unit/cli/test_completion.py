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
from trmcloud.cli import completion, main
from trmcloud.core.catalog.hardware import parse_hardware
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
    (made / "plans").mkdir()
    (made / "plans" / "p-123456.json").write_text("{}")
    (made / "runs" / "r-aaaaaa" / "fast" / "checkpoints" / "step-00000040").mkdir(parents=True)
    (made / "here" / "best").mkdir(parents=True)
    (made / "here" / "best" / "manifest.json").write_text("{}")
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
        (("eval", ""), ["best", "r-bbbbbb", "nightly", "r-aaaaaa"]),
        (("fetch-best", "r-aaaaaa", "--step", ""), ["40"]),
        (("launch", "p-"), ["p-123456"]),
        (("launch", "local", "--idem"), ["--idempotency-key"]),
        (("launch", "local", "--recipe", "trm-"), ["trm-tiny"]),
        (("run", "1xA10G", "--provider", "hug"), ["huggingface"]),
        (("plan", "--hardware", "8xB20"), ["8xB200"]),
        (("budget", "set", "mo"), ["month"]),
        (("data", "show", "gsm"), ["gsm8k"]),
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


def test_the_table_of_options_is_that_of_the_commands() -> None:
    now = completion.TABLE.read_text(encoding="utf-8")
    assert now == main.completion_table(), "python scripts/completions.py"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_light_command_takes_what_the_real_one_does(name: str) -> None:
    light, real = completion.light_command(name), main.load_command(name)
    pairs = [(light, real)]
    pairs += [(light.commands[n], each) for n, each in getattr(real, "commands", {}).items()]
    for ours, theirs in pairs:
        assert _flags(ours) == _flags(theirs)


def _flags(command: object) -> list[tuple[str, bool]]:
    params = [each for each in getattr(command, "params") if completion._is_shown(each)]  # noqa: B009
    return [
        (flag, bool(getattr(each, "is_flag", False)))
        for each in params
        if each.param_type_name == "option"
        for flag in (*each.opts, *each.secondary_opts)
    ]


def test_values_are_of_known_kinds_and_hardware_is_hardware(home: Path) -> None:
    assert set(completion._KIND_OF.values()) <= completion.KINDS
    assert {kind for kind in completion._ALSO.values() if kind} <= completion.KINDS
    for text in completion.values_of("machine"):
        if not text.endswith("any"):
            parse_hardware(text)
