"""Colours stand on terminals that have them, and nowhere else; without them every word is there."""

from __future__ import annotations

import io
import re
import sys

import pytest

from trmcloud.cli.main import main
from trmcloud.cli.views.streams import paint

PAINTED = (
    ("✔ Renting         1 s · $0.0006", "\x1b[32m✔ Renting\x1b[0m         1 s"),
    ("    ✘ refinement (band): 1.4%", "    \x1b[31m✘ refinement (band)\x1b[0m: 1.4%"),
    ("! runpod key  none", "\x1b[33m! runpod key\x1b[0m  none"),
    ("error: no such run", "\x1b[1;31merror:\x1b[0m no such run"),
    ("  try: trmcloud status", "  try: \x1b[1mtrmcloud status\x1b[0m"),
    ("Launch it: trmcloud launch p-7f3a", "Launch it: \x1b[1mtrmcloud launch p-7f3a\x1b[0m"),
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


def test_a_terminal_gets_colours_and_others_the_same_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
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
