"""What is suggested for what was typed: never the opposite of it."""

from __future__ import annotations

import random
import re
import shlex
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from trmcloud.api import Home
from trmcloud.cli import main as cli
from trmcloud.cli.main import COMMANDS, load_command, main
from trmcloud.core.errors import DataError, UsageError
from trmcloud.mcp.arguments import options_for
from trmcloud.operations.commands.commands import CommandRequest, command_of, misplaced

ENDS = ("cancel", "kill", "down", "delete", "rm", "terminate", "abort", "destroy", "halt", "end")
SPENDS = ("launch", "run", "sweep", "resume", "rehearse")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        *((word, "stop") for word in ENDS),
        *((word, "status") for word in ("ls", "list", "ps", "runs", "statsu")),
        *(("train", "launch"), ("lanch", "launch"), ("gpus", "prices"), ("download", "fetch-best")),
        *(("help", "--help"), ("logss", "logs"), ("cancle", "stop")),
    ],
)
def test_what_people_type_has_its_command(
    capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    assert f"no command {typed!r}; did you mean {meant!r}?" in said(capsys, typed)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("attach r-1f3a9c --json", "logs -f r-1f3a9c --json"),
        ("adopt ./trmcloud-run", "fetch-best ./trmcloud-run"),
        ("gate r-1f3a9c", "status r-1f3a9c"),
        ("verify receipt.html --against best", "report --verify receipt.html --against best"),
        ("tensorboard r-1f3a9c", "report --to tensorboard r-1f3a9c"),
        ("wandb r-1f3a9c", "report --to wandb r-1f3a9c"),
        ("ledger check", "admin ledger check"),
        ("reap --yes", "admin reap --yes"),
        ("volumes delete EU-RO-1", "admin volumes delete EU-RO-1"),
        ("guard install", "admin guard install"),
        ("notify list", "admin notify list"),
        ("approve a-1f2e3d4c", "grant approve a-1f2e3d4c"),
        ("deny a-1f2e3d4c", "grant deny a-1f2e3d4c"),
    ],
)
def test_an_earlier_name_has_its_line(
    capsys: pytest.CaptureFixture[str], typed: str, line: str
) -> None:
    assert f"  try: trmcloud {line}\n" in said(capsys, *typed.split())


@pytest.mark.parametrize("typed", ["xyz", "frob", "quux", "zebra"])
def test_what_is_like_nothing_has_none(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    assert "did you mean" not in said(capsys, typed)


def misspelt(word: str, rng: random.Random) -> Iterator[str]:
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]
        yield word[:at] + rng.choice(string.ascii_lowercase) + word[at + 1 :]
        yield word[:at] + word[at : at + 2][::-1] + word[at + 2 :]


def test_no_word_for_an_end_leads_to_a_command_that_spends_nor_the_reverse() -> None:
    rng = random.Random(6)
    for word in (*ENDS, "stop", "reap", "prune"):
        for typed in misspelt(word, rng):
            found = cli._nearest(typed, COMMANDS)
            assert found not in SPENDS, (typed, found)
    for word in (*SPENDS, "train", "start", "submit"):
        for typed in misspelt(word, rng):
            found = cli._nearest(typed, COMMANDS)
            assert found not in ("stop", "admin reap", "prune"), typed


def test_options_of_other_tools_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean '--budget'?" in said(capsys, "run", "local", "--max-cost", "5", "--", "x")
    told = said(capsys, "run", "--gpu", "H100", "--", "x")
    assert "the hardware is the first word: 1xH100" in told
    assert "--tag" not in told
    assert "did you mean '--hardware'?" in said(capsys, "plan", "--gpu", "8xH100")


def test_h_means_help_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    paths: list[tuple[str, ...]] = [()]
    for name in COMMANDS:
        below = getattr(load_command(name), "commands", {})
        paths += [(name,), *((name, each) for each in below)]
    for path in paths:
        told = []
        for flag in ("-h", "--help"):
            with pytest.raises(SystemExit) as left:
                main([*path, flag])
            assert left.value.code == 0
            told.append(capsys.readouterr().out)
        assert told[0] == told[1]
        assert "Usage: trmcloud" in told[0]


NINE = ["plan", "launch", "status", "logs", "stop", "resume", "fetch-best", "report", "doctor"]


def shown_by(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_shows_nine_commands_and_help_all_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = shown_by(capsys, "--help"), shown_by(capsys, "--help-all")
    assert len(short.splitlines()) <= 40
    assert re.findall(r"^│ ([a-z][a-z-]+) ", short, re.M) == NINE
    assert re.findall(r"^│ ([a-z][a-z-]+) ", whole, re.M) == list(COMMANDS)
    assert f"trmcloud --help-all lists {len(COMMANDS) - len(NINE)} others." in short
    assert "lists" not in whole.splitlines()[-1]


@pytest.mark.parametrize("path", ["launch", "plan", "report", "fetch-best", "admin reap", "stop"])
def test_rare_options_stand_behind_help_all(capsys: pytest.CaptureFixture[str], path: str) -> None:
    short = shown_by(capsys, *path.split(), "--help")
    whole = shown_by(capsys, *path.split(), "--help-all")
    command = load_command(path.split()[0])
    for name in path.split()[1:]:
        command = command.commands[name]
    flags = {param.opts[-1] for param in command.params if param.param_type_name == "option"}
    flags -= {"--guard-every"}  # the timer's own
    assert all(re.search(rf"(  |, ){flag}\b(?!-)", whole) for flag in flags)
    below = short.partition("Example:")[2]
    left_out = [flag for flag in flags if not re.search(rf"(  |, ){flag}\b(?!-)", below)]
    more = f"{len(left_out)} more options: trmcloud {path} --help-all"
    assert (short.splitlines()[-1] == more) if left_out else ("more options" not in short)
    assert "more options" not in whole


@pytest.mark.parametrize("typed", ["H100", "a100", "RTX 4090"])
def test_a_gpu_without_a_number_is_one(capsys: pytest.CaptureFixture[str], typed: str) -> None:
    for words in (("launch", typed), ("plan", typed), ("run", typed, "--", "true")):
        assert "  try: 1x" in said(capsys, *words)


def test_launch_says_that_run_takes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "launch", "--", "python", "train.py")
    assert "  try: trmcloud run local --budget 1 -- python train.py" in told


# -- A script that is not sent, options on the wrong side, and a command without hardware ---------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    for name in ("train.py", "prepare.sh", "lib/eval.py", "ignored.py"):
        (folder / name).write_text("import argparse  # takes --steps\n")
    (folder / ".trmcloudignore").write_text("ignored.py\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    return folder


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("python trian.py --lr 1", "-- python train.py --lr 1"),
        ("python3.12 lib/evla.py", "-- python3.12 lib/eval.py"),
        ("/usr/bin/python ./tran.py", "-- /usr/bin/python train.py"),
        ("bash prepar.sh", "-- bash prepare.sh"),
        ("python ignored.py", "a line !ignored.py in .trmcloudignore"),
        ("python ../x/train.py", "-- python train.py"),
    ],
)
@pytest.mark.parametrize("door", ["plan", "run local", "run 1xH100 --budget 5", "try"])
def test_a_script_that_is_not_sent_is_refused_with_the_nearest(
    project: Path, capsys: pytest.CaptureFixture[str], door: str, words: str, near: str
) -> None:
    told = said(capsys, *door.split(), "--", *words.split())
    assert f"{words.split()[1]} is not among the files that are sent" in told
    assert f"  try: {near}; or --unsent, if the machine has it\n" in told
    if words == "python ignored.py":
        assert "git or .trmcloudignore excludes it" in told


@pytest.mark.parametrize(
    "words",
    [
        "python train.py",
        "python ./lib/../train.py",
        "python -m trian.py",
        "python /opt/trian.py",
        "python",
        "torchrun trian.py",
        "bash -c 'cd lib && python trian.py'",
        "env X=1 python trian.py",
        "sh -x trian.sh",
    ],
)
def test_other_commands_are_not_judged(project: Path, words: str) -> None:
    made = command_of(CommandRequest(tuple(shlex.split(words))), "", project)
    assert made.words == tuple(shlex.split(words))


def test_unsent_lets_it_pass_through_every_door(project: Path) -> None:
    words = ("python", "trian.py")
    with pytest.raises(UsageError, match="not among the files"):
        command_of(CommandRequest(words), "", project)
    assert command_of(CommandRequest(words, unsent=True), "", project).words == words
    with pytest.raises(UsageError, match="not among the files"):
        Home().plan_command(words, hardware="local")
    assert Home().plan_command(words, hardware="local", unsent=True).spec.command is not None
    for name in ("plan", "run", "rehearse", "sweep", "try"):
        flags = {flag for param in load_command(name).params for flag in param.opts}
        assert "--unsent" in flags, name
    assert "unsent" in {argument.name for argument in options_for("plan", "launch", "run")}


def test_a_script_among_the_data_is_sent_with_it(project: Path) -> None:
    (project / "sets").mkdir()
    (project / "sets" / "read.py").touch()
    made = command_of(CommandRequest(("python", "sets/read.py")), str(project / "sets"), project)
    assert made.data == "sets"


def test_our_options_after_the_dashes_are_noticed_and_not_refused(project: Path) -> None:
    words = ["python", "train.py", "--budget", "50", "--max-price=2", "--lr", "1"]
    note = misplaced(words, project)
    assert note.startswith("--budget, --max-price after -- goes to the command")
    assert misplaced(["python", "train.py", "--steps", "5"], project) == "", "its script takes it"
    assert misplaced(["python", "train.py", "--lr", "5"], project) == ""
    assert misplaced(["torchrun", "-m", "pkg", "--hours", "5"], project).startswith("--hours after")
    with pytest.raises(SystemExit) as left:
        main(["run", "local", "--dry-run", "--", *words])
    assert left.value.code == 0


def test_a_command_without_hardware_says_what_is_missing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(capsys, "run", "--budget", "5", "--", "python", "train.py", "--lr", "1")
    assert "no hardware is named before --: 'python' is not hardware" in told
    assert "  try: trmcloud run local --budget 1 -- python train.py --lr 1\n" in told


def test_plan_takes_hardware_as_its_first_word(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "8xH100", "--budget", "200"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "▸ 8xH100" in out
    assert "8xH200" not in out
    told = said(capsys, "plan", "8xH100", "--hardware", "local")
    assert "'8xH100' and --hardware local both name hardware" in told
    told = said(capsys, "plan", "8xH10", "--budget", "200")
    assert "unknown hardware '8xH10'" in told


@pytest.mark.parametrize("name", ["a\nb.bin", "sub/icon\r"])
def test_data_that_cannot_be_sent_is_refused_before_the_rent(
    project: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = project / "sets" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    run = ("run", "1xH100", "--budget", "5", "--data", "sets", "-y", "--", "python", "train.py")
    with pytest.raises(SystemExit) as left:
        main(list(run))
    assert left.value.code == DataError.exit_code
    told = capsys.readouterr().err
    assert f"--data: {ascii(name)[1:-1]:.140} cannot be sent" in told
    assert "  try: rename it" in told
    with pytest.raises(SystemExit) as left:
        main(["run", "local", *run[4:6], "--dry-run", *run[7:]])
    assert left.value.code == 0, "nothing of it is sent"


@pytest.mark.parametrize(
    ("metric", "best", "higher"),
    [
        ("test/accuracy", "", True),
        ("eval_reward", "", True),
        ("val_loss", "", False),
        ("something", "min", False),
        ("valid_0's l2", "", False),
        ("l2_penalty", "max", True),
        ("accuracy=([0-9.]+)", "", True),
        ("test/accuracy", "min", False),
        ("val_loss", "max", True),
    ],
)
def test_the_best_is_the_highest_of_a_score_unless_it_is_said(
    project: Path, metric: str, best: str, higher: bool
) -> None:
    request = CommandRequest(("python", "sets/read.py"), metric=metric, best=best, unsent=True)
    assert command_of(request, "", project).higher_is_better is higher


@pytest.mark.parametrize("metric", ["something", "l2_penalty", "step=([0-9]+)"])
def test_a_metric_whose_name_does_not_tell_needs_the_word(project: Path, metric: str) -> None:
    request = CommandRequest(("python", "sets/read.py"), metric=metric, unsent=True)
    with pytest.raises(UsageError, match="does not tell whether the lowest or the") as refused:
        command_of(request, "", project)
    assert refused.value.next_step == "--best min, or --best max"
