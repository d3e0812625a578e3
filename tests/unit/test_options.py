"""An option has one definition: what it is for the command line, the plan and the docs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from trmcloud.cli.main import COMMANDS, main
from trmcloud.cli.options import with_options
from trmcloud.core.contract.command import Command
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import dataclass
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.options import LaunchRequest, option, request_from, rows_of, spec_of, words_of

NOW = 1_795_000_000.0


def spec(request: LaunchRequest) -> RunSpec:
    return spec_of(request, (), NOW, pods_can_upload=True)


@dataclass(frozen=True)
class WithWidth(LaunchRequest):
    width: int = option(
        "--width",
        0,
        "Width of the model.",
        "launch plan",
        "Model and training",
        place="overrides",
        parse=lambda flag, width: (("width", width),) if width else (),
    )


def heard(words: list[str], name: str = "launch") -> Any:
    """The request that a command gets for these words."""
    got: list[WithWidth] = []

    @with_options(name)
    def command(request: WithWidth) -> None:
        got.append(request)

    # As Typer resolves it: in this module's names.
    app = typer.Typer()
    app.command()(command)
    answer = CliRunner().invoke(app, words)
    return got[0] if got else answer


def test_an_option_is_added_by_one_row() -> None:
    request = heard(["8xA100", "--width", "64", "--set", "depth=2"])
    assert request.typed == ("hardware", "setting", "width")
    assert dict(spec(request).overrides) == {"depth": 2, "width": 64}
    assert spec(heard(["8xA100"])).overrides == ()
    assert "Width of the model." in heard(["--help"]).output
    assert heard(["8xA100", "--width", "64"], "rehearse").exit_code == 2


def test_every_row_has_a_place_and_every_field_of_a_plans_wish_a_row() -> None:
    filled = {row.place_of(name) for name, row in rows_of(LaunchRequest).items()} - {""}
    known = {field.name for field in fields(RunSpec)}
    # A goal is a name on the command line, and the whole row of it in the wish.
    assert filled == known - {"command", "bucket_relayed", "goal", "sweep"}
    of_commands = {row.place_of(name) for name, row in rows_of(CommandRequest).items()} - {""}
    assert of_commands == {field.name for field in fields(Command)} - {"data", "source"}


@pytest.mark.parametrize("request_type", [LaunchRequest, CommandRequest])
def test_rows_name_commands_that_there_are(request_type: type[Any]) -> None:
    for row in rows_of(request_type).values():
        assert {*row.on, *row.but} <= COMMANDS.keys()


def test_what_is_not_said_leaves_what_a_wish_says_by_itself() -> None:
    assert spec(LaunchRequest()) == RunSpec(recipe="speedrun", phases=PHASES)


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ({"hardware": "8xA100", "phase": "extreme"}, "trm"),
        ({"hardware": "local", "phase": "both"}, "trm"),
        ({"hardware": "local"}, "trm-tiny"),
        ({"hardware": "8xA100"}, "speedrun"),
        ({"hardware": "8xA100", "phase": "train"}, "speedrun"),
        ({"hardware": "local", "phase": "fast", "recipe": "d24"}, "d24"),
    ],
)
def test_a_recipe_that_is_not_named_depends_on_machine_and_phase(
    given: dict[str, Any], recipe: str
) -> None:
    assert spec(request_from(given)).recipe == recipe


def test_a_bucket_from_the_environment_is_given_but_was_not_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRMCLOUD_BUCKET", "s3://shelf/runs")
    request = heard(["p-1234", "--budget", "5"])
    assert request.bucket == "s3://shelf/runs"
    assert request.typed == ("hardware", "budget")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"phase": "slow"}, "--phase must be one of fast, extreme, .*both, not 'slow'"),
        ({"steps": 0}, "--steps must be above zero, not 0"),
        ({"hours": -1.0}, "--hours must be above zero, not -1"),
        ({"steps": 1, "hours": 1.0}, "exclude one another"),
        ({"processes": -1}, "--processes must be above zero, not -1"),
        ({"gpus": 65}, "--gpus must be from 1 to 64, not 65"),
        ({"memory": float("inf")}, "--memory takes the GB of one GPU, not inf"),
        ({"budget": "much"}, "--budget: "),
        ({"hour_value": "-1"}, "--hour-value: "),
        ({"hardware": "8xA100", "rate": "2"}, "--rate is the price of this machine"),
        ({"scale_lr": "cubic"}, "--scale-lr must be one of off, sqrt, table, not 'cubic'"),
        ({"precision": "fp7"}, "--precision must be one of .*, not 'fp7'"),
        (
            {"precision": "bf16", "setting": ["dtype=float32"]},
            "--precision and --set dtype=… set the same: give only one",
        ),
        ({"deadline": "soon"}, "--deadline: 'soon' is not a time"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        spec(request_from(given))


def test_an_option_given_as_nothing_is_checked_too() -> None:
    for name in ("precision", "scale_lr", "budget"):
        with pytest.raises(UsageError, match="--" + name.replace("_", "-")):
            spec(request_from({name: ""}))


def test_a_name_that_is_no_option_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no option 'budgt'"):
        request_from({"budgt": "1"})


SAMPLES: dict[Any, tuple[str, ...]] = {
    str: ("6h; $x 'y'",), int: ("7",), float: ("0.00111111111111",), bool: (),
    Sequence[str]: ("a=1", "b c"),
}  # fmt: skip


@pytest.mark.parametrize("command", ["plan", "run", "launch"])
def test_every_option_that_was_typed_is_repeated_in_the_line_to_type(command: str) -> None:
    """``Run it:`` and ``Launch it:`` are made by ``words_of``: no row may be lost by it."""
    rows, kinds = rows_of(LaunchRequest, command), LaunchRequest.__annotations__
    hardware = [] if command == "plan" else ["1xH100"]
    for name, row in rows.items():
        if row.is_positional:
            continue
        [kind] = [each for each in SAMPLES if each == kinds[name] or kinds[name] == each | None]
        typed = [row.flag] if kind is bool else []
        for value in SAMPLES[kind]:
            typed += [row.flag, value]
        first = heard([*hardware, *typed], command)
        assert name in first.typed, name
        words = words_of(first, command, first.typed)
        again = heard([*hardware, *words], command)
        assert again == first, name


def test_a_launch_from_a_plan_repeats_what_is_no_part_of_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    beside = ("--name", "first", "--tag", "a=1", "--accept-exposure", "5", "--detach")
    with pytest.raises(SystemExit) as left:
        main(["launch", "8xH100", "--budget", "200", *beside, "--dry-run"])
    assert left.value.code == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Launch it: trmcloud launch p-")
    assert sorted(shlex.split(line)[5:]) == sorted(beside)
