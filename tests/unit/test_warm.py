"""What is forked from a process that has imported the program is what a user would have started."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.user import User, until
from tests.scheduling import KINDS, kinds_for
from tests.stress import outcomes
from tests.warm import Warm, can_warm


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    made = User(tmp_path)
    yield made
    made.end_everything()


@pytest.mark.parametrize(
    "words", [("--version",), ("status",), ("no-such-command",), ("launch", "nowhere", "-y"), ()]
)
def test_it_says_and_ends_as_one_that_was_started_cold(user: User, words: tuple[str, ...]) -> None:
    said = []
    for user.warm in (True, False):
        process = user.start(*words)
        assert isinstance(process, Warm) is user.warm
        said.append((*process.communicate(timeout=60), process.returncode))
    assert said[0] == said[1]


def test_it_is_signalled_waited_for_and_killed(user: User) -> None:
    text = user.folder / "text.py"
    text.write_text("x = 1\n" * 5000)
    launch = ("launch", "local", "--recipe", "trm-tiny", "--data", "text.py", "--rate", "3.60")
    process = user.start(*launch, "--phase", "fast", "--budget", "1", "-y")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    until(lambda: (user.home / "ledger.db").exists(), what="it is at work")
    assert process.poll() is None
    process.kill()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.communicate()


def test_an_environment_that_an_interpreter_reads_as_it_starts_is_started_cold(user: User) -> None:
    words = ["-m", "trmcloud", "status"]
    assert can_warm(words, user.env())
    for name in ("PYTHONUTF8", "LC_ALL", "FORCE_COLOR", "LD_PRELOAD"):
        assert not can_warm(words, {**user.env(), name: "1"})
    assert not can_warm(words, {**user.env(), "PYTHONPATH": f"/else:{user.env()['PYTHONPATH']}"})
    assert not can_warm(["-c", "pass"], user.env())


def test_of_three_workers_one_computes() -> None:
    taken = [kinds_for(worker) for worker in range(6)]
    assert sorted(kinds[0] for kinds in taken[:3]) == sorted(KINDS)
    assert [KINDS[0] in kinds for kinds in taken] == [True, False, False] * 2


def test_failures_of_a_report_are_counted_by_test() -> None:
    case = '<testcase classname="a" name="{}">{}</testcase>'
    cases = case.format("t", "<failure/>") + case.format("u", "") + case.format("v", "<skipped/>")
    assert outcomes(f"<testsuites><testsuite>{cases}</testsuite></testsuites>") == ({"a::t": 1}, 2)
