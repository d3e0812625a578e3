"""trmcloud.toml: what it may say, what is typed over it, and what a hostile one is refused."""

from __future__ import annotations

import itertools
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.typist import InProcess, typist
from trmcloud.core.errors import UsageError
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.operations.commands.project_file import Filled, fill_in, read_file, write_file
from trmcloud.operations.home import find_project_file
from trmcloud.options import LaunchRequest, rows_of

__all__ = ["typist"]

COMMAND = "command = \"python train.py --lr '1 e'\"\n"
EVERY = """\
command = ["python", "train.py"]
hardware = "1xH100"
budget = 5.25
data = "text"
steps = 200
checkpoints = "out"
metric = "val_acc"
best = "max"
keep-best = 3
checkpoint-gb = 1
env = ["PROJECT_TOKEN"]
pip = "requirements.txt"
resume = "python train.py --from {checkpoint}"
grace = 20.5
silent = 900
stop-signal = "INT"
stop-file = "out/stop"
image = "pytorch/pytorch:2.9.1"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROJECT_TOKEN", "a-value")
    for name in ("project/.git", "project/text", "project/sub/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "train.py").write_text("print('step 1')\n")
    (tmp_path / "project" / "requirements.txt").write_text("")
    return tmp_path / "project"


def put(project: Path, text: str, name: str = "") -> Path:
    path = project / name / "trmcloud.toml"
    path.write_text(text, encoding="utf-8")
    return path


def filled(here: Path, unseen: bool = False, **typed: Any) -> Filled:
    own = {name: typed.pop(name) for name in rows_of(CommandRequest) if name in typed}
    request = LaunchRequest(**typed, typed=tuple(typed))
    made = fill_in(request, CommandRequest(**own, typed=tuple(own)), here, unseen=unseen)
    assert made is not None
    return made


def test_its_values_are_those_of_the_options(project: Path) -> None:
    made = filled(put(project, EVERY).parent)
    assert made.asked == CommandRequest(
        words=("python", "train.py"), checkpoints="out", metric="val_acc", best="max", keep_best=3,
        checkpoint_gb=1.0, env=("PROJECT_TOKEN",), pip="requirements.txt", grace=20.5, silent=900.0,
        resume="python train.py --from {checkpoint}", stop_signal="INT", stop_file="out/stop",
        image="pytorch/pytorch:2.9.1",
    )  # fmt: skip
    assert made.request == LaunchRequest(
        hardware="1xH100", budget="5.25", steps=200, data=str(project / "text")
    )
    assert made.line == (
        f"from {project}/trmcloud.toml: command, hardware 1xH100, budget 5.25, data text, "
        "steps 200, checkpoints out, metric val_acc, best max, keep-best 3, checkpoint-gb 1, "
        "env PROJECT_TOKEN, pip requirements.txt, resume python train.py --from {checkpoint}, "
        "grace 20.5, silent 900, stop-signal INT, stop-file out/stop, image pytorch/pytorch:2.9.1"
    )


def test_a_command_may_be_one_text(project: Path) -> None:
    assert filled(put(project, COMMAND).parent).asked.words == ("python", "train.py", "--lr", "1 e")


@pytest.mark.parametrize("text", ['command = "\'"', "command = []", "command = 3", "command = [1]"])
def test_what_is_no_command_is_refused(project: Path, text: str) -> None:
    put(project, text)
    with pytest.raises(UsageError, match=r"^(command: |trmcloud\.toml cannot)"):
        filled(project)
    put(project, "budget = 3")
    with pytest.raises(UsageError, match="cannot be read: it has no command"):
        filled(project)


def test_what_is_typed_wins_and_is_named(project: Path) -> None:
    put(project, COMMAND + 'budget = 900\nmetric = "acc"\nbest = "max"\ngrace = 5\n')
    made = filled(project, budget="3", metric="val_loss")
    assert (made.request.budget, made.asked.metric, made.asked.grace) == ("3", "val_loss", 5.0)
    assert made.asked.best == "", "the direction of the file's metric is not that of another"
    told = "; replaced by what was typed: budget 900, metric acc, best max"
    assert made.line.endswith(f"command, grace 5{told}")


def test_other_hardware_has_another_rate_and_memory(project: Path) -> None:
    put(project, COMMAND + 'hardware = "local"\nrate = "1"\nmemory = 24\nbudget = 1\n')
    made = filled(project, hardware="1xA100")
    assert (made.request.hardware, made.request.rate, made.request.memory) == ("1xA100", None, 0.0)


def test_a_typed_value_excuses_a_bad_one(project: Path) -> None:
    put(project, COMMAND + 'best = "highest"\n')
    with pytest.raises(UsageError, match=r"^best: --best takes min or max, not 'highest' \("):
        filled(project)
    assert filled(project, best="max").asked.best == "max"


def test_it_is_that_of_the_nearest_folder_of_the_git_tree(project: Path) -> None:
    deep = project / "sub" / "deep"
    put(project.parent, COMMAND)
    assert find_project_file(deep) is None, "the one above the tree is not of this project"
    assert find_project_file(project.parent) == project.parent / "trmcloud.toml"
    put(project, COMMAND + 'data = "text"\n')
    made = filled(deep)
    assert (made.here, made.request.data) == (project, str(project / "text"))
    assert filled(deep, data="mine").request.data == str(deep / "mine"), "as it was typed there"
    put(project, COMMAND, "sub")
    assert filled(deep).here == project / "sub"
    (project.parent / "plain" / "sub").mkdir(parents=True)
    put(project.parent, COMMAND, "plain")
    assert find_project_file(project.parent / "plain" / "sub") is None, "no git tree, one folder"


def test_a_recipe_a_plan_or_a_command_is_launched_without_it(project: Path) -> None:
    put(project, "not = TOML = at all")
    own = CommandRequest()
    for request in (
        LaunchRequest(recipe="trm", typed=("recipe",)),
        LaunchRequest(phase="fast", typed=("phase",)),
        LaunchRequest(hardware="p-12ab"),
    ):
        assert fill_in(request, own, project) is None
    assert fill_in(LaunchRequest(), CommandRequest(words=("ls",)), project) is None


@pytest.mark.parametrize(
    ("text", "says", "next_step"),
    [
        ('metrc = "loss"', "unknown key 'metrc'", "did you mean metric?"),
        ('"\\u001b[2J" = 1', "unknown key ''", "one of: "),
        ("budget = true", "budget: it takes a number", "correct budget"),
        ("budget = -5", "budget: --budget: '-5' is not above zero", ""),
        ("budget = inf", "budget: --budget: ", ""),
        ("budget = [5]", "budget: it takes a number", ""),
        (f"steps = 0x{'f' * 9000}", "steps: it takes a whole number", ""),
        ("steps = 1.5", "steps: it takes a whole number", ""),
        ("grace = nan", "grace: --grace takes seconds", ""),
        ("checkpoint-gb = 1e999999", "checkpoint-gb: --checkpoint-gb must be from 0", ""),
        ("metric = 3", "metric: it takes a string", ""),
        ('metric = "a\\u001b[2J"', "metric: it has control characters", ""),
        ('env = ["A=b"]', "env: --env takes the name of a variable, not its value: 'A'", "--env W"),
        ('env = ["NOT_SET_HERE"]', "env: --env NOT_SET_HERE: this shell has no such", ""),
        ('env = "A"', "env: it takes a list of words", ""),
        ('hardware = "9xFOO"', "hardware: unknown hardware '9xFOO'", ""),
        ('hardware = "p-12ab"', "hardware: ", ""),
        ("command = 3", "trmcloud.toml cannot be read: Cannot overwrite", ""),
        ("x = [", "trmcloud.toml cannot be read: ", "correct it"),
        (f"x = {'[' * 9000}", "trmcloud.toml cannot be read: ", ""),
        (f"steps = {'9' * 5000}", "trmcloud.toml cannot be read: ", ""),
        (f"# {'x' * 70_000}", "trmcloud.toml cannot be read: ", ""),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(
    project: Path, text: str, says: str, next_step: str
) -> None:
    path = put(project, f"{COMMAND}{text}\n")
    with pytest.raises(UsageError) as refused:
        filled(project)
    assert refused.value.what.startswith(says), refused.value.what
    assert next_step in refused.value.next_step
    assert refused.value.where == str(path)
    assert str(refused.value).isprintable(), "one line"


@pytest.mark.parametrize(
    "text",
    [
        'accept-exposure = "1000"', "allow-account-key-on-pod = true", "accept-loss = true",
        'bucket = "s3://theirs/x"', 'balance = "ignore"', "community = true", "spot = true",
        'provider = ["vast"]', "unsent = true", 'name = "x"', "volume = true", "detach = true",
        'idempotency-key = "x"', 'wait-for = "9d"', "probe = 3", 'recipe = "trm"',
    ],
)  # fmt: skip
def test_what_only_a_user_decides_cannot_stand_in_it(project: Path, text: str) -> None:
    put(project, f"{COMMAND}{text}\n")
    key = text.split(" ")[0]
    with pytest.raises(UsageError, match=rf"^{key} cannot stand in the file") as refused:
        filled(project)
    assert refused.value.next_step.startswith("type -")
    put(project, f"{COMMAND}yes = true\n")
    with pytest.raises(UsageError, match="unknown key 'yes'"):
        filled(project)


@pytest.mark.parametrize(
    "text",
    [
        'data = "/etc"', 'data = "~/.ssh"', 'data = "../beside"', 'data = "."', 'data = "sub/.."',
        'data = "leads-out"', 'data = "leads-out/x"', 'data = "sub:out"', 'root = ".."',
        'root = "/"', 'checkpoints = "/home"', 'checkpoints = "out:~/.aws"',
        'checkpoints = "leads-out"', 'pip = "../requirements.txt"', 'pip = "leads-out/r.txt"',
        'stop-file = "../x"', 'stop-file = "/tmp/x"',
    ],
)  # fmt: skip
def test_no_path_leads_out_of_its_git_tree(project: Path, text: str) -> None:
    (project.parent / "beside").mkdir()
    for name in ("leads-out", "sub:out"):
        (project / name).symlink_to(project.parent / "beside")
    put(project, f"{COMMAND}{text}\n")
    with pytest.raises(UsageError, match="is not a place within the git tree"):
        filled(project)


def test_its_root_is_within_the_git_tree(project: Path) -> None:
    put(project, COMMAND + 'root = ".."\n', "sub")
    assert filled(project / "sub").asked.root == ".."


def test_nobody_asked_means_budget_and_environment_are_typed(project: Path) -> None:
    put(project, COMMAND + 'budget = 900\nenv = ["PROJECT_TOKEN"]\n')
    with pytest.raises(UsageError, match="with -y, budget and env must be typed") as refused:
        filled(project, unseen=True)
    assert refused.value.next_step == "--budget 5 --env PROJECT_TOKEN, or leave out -y"
    with pytest.raises(UsageError) as refused:
        filled(project, unseen=True, budget="3")
    assert refused.value.next_step == "--env PROJECT_TOKEN, or leave out -y"
    made = filled(project, unseen=True, budget="3", env=("PROJECT_TOKEN",))
    assert made.request.budget == "3"


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_one_that_is_no_file_is_refused(project: Path, kind: str) -> None:
    path = project / "trmcloud.toml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=r"trmcloud\.toml cannot be read"):
        filled(project)


LINE = (
    "trmcloud run local --rate 1 --budget 2.5 --root .. --data text --checkpoints out:more "
    "--checkpoint-gb 0.01 --metric 'val \"loss\"=([0-9.]+)' --best max --grace 12 "
    "--stop-signal USR1 --stop-file out/stop --env PROJECT_TOKEN --env HOME "
    "--resume 'python train.py --from {checkpoint}' -- python train.py --words 'two é words'"
)


def test_a_written_line_is_read_as_it_would_be_typed(project: Path) -> None:
    sub = project / "sub"
    (sub / "text").mkdir()
    path = sub / "trmcloud.toml"
    write_file(path, LINE)
    said = read_file(path)
    words = shlex.split(LINE)
    assert said.pop("hardware") == "local"
    assert list(said.pop("words")) == words[words.index("--") + 1 :]
    rows = rows_of(LaunchRequest, "run") | rows_of(CommandRequest, "run")
    typed = [
        (rows[name].flag, f"{each:g}" if isinstance(each, float) else each)
        for name, value in said.items()
        for each in (value if isinstance(value, tuple) else (value,))
    ]
    assert typed == list(itertools.pairwise(words[3:]))[: 2 * len(typed) : 2]
    with pytest.raises(UsageError, match="cannot be written: File exists") as refused:
        write_file(path, LINE)
    assert refused.value.next_step == f"rm {path}"


def test_what_cannot_be_read_is_not_written(project: Path) -> None:
    with pytest.raises(UsageError, match="data: '/srv/data' is not a place"):
        write_file(
            project / "trmcloud.toml", LINE.replace("--root .. --data text", "--data /srv/data")
        )
    assert not (project / "trmcloud.toml").exists()


# -- at the door -------------------------------------------------------------------------------


def at_door(typist: InProcess, text: str) -> None:
    (typist.here / "train.py").write_text("print('step 1')\n")
    (typist.here / "trmcloud.toml").write_text(text)


def test_launch_shows_what_it_has_read(typist: InProcess) -> None:
    at_door(typist, 'command = "python3 train.py"\nhardware = "local"\nrate = 2\nbudget = 9\n')
    shown = typist.run("launch", "--budget", "0.50", "--dry-run")
    assert "command         python3 train.py" in shown
    assert "cap             $0.50 · reserves $0.50" in shown
    unwrapped = " ".join(shown.split())
    told = "trmcloud.toml: command, hardware local, rate 2; replaced by what was typed: budget 9"
    assert told in unwrapped
    assert "code sent 1 file," in unwrapped, "the file is not among the code"
    err = typist.refused("launch", code=2)
    assert "this is not a terminal, so the question cannot be asked" in err
    err = typist.refused("launch", "-y", code=2)
    assert "with -y, budget and env must be typed" in err
    assert "--budget 5, or leave out -y" in err


def test_plan_reads_it_too(typist: InProcess) -> None:
    at_door(typist, 'command = "python3 train.py"\nbugdet = 9\n')
    assert "did you mean budget?" in typist.refused("plan", code=2)
    assert "did you mean budget?" in typist.refused("launch", "1xH100", code=2)
    at_door(typist, 'command = "python3 train.py"\nhardware = "local"\nsteps = 10\n')
    err = typist.refused("plan", code=3)
    assert "trmcloud run any --memory 24 --probe 30 --budget 1 -- python3 train.py" in err


def test_try_does_not_overwrite_it(typist: InProcess) -> None:
    at_door(typist, 'command = "python3 train.py"\n')
    err = typist.refused("try", "--write", "--", "python3", "train.py", code=2)
    assert "trmcloud.toml is here already, and is not overwritten" in err
