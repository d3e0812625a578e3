"""``sweep --machines``: each part is a command that could have been typed by itself."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from trmcloud.cli.commands import sweep as command
from trmcloud.cli.main import main
from trmcloud.core.values import replace
from trmcloud.operations.launch.launch import Wish
from trmcloud.operations.launch.sweep_parts import command_line, parts_of

RECIPE = (
    *("8xH100", "--recipe", "shakespeare", "--phase", "train", "--budget", "$10", "--name", "wide"),
    *("--set", "depth=2", "--set", "width=64", "--hours", "1.5", "--fit-balance", "-d"),
    *("--default", "lr=-3e-3", "--tag", "team=a", "--seed", "3", "lr=log:1e-4,1e-1", "batch=8,16"),
)
COMMAND = (
    *("1xH100", "--budget", "20", "--checkpoints", "out", "--metric", "val loss", "--env", "A=b c"),
    *("--resume", "python train.py {lr} --resume {checkpoint}", "lr=log:1e-4,1e-1"),
    *("--", "python", "train.py", "--lr", "{lr}", "--", "-x"),
)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what ``sweep`` is asked for by the words that follow it."""
    asked: list[Wish] = []

    def launch_of(wish: Wish, *, yes: bool) -> None:
        asked.append(wish)
        sys.exit(0)

    monkeypatch.setattr(command, "launch_of", launch_of)

    def wish_of(*words: str) -> Wish:
        with pytest.raises(SystemExit) as left:
            main(["sweep", *words])
        assert left.value.code == 0
        return asked.pop()

    return wish_of


def without_order(wish: Wish) -> Wish:
    """It, with the names of the options that were typed in one order, and its words as one kind of
    sequence."""
    requests: dict[str, Any] = {
        name: replace(request, typed=tuple(sorted(request.typed)))
        for name, request in vars(wish).items()
        if name in ("request", "asked", "search")
    }
    asked = requests["asked"]
    requests["asked"] = replace(asked, words=tuple(asked.words))
    return replace(wish, **requests)


@pytest.mark.parametrize("words", [RECIPE, COMMAND], ids=["recipe", "command"])
def test_a_part_that_is_typed_is_what_was_shared_out(typed: Any, words: tuple[str, ...]) -> None:
    parts = parts_of(typed(*words), 3, "k")
    assert [part.request.idempotency_key for part in parts] == ["k.1", "k.2", "k.3"]
    for part in parts:
        assert without_order(typed("-y", *command_line(part))) == without_order(part)


def test_the_parts_together_cost_no_more_than_the_budget(typed: Any) -> None:
    parts = parts_of(typed(*RECIPE), 3, "k")
    assert [part.request.budget for part in parts] == ["3.333333"] * 3
    assert [part.request.name for part in parts] == ["wide-1", "wide-2", "wide-3"]
    assert all(part.asked is not None and part.asked.words[1] == "batch=8|16" for part in parts)


def test_the_first_part_is_the_one_that_is_shown(typed: Any) -> None:
    shown = typed("--machines", "2", "--idempotency-key", "k", *RECIPE)
    assert without_order(shown) == without_order(parts_of(typed(*RECIPE), 2, "k")[0])


def test_a_space_in_a_file_is_shared_out_as_words(typed: Any, tmp_path: Any) -> None:
    path = tmp_path / "space.toml"
    path.write_text("lr = {log = [1e-4, 1e-2]}\ndepth = [2, 4]\n")
    whole = typed("8xH100", "--recipe", "shakespeare", "--budget", "10", "--space", str(path))
    first, second = parts_of(whole, 2, "k")
    assert first.asked is not None
    assert first.asked.words == ("lr=log:0.0001,0.001", "depth=2|4")
    assert "--space" not in command_line(second)


def test_a_command_whose_lines_nobody_reads_is_not_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    lines = io.StringIO("one\ntwo\n")
    monkeypatch.setattr(sys, "stdout", Left())
    with pytest.raises(BrokenPipeError):
        command._pass_on(lines, "1: ")
    assert lines.closed
