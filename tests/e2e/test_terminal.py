"""On a terminal: questions, Ctrl-C, a closed window, the bar, completion, help, and fast starts."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.user import SMALL, User, until
from tests.warm import Warm, can_warm
from trmcloud.cli.main import COMMANDS
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO

LAUNCH = ("launch", "local", *SMALL, "--phase", "fast", "--budget", "1")


#: Makes the window the terminal of the session, and becomes the command.
_IN_A_WINDOW = """import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A window in which ``trmcloud`` runs: what it shows, what is typed, and its being closed."""

    def __init__(self, user: User, *arguments: str, columns: int = 100) -> None:
        self.shown = ""
        self.code: int | None = None
        env, words = user.env() | {"TERM": "xterm-256color"}, [*user.program, *arguments]
        self._master, window = pty.openpty()
        fcntl.ioctl(window, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        try:
            # Its session's leader, with the window as its terminal.
            warm = user.warm and can_warm(words, env)
            before = () if warm else (sys.executable, "-c", _IN_A_WINDOW)
            self._process: subprocess.Popen[Any] = (Warm if warm else subprocess.Popen)(
                [*before, sys.executable, *words], cwd=user.here, env=env,
                stdin=window, stdout=window, stderr=window, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(window)

    def sees(self, text: str, *, within_s: float = 150.0) -> None:
        """Wait until ``text`` is shown."""
        deadline = time.monotonic() + within_s
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.shown}"
            assert self._read(), f"ended without {text!r}:\n{self.shown}"

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self, *, within_s: float = 150.0) -> int:
        """The exit code, once the command has ended by itself."""
        deadline = time.monotonic() + within_s
        while self._read():
            assert time.monotonic() < deadline, f"still there:\n{self.shown}"
        self.code = self._process.wait()
        return self.code

    def close(self) -> None:
        """Close the window: the kernel sends SIGHUP to what runs in it."""
        os.close(self._master)
        self._process.wait()
        self.code = -signal.SIGHUP

    def abandon(self) -> None:
        if self.code is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> bool:
        """Take in what is shown; False once the command has left the window."""
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # how Linux says that nobody holds the other end
                return False
            self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
            return bool(data)
        return True


class Desk:
    """Opens windows, and leaves none behind."""

    def __init__(self) -> None:
        self._opened: list[Terminal] = []

    def __call__(self, user: User, *arguments: str, columns: int = 100) -> Terminal:
        self._opened.append(Terminal(user, *arguments, columns=columns))
        return self._opened[-1]

    def clear(self) -> None:
        for terminal in self._opened:
            terminal.abandon()


def plain(window: Terminal) -> str:
    """Return the text of a window without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", window.shown)


@pytest.fixture
def terminal() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.clear()


def test_no_to_proceed_leaves_nothing_behind(user: User, terminal: Desk) -> None:
    window = terminal(user, *LAUNCH, "--steps", "40")
    window.sees("Proceed? [y/N]")
    assert "reserves $1.00" in window.shown
    window.types("\n")
    assert window.ends() == 0
    assert "nothing was started, nothing was spent" in window.shown
    assert user.ledger().runs == {}
    assert user.pods() == ()
    assert not (user.home / "runs").exists()


def test_yes_shows_stages_a_bar_and_the_end(user: User, terminal: Desk) -> None:
    window = terminal(user, *LAUNCH, "--steps", "60")
    window.sees("Proceed? [y/N]")
    window.types("y\n")
    assert window.ends() == 0
    for text in (
        "✔ Starting",
        "━",
        "step",
        "best",
        "asks to stop at",
        "finished: every step was trained",
    ):
        assert text in " ".join(plain(window).split())
    assert user.only_run().outcome is Outcome.FINISHED


def test_elsewhere_there_is_no_bar_and_status_says_what_it_leaves_out(user: User) -> None:
    for steps in ("3", "60"):
        out = user.run(*LAUNCH, "--steps", steps, "-y")
    assert "\x1b" not in out, "no bar where there is no terminal"
    assert "━" not in out
    assert re.search(r"^ +fast( [a-z]+)? step |^fast( [a-z]+)? step ", out, re.MULTILINE)
    assert "finished: every step was trained" in out
    lines = user.run("status").splitlines()
    assert len(lines) == 3
    assert lines[-1] == "1 more has ended · trmcloud status --all"
    assert len(user.run("status", "--all").splitlines()) == 3


def test_ctrl_c_and_stop(user: User, terminal: Desk) -> None:
    user.warm = False  # one window in which nothing was imported before
    window = terminal(user, *LAUNCH, "--steps", "5000", "-y")
    until(lambda: bool(user.checkpoints()))
    window.types("\x03")
    window.sees("stop the run, or leave it running? [s/L]")
    assert user.only_run().live
    window.types("s\n")
    assert window.ends() == 21
    run = user.only_run()
    for text in (
        "stopped on request, evaluated and saved",
        "why: Ctrl-C",
        f"trmcloud fetch-best {run.run_id} · resume {run.run_id}",
    ):
        assert text in window.shown
    assert run.outcome is Outcome.STOPPED
    assert run.reserved == ZERO
    assert user.live_pods() == []


def test_ctrl_c_and_leave_it_running(user: User, terminal: Desk) -> None:
    window = terminal(user, *LAUNCH, "--steps", "200", "-y")
    until(lambda: bool(user.checkpoints()))
    window.types("\x03")
    window.sees("leave it running?")
    window.types("\x03")
    assert window.ends() == 0
    run = user.only_run().run_id
    assert f"{run} continues without this command" in window.shown
    until(lambda: not user.live_pods(), what="the pod ends by itself")
    user.run("status")
    assert user.only_run().outcome is Outcome.FINISHED
    assert user.only_run().reserved == ZERO


def test_a_closed_window_leaves_the_run_to_its_agent(user: User, terminal: Desk) -> None:
    window = terminal(user, *LAUNCH, "--steps", "100", "-y")
    until(lambda: bool(user.checkpoints()))
    window.close()
    assert user.live_pods()
    until(lambda: not user.live_pods(), what="the pod ends by itself")
    assert "finished" in user.run("status")
    assert user.only_run().outcome is Outcome.FINISHED


def test_logs_follow_and_end_with_the_run(user: User) -> None:
    user.run(*LAUNCH, "--steps", "5000", "-y", "-d")
    until(lambda: bool(user.checkpoints()))
    log = next(user.home.glob("runs/*/fast/train.log"))
    with open(log, "a") as file:
        file.write("first line\nsecond \x1b[31mline\n")
    following = user.start("logs", "-f")
    assert following.stdout is not None
    for line in following.stdout:
        if "second" in line:
            break
    assert "\x1b" not in line
    with open(log, "a") as file:
        file.write("a later line\n")
    assert any("a later line" in line for line in iter(following.stdout.readline, ""))
    user.stop()
    _, err = following.communicate(timeout=30)
    assert following.returncode == Outcome.STOPPED.exit_code
    assert "stopped" in err, "the run's end, beside its log"
    assert user.run("logs", "-n", "1").strip() == "a later line"


def test_stop_says_what_is_lost_and_asks(user: User, terminal: Desk) -> None:
    user.hold()  # after a step that is not saved: 40 steps, of which every 19th is
    user.run(
        *(*LAUNCH, "--rate", "3.60", "--steps", "100000", "-y", "-d", "--set", "save_every=19")
    )
    run_id = user.only_run().run_id
    until(lambda: user.json("status", "--json")["runs"][0]["step"] == 40)
    window = terminal(user, "stop", "--now")
    window.sees("End it now? [y/N]")
    assert f"{run_id}: stop this run at once" in window.shown
    assert "since its last checkpoint, worth $0." in window.shown
    assert "more of the run's $1.00" in window.shown
    window.types("n\n")
    assert window.ends() == 0
    assert "it continues" in window.shown
    assert user.only_run().live

    # Without a terminal nothing is ended that was not named, nor without a yes.
    said = user.fails("stop", code=2)
    assert f"name the run to stop: {run_id} is live" in said
    assert f"trmcloud stop {run_id} -y" in said
    assert "pass -y" in user.fails("stop", run_id, code=2)
    assert f"trmcloud prune {run_id} -y" in user.fails("prune", code=2)
    assert user.only_run().live

    # Of two it is said which there are, in a terminal too.
    user.run(*LAUNCH, "--steps", "100000", "-y", "-d")
    window = terminal(user, "stop")
    assert window.ends() == 2
    assert "are live" in window.shown
    window = terminal(user, "stop", run_id)
    window.sees("Land it? [y/N]")
    window.types("y\n")
    assert window.ends() == 0
    assert f"{run_id} stopped: stopped on request" in plain(window)
    user.stop("--now")


def test_a_narrow_window(user: User, terminal: Desk) -> None:
    window = terminal(user, *LAUNCH, "--steps", "30", "-y", columns=40)
    assert window.ends() == 0
    window = terminal(user, "status", columns=40)
    assert window.ends() == 0
    assert all(len(line) <= 40 for line in window.shown.splitlines()), window.shown
    user.environment["NO_COLOR"] = "1"
    window = terminal(user, "--help")
    assert window.ends() == 0
    assert "\x1b[3" not in window.shown


# -- completion, help, JSON, start --------------------------------------------------------------


def test_every_help_shows_an_example(user: User) -> None:
    # One process for all: what is looked at is the text, not the start.
    program = (
        "import sys\n"
        "from trmcloud.cli.main import COMMANDS, load_command, main\n"
        "names = [[name] for name in COMMANDS]\n"
        "for name in COMMANDS:\n"
        "    names += [[name, sub] for sub in getattr(load_command(name), 'commands', {})]\n"
        "below = load_command('admin').commands\n"
        "names += [['admin', n, sub] for n in below for sub in getattr(below[n], 'commands', {})]\n"
        "for words in names:\n"
        "    try:\n"
        "        main([*words, '--help'])\n"
        "    except SystemExit as left:\n"
        "        print('\\n--', ' '.join(words), left.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=user.env(), cwd=user.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    helps = done.stdout.split("\n--")[:-1]
    ends = [line for line in done.stdout.splitlines() if line.startswith("--")]
    assert len(helps) == len(ends) >= len(COMMANDS)
    assert all(end.endswith(" 0") for end in ends), ends
    assert [text for text in helps if "Example: trmcloud " not in text] == []
    assert not user.home.exists()


HEAVY = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "boto3",
    "botocore",
    "sky",
    "runpod",
    "asyncio",
    "httpx",
)


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        (("--version",), (*HEAVY, "rich", "sqlite3", "pydantic")),
        (("--help",), (*HEAVY, "sqlite3", "pydantic")),
        (("status",), (*HEAVY, "rich")),
        (("plan", "--budget", "1000"), (*HEAVY, "rich", "sqlite3")),
        (("plan", "--budget", "1000", "--bucket", "s3://some/prefix"), (*HEAVY, "sqlite3")),
        (("launch", "local", "--help"), HEAVY),
    ],
)
def test_what_a_command_does_not_import(
    user: User, arguments: tuple[str, ...], without: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trmcloud", *arguments],
        env=user.env(), cwd=user.folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert "typer" in imported
    assert imported & set(without) == set()
