"""What errors and screens hint at is a command that is understood; questions and colours on
terminals."""

from __future__ import annotations

import ctypes
import functools
import io
import operator
import os
import pty
import re
import select
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest
import typer

from tests.e2e import written
from tests.e2e.hinted import Hint, command, hints, options_in_next_steps
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.main import COMMANDS, main
from trmcloud.cli.views.streams import paint
from trmcloud.core.errors import UsageError

# -- hints --------------------------------------------------------------------------------------
# What errors, screens and helps tell people to type is a command line that is understood.


#: Options of other people's commands, and of the trainer's own.
_OTHERS = {"--upgrade", "--force-reinstall", "--column", "--data-set", "--tokenizer", "--workers",
           "--global", "--add", "--list"}  # fmt: skip


class _Anything(dict[str, str]):
    """Each placeholder stands for something that any argument takes."""

    def __missing__(self, name: str) -> str:
        return "month" if name in ("level", "line.level") else "1"


def test_every_hint_is_understood() -> None:
    found = hints()
    wrong = {hint: why for hint in found if (why := _why_not(hint))}
    assert len({hint.text for hint in found}) > 60
    assert wrong == {}, "\n".join(
        f"{hint.place}: {hint.text}: {why}" for hint, why in wrong.items()
    )


def test_every_command_of_readme_and_guides_is_understood() -> None:
    """Those that tests/e2e/test_written_commands.py leaves out, too."""
    found = [each for each in written.commands() if not each.refused]
    wrong = {
        each: why for each in found if (why := _why_not_words(each.words[0], [*each.words[1:]]))
    }
    assert len({each.text for each in found}) > 100
    assert wrong == {}, "\n".join(
        f"{each.document}:{each.line}: {each.text}: {why}" for each, why in wrong.items()
    )


def test_what_is_no_command_is_told() -> None:
    for text in (
        "lunch local",
        "status --al",
        "data fetch gsm8k",
        "eval --nope",
        "prices list extra",
    ):
        assert _why_not(Hint("here", text, ())), text
    assert _why_not(Hint("here", "resume r-1f3a9c --budget USD", ())) == ""


def test_every_option_in_a_next_step_is_one() -> None:
    known = {"--help", "--version"} | _OTHERS
    below = [command(name) for name in COMMANDS]
    while below:
        made = below.pop()
        below += getattr(made, "commands", {}).values()
        known |= {word for option in made.params for word in option.opts}
    unknown = defaultdict(list)
    for place, option in options_in_next_steps():
        if option not in known:
            unknown[option].append(place)
    assert unknown == {}


def _why_not(hint: Hint) -> str:
    """What is wrong with the words; nothing of them is carried out."""
    name, *words = hint.words(_Anything())
    if name in COMMANDS and not words and hint.is_named_only:
        return ""
    return _why_not_words(name, words)


def _why_not_words(name: str, words: list[str]) -> str:
    if name not in COMMANDS:
        return "no such command"
    made = command(name)
    while hasattr(made, "commands") and words and not words[0].startswith("-"):
        if words[0] not in made.commands:
            return f"no subcommand {words[0]}"
        made = made.commands[words.pop(0)]
    try:
        made.make_context(name, words)
    except typer.Exit:
        return ""  # --help
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- A command or option that does not exist: the error names the nearest one that does ---------


@pytest.mark.parametrize(
    ("typed", "says", "then"),
    [
        ("lunch 8xA100", "no command 'lunch'; did you mean 'launch'?", "trmcloud --help"),
        ("fetch", "no command 'fetch'; did you mean 'fetch-best'?", "trmcloud fetch-best"),
        ("xyzzy", "no command 'xyzzy'", "trmcloud --help"),
        ("--verison", "no such option: --verison; did you mean '--version'?", "trmcloud --help"),
        (
            "plan --buget 5",
            "no such option: --buget; did you mean '--budget'?",
            "trmcloud plan --help",
        ),
        (
            "plan --buget=5",
            "no such option: --buget; did you mean '--budget'?",
            "trmcloud plan --help",
        ),
        (
            "launch local --accept-los",
            "no such option: --accept-los; did you mean '--accept-loss'?",
            "trmcloud launch --help",
        ),
        ("status --zzzz", "no such option: --zzzz", "trmcloud status --help"),
        ("status -x", "no such option: -x", "trmcloud status --help"),
        ("budget shwo", "no such command 'shwo'; did you mean 'show'?", "trmcloud budget --help"),
        (
            "admin volumes delet",
            "no such command 'delet'; did you mean 'delete'?",
            "volumes --help",
        ),
        ("prices xyzzy", "no such command 'xyzzy'", "trmcloud prices --help"),
    ],
)
def test_the_nearest_is_named(
    typed: str, says: str, then: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(typed.split())
    assert left.value.code == 2
    what, next_step = capsys.readouterr().err.splitlines()
    assert what == f"error: {says}"
    assert next_step.startswith("  try: ")
    assert next_step.endswith(then)


# -- Yes, no, and Ctrl-C at the worst moments of the question -----------------------------------


class Interrupted:
    """A stream in Python, as ours are, during one of whose calls Ctrl-C is pressed."""

    def __init__(self, stream: TextIO, call: str) -> None:
        self._stream, self._call = stream, call

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._call = ""
            signal.raise_signal(signal.SIGINT)
        return getattr(self._stream, name)


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Types on the terminal that is this process's stdin."""
    master, window = pty.openpty()
    with os.fdopen(window, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda text: os.write(master, text.encode())
        os.close(master)


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y\n", True), (" YES \n", True), ("n\n", False), ("No\n", False), ("\n", False)],
)
def test_an_answer(types: Callable[[str], int], typed: str, answer: bool) -> None:
    types(typed)
    assert is_confirmed("Delete?") is answer


def test_asks_again(types: Callable[[str], int], capsys: pytest.CaptureFixture[str]) -> None:
    types("perhaps\ny\n")
    assert is_confirmed("  Proceed?")
    shown = capsys.readouterr()
    assert shown.out == "  Proceed? [y/N]:   Proceed? [y/N]: "
    assert shown.err == "  answer y or n\n"


def test_the_end_of_what_is_typed(types: Callable[[str], int]) -> None:
    types("\x04")
    with pytest.raises(typer.Abort):
        is_confirmed("Proceed?")


@pytest.mark.parametrize(
    ("stream", "call"), [("stdout", "write"), ("stdout", "flush"), ("stdin", "isatty")]
)
def test_ctrl_c_while_it_is_asked(
    types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch, stream: str, call: str
) -> None:
    monkeypatch.setattr(sys, stream, Interrupted(getattr(sys, stream), call))
    with pytest.raises(KeyboardInterrupt):
        is_confirmed("Proceed?")


def test_no_ctrl_c_is_lost_in_a_stream(
    types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``input`` asks both streams to flush, and drops what stderr's raises."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Interrupted(getattr(sys, name), "flush"))
    types("n\n")  # what a command that dropped it would go on with
    with pytest.raises(KeyboardInterrupt):
        is_confirmed("Proceed?")


def test_ctrl_c_just_before(types: Callable[[str], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last look for a signal and the wait, where only the signal's byte can end it."""
    press = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGINT)
    real = select.select

    def late(*given: Any) -> Any:
        # One after the other without a line of Python between them, which would look for signals.
        return list(map(operator.call, (press, functools.partial(real, *given))))[1]

    monkeypatch.setattr(select, "select", late)
    with pytest.raises(KeyboardInterrupt):
        is_confirmed("Proceed?")


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        with pytest.raises(UsageError, match="this rents, and this is not a terminal"):
            is_confirmed("Proceed?", before="this rents")


# -- colour -------------------------------------------------------------------------------------
# Colours stand on terminals that have them, and nowhere else; without them every word is there.


PAINTED = (
    ("✔ Renting         1 s · $0.0006", "\x1b[32m✔ Renting\x1b[0m         1 s"),
    ("    ✘ refinement (band): 1.4%", "    \x1b[31m✘ refinement (band)\x1b[0m: 1.4%"),
    ("! runpod key  none", "\x1b[33m! runpod key\x1b[0m  none"),
    ("error: no such run", "\x1b[1;31merror:\x1b[0m no such run"),
    ("  try: trmcloud status", "  try: \x1b[1mtrmcloud status\x1b[0m"),
    ("Launch it: trmcloud launch p-7f3a", "Launch it: \x1b[1mtrmcloud launch p-7f3a\x1b[0m"),
    ("state     finished · every step", "state     \x1b[32mfinished\x1b[0m · every step"),
    ("state    landed · saved", "state    \x1b[33mlanded\x1b[0m · saved"),
    ("r-1f3a9c failed: it crashed", "r-1f3a9c \x1b[31mfailed\x1b[0m: it crashed"),
    ("r-1f3a9c mine 8xA100  lost  $1.00", "r-1f3a9c mine 8xA100  \x1b[31mlost\x1b[0m  $1.00"),
    ("r-1f3a9c lost-one 8xA100  booting", "r-1f3a9c lost-one 8xA100  booting"),
    ("why  it failed: a crash", "why  it failed: a crash"),
    ("    L40S, vast · over budget", "    L40S, vast · \x1b[31mover budget\x1b[0m"),
    ("  8xB200  $70.62/h (51 d old, +30%)", "  8xB200  $70.62/h (\x1b[33m51 d old, +30%\x1b[0m)"),
    ("  8xH100  $31.92/h (18 d old)", "  8xH100  $31.92/h (18 d old)"),
    ("  a line like any other", "  a line like any other"),
)  # fmt: skip
BROKEN = (
    {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}, {"TERM": "unknown"},
    {"NO_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"},
)  # fmt: skip


class Window(io.StringIO):
    terminal = True

    def isatty(self) -> bool:
        return self.terminal


def shown(monkeypatch: pytest.MonkeyPatch, window: Window, **environment: str) -> str:
    with monkeypatch.context() as patched:
        for name, value in {"TERM": "xterm-256color", "NO_COLOR": "", **environment}.items():
            patched.setenv(name, value)
        patched.setattr(sys, "stdout", window)
        patched.setattr(sys, "stderr", window)
        with pytest.raises(SystemExit):
            main(["lunch"])
        with pytest.raises(SystemExit):
            main(["plan", "--hardware", "8xA100", "--phase", "fast", "--recipe", "trm"])
    return window.getvalue()


@pytest.mark.parametrize(("line", "painted"), PAINTED)
def test_what_is_looked_for_is_painted_and_every_word_stays(line: str, painted: str) -> None:
    assert paint(line).startswith(painted)
    assert re.sub(r"\x1b\[[0-9;]*m", "", paint(line)) == line


def test_colours_are_for_terminals_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    coloured = shown(monkeypatch, Window())
    assert "\x1b[1;31merror:\x1b[0m no command 'lunch'" in coloured
    assert "\x1b[1mRecommended: 8xA100" in coloured
    words = _without_ids(re.sub(r"\x1b\[[0-9;]*m", "", coloured))
    for environment in BROKEN:
        plain = shown(monkeypatch, Window(), **environment)
        assert "\x1b" not in plain, environment
        assert _without_ids(plain) == words, environment
    pipe = Window()
    pipe.terminal = False
    assert "\x1b" not in shown(monkeypatch, pipe)


def _without_ids(text: str) -> str:
    return re.sub(r"p-[0-9a-f]{4}", "p-", text)
