"""Every option of every command with a value that it does not take: exit code 2, one line that
names the option, and the nearest right value where there is a list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trmcloud.cli.main import COMMANDS, load_command, main
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.home import bundle_root
from trmcloud.options import LaunchRequest, rows_of

#: Metavars of values that have a form, and a value that has none of it.
_FORMS = {
    "USD": "ten",
    "WHAT": "?!",
    "FORMAT": "?!",
    "RULE": "?!",
    "PERCENT": "half",
    "TIME": "?!",
    "KEY=VALUE": "?!",
    "S3_URL": "http://bucket",
    "URL": "mysql://host/db",
    "BPB/usd": "little",
    "depth,sequence": "?!",
}
#: Parameters whose values have a list: one of it, which mistyped is its own nearest.
_LISTED = {
    "phase": "extreme",
    "objective": "most-training",
    "balance": "ignore",
    "volume_then": "delete-fetched",
    "precision": "auto",
    "form": "sbatch",
    "best": "min",
    "recipe": max((p.stem for p in (bundle_root() / "model/recipes").glob("*.toml")), key=len),
    "provider": "runpod",
    "to": "gguf",
    "numbers": "float32",
}
#: What a command needs beside the option.
_ARGUMENTS = {
    "hardware": ("local",),
    "words": ("--", "python", "train.py"),
    "level": ("month",),
    "amount": ("5",),
    "total": ("5",),
    "way": ("ntfy",),
    "where": ("https://ntfy.example/topic",),
    "source": ("python-stdlib",),
}
#: What else is typed, where another lack would be reported first.
_BESIDE = {
    ("run",): ("--budget", "5"),
    ("sweep",): ("--budget", "5", "--recipe", "shakespeare"),
    ("rehearse", "--best"): ("--", "python", "train.py"),
    ("smoke", "--recipe"): ("--train", "--hardware", "local"),
    ("smoke", "--accept-exposure"): ("--train",),
    ("fetch-best", "--numbers"): ("--to", "gguf"),
}
#: Providers are of rented hardware.
_RENTED = ("--provider", "--region", "--wait-for", "--max-price")
#: Options whose values are read only once a run or receipt was found, which this home lacks.
_AFTER_A_RUN = {
    *(
        ("resume", flag)
        for flag in ("--balance", "--budget", "--max-price", "--set", "--tag", "--wait-for")
    ),
    ("fetch-best", "--phase"),
    ("logs", "--phase"),
    ("doctor", "--bucket"),  # a finding among others
    ("smoke", "--provider"),  # the key of one that exists is asked for first
}


_OF_THE_OTHER = {
    name: {*rows_of(LaunchRequest), *rows_of(CommandRequest)}
    - {*rows_of(LaunchRequest, name), *rows_of(CommandRequest, name)}
    for name in ("launch", "run")
}
#: Names of what may be there or not: a wrong one was not found.
_NAMED = ("--recipe",)


def _cases() -> list[Any]:
    cases: list[Any] = []

    def walk(path: tuple[str, ...], command: Any) -> None:
        below = getattr(command, "commands", {})
        for name, each in below.items():
            walk((*path, name), each)
        if below:
            return
        needed = [
            word
            for each in command.params
            if each.param_type_name == "argument"
            and (each.required or (path, each.name) == (("launch",), "hardware"))
            for word in _ARGUMENTS.get(each.name, ("x",))
        ]
        for each in command.params:
            if each.param_type_name != "option" or getattr(each, "is_flag", False):
                continue
            if path[0] in ("launch", "run") and each.name in _OF_THE_OTHER[path[0]]:
                continue  # refused beside the recipe, or the command, of ``needed``
            flag = each.opts[-1]
            wrong, right = _wrong_value(path[0], each)
            if wrong and (path[0], flag) not in _AFTER_A_RUN:
                beside = _BESIDE.get(path, _BESIDE.get((*path, flag), ()))
                beside = () if flag in beside else beside
                hardware = "8xH100" if flag in _RENTED else "local"
                typed = [hardware if word == "local" else word for word in needed]
                words = (*path, flag, wrong, *beside, *typed)
                cases.append(pytest.param(words, flag, right, id=" ".join((*path, flag))))

    for name in COMMANDS:
        walk((name,), load_command(name))
    return cases


def _wrong_value(command: str, option: Any) -> tuple[str, str]:
    """(a value that it does not take, the nearest that it takes); '' where there is none."""
    if option.type_descriptor.annotation in (int, float):
        return "many", ""
    if (right := _LISTED.get(option.name)) and (command, option.name) != ("report", "to"):
        return f"{right[:-1]}q", right
    return _FORMS.get(option.metavar or "", ""), ""


CASES = _cases()


@pytest.mark.parametrize(("words", "flag", "right"), CASES)
def test_a_wrong_value_is_one_line(
    words: tuple[str, ...],
    flag: str,
    right: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert ended.value.code == (NotFoundError if flag in _NAMED else UsageError).exit_code, said
    assert [line for line in lines if line.startswith("error: ")] == lines[:1], said
    assert all(line.startswith("  try: ") for line in lines[1:]), said
    assert len(lines) <= 2
    assert flag.removeprefix("--" if flag in _NAMED else "") in said.err, said
    assert right in said.err, said
    assert said.out == ""


def test_most_options_are_among_the_cases() -> None:
    assert len(CASES) > 120
