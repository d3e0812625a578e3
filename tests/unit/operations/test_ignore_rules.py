"""Rules of an ignore file against git's own answers, and files that take long on purpose."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trmcloud.core.errors import DataError
from trmcloud.operations.sending.ignore_rules import IgnoreRules

GIT = shutil.which("git") or "git"
NAMES = [
    "a", "b", "ab", "a.py", "a.pyc", "a.pyo", "x/a", "x/b.py", "x/y/a", "x/y/z/a.py", "a/x",
    "a/b/c", "a/b/a/b", "foo", "foobar", "foo/bar", "foo/x/bar", "foo/x/y/bar", ".hidden",
    "x/.hidden/a", "a b", "[a]", "a]", "*", "x/*", "#a", "!a", "a\\b", "née", "abab", "aXbXc",
    "-", "x-y", "x/ab/b",
]  # fmt: skip
RULES = [
    "a", "/a", "a/", "x/", "*.py", "*.py[co]", "x/*", "x/**", "**/a", "**/a.py", "foo/**/bar",
    "**/foo/**", "a?b", "?", "*", "a*b*c", "*a*b", "[ab]", "[!a]", "[^a]", "[a-c]*", "x/y/",
    "/x/y", "foo**", "**foo", "fo**ar", "\\#a", "\\!a", "a\\\\b", "\\*", "[[]a]", "[]a]", "x[-]y",
    "**", "**/", "/**", "**/**/a", "x/**/**/a", "a/b", "*/a", "*/*/a", "[", "a[", "n?*e", "née",
    "a b", "b/",
]  # fmt: skip


def _of_git(rules: list[str], folder: Path) -> set[str]:
    """Those of ``NAMES`` that git leaves out by these rules."""
    (folder / "rules").write_text("\n".join(rules) + "\n")
    done = subprocess.run(
        [GIT, "-c", f"core.excludesFile={folder / 'rules'}", "-C", str(folder / "empty"),
         "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(NAMES), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return {name for name in done.stdout.split("\0") if name}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("rules")
    (made / "empty").mkdir()
    subprocess.run([GIT, "-C", str(made / "empty"), "init", "-q"], check=True)
    return made


def _ours(rules: list[str]) -> set[str]:
    made = IgnoreRules(rules)
    return {name for name in NAMES if made.leaves_out(name)}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_leaves_out_what_git_does(folder: Path, rule: str) -> None:
    assert _ours([rule]) == _of_git([rule], folder)


@given(st.lists(st.sampled_from([*RULES, *(f"!{rule}" for rule in RULES)]), max_size=5))
@settings(max_examples=60, deadline=None)
def test_so_do_several_of_which_the_last_decides(folder: Path, rules: list[str]) -> None:
    assert _ours(rules) == _of_git(rules, folder)


@pytest.mark.parametrize(
    "rule",
    ["*a" * 60 + "b", "*?" * 60 + "b", "**/*a*" * 20 + "b", "**/a/" * 60 + "b", "*" * 500 + "b",
     "a**" * 100 + "b", "[ab]*" * 60 + "c", "?" * 150 + "*b*" * 30 + "c"],
)  # fmt: skip
def test_no_rule_takes_long(rule: str) -> None:
    names = ["a" * 250, "a/" * 250 + "a", ("a" * 60 + "/") * 8 + "a"]
    begun = time.thread_time()
    rules = IgnoreRules([rule])
    for name in names:
        rules.leaves_out(name)
    assert time.thread_time() - begun < 1.0
    assert rules.skipped == []


def test_a_rule_that_takes_long_even_so_is_named_and_no_longer_used() -> None:
    ticks = [0.0]

    def cpu_time() -> float:
        ticks[0] += 0.3
        return ticks[0]

    rules = IgnoreRules(["*.log", "secret*"], cpu_time)
    for number in range(8):
        rules.leaves_out(f"x{number}")
    assert set(rules.skipped) == {"*.log", "secret*"}
    assert not rules.leaves_out("a.log")


def test_all_together_have_a_limit() -> None:
    def jumps() -> Iterator[float]:
        at = 0.0
        while True:
            yield at
            at += 7.0

    clock = jumps()
    rules = IgnoreRules([], lambda: next(clock))
    rules.leaves_out("a")
    rules.leaves_out("b")
    with pytest.raises(DataError, match="take more than 20 s"):
        rules.leaves_out("c")


def test_a_line_longer_than_any_name_is_named() -> None:
    rules = IgnoreRules(["*.log", "a" * 3000])
    assert rules.skipped == ["a" * 3000]
    assert rules.leaves_out("x.log")
