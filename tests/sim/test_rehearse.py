"""``trmcloud rehearse``: the plan that a launch would make, played many times."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.user import User
from trmcloud.core.errors import UsageError
from trmcloud.sim.faults.table import NAMES
from trmcloud.sim.rehearsal import HABITS, fault_names, spread

ONE_PHASE_RECIPES = ("d24", "d64", "gpt350m", "hdp", "bd3lm")


def rehearse(
    home: Path, *arguments: str, command: str = "rehearse"
) -> subprocess.CompletedProcess[str]:
    own = {"TRMCLOUD_HOME": str(home / "trmcloud")}
    process = User(home, trainer=None, environment=own).start(command, *arguments)
    out, err = process.communicate(timeout=200)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_it_tells_what_a_run_would_spend(tmp_path: Path) -> None:
    done = rehearse(tmp_path, "8xH100", "--budget", "400", "--runs", "20")
    assert done.returncode == 0, done.stderr
    for word in ("20 plays, budget $400", "spent", "ended", "stopped by", "saved"):
        assert word in done.stdout
    assert not (tmp_path / "trmcloud" / "runs").exists()


def test_the_same_seed_plays_the_same_and_json_holds_all(tmp_path: Path) -> None:
    arguments = ("8xA100", "--budget", "300", "--runs", "12", "--seed", "7", "--json")
    first, second = (rehearse(tmp_path, *arguments) for _ in range(2))
    assert first.returncode == 0, first.stderr
    made: dict[str, Any] = document_in(first.stdout)
    again = json.loads(second.stdout)
    assert {**made, "plan": ""} == {**again, "plan": ""}
    assert made["plays"] == 12
    assert float(made["spent"]["max_usd"]) <= (
        float(made["cap_usd"]) + float(made["over_budget_exposed_usd"])
    )
    assert made["violations"] == []
    assert made["timeline"]


def test_without_faults_every_play_of_a_fitting_plan_finishes(tmp_path: Path) -> None:
    done = rehearse(
        tmp_path, "8xH100", "--budget", "2000", "--runs", "8", "--faults", "none", "--json"
    )
    made = json.loads(done.stdout)
    assert made["outcomes"] == {"finished": 8}
    assert made["faults_felt"] == {}
    assert made["exposed_s"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("8xA100", "--phase", "extreme"),
        ("8xA100", "--phase", "fast"),
        ("2x8xH100", "--provider", "lambda", "--phase", "extreme"),
        ("local", "--recipe", "trm-tiny", "--rate", "3.60"),
        *(("8xH100", "--recipe", recipe) for recipe in ONE_PHASE_RECIPES),
        ("8xH100", "--recipe", "trm-tiny", "--set", "sharding=fsdp"),
    ],
    ids=" ".join,
)
def test_every_plan_can_be_played_whatever_its_phases_are_called(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = rehearse(
        tmp_path, *arguments, "--budget", "900", "--runs", "2", "--faults", "none", "--json"
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    # d64 takes more than the budget has: it lands, when the plan says.
    assert made["outcomes"] == {"landed" if "d64" in arguments else "finished": 2}
    assert float(made["spent"]["min_usd"]) > 0
    assert made["steps_saved"]["min"] > 0
    refused = "can be planned, not launched" in str(made["launch_refused"])
    assert refused == ("sharding=fsdp" in arguments)


def test_what_a_launch_refuses_is_not_played_in_secret(tmp_path: Path) -> None:
    alone = ("8xH100", "--budget", "900", "--runs", "4", "--faults", "none", "-d")
    refused = rehearse(tmp_path, *alone)
    assert refused.returncode == 2
    assert (
        "with -d no command pulls the checkpoints: they would be deleted with the pod"
        in refused.stderr
    )
    assert "--accept-loss" in refused.stderr
    saved = {
        option: json.loads(rehearse(tmp_path, *alone, *option, "--json").stdout)["steps_saved"]
        for option in (("--volume",), ("--bucket", "s3://bucket/runs"), ("--accept-loss",))
    }
    assert saved["--accept-loss",]["max"] == 0  # it was said, and it is so
    assert saved["--volume",]["min"] > 0
    assert saved["--bucket", "s3://bucket/runs"]["min"] > 0


def test_it_rents_from_whom_a_launch_would(tmp_path: Path) -> None:
    wish = ("8xH100", "--budget", "900")
    played = rehearse(tmp_path, *wish, "--runs", "1", "--faults", "none")
    launched = rehearse(tmp_path, *wish, "--dry-run", command="launch")
    assert launched.returncode == 0, launched.stderr
    assert "runpod" in launched.stdout
    assert "One play of 8xH100 at runpod" in played.stdout


def test_a_plan_made_before_is_played_as_it_is(tmp_path: Path) -> None:
    planned = rehearse(tmp_path, "--budget", "900", "--hardware", "8xH100", command="plan")
    plan_id = next(word for word in planned.stdout.split() if word.startswith("p-"))
    played = rehearse(tmp_path, plan_id, "--runs", "1", "--faults", "none")
    assert played.returncode == 0, played.stderr
    changed = rehearse(tmp_path, plan_id, "--runs", "1", "--volume")
    assert changed.returncode == 2
    assert f"--volume cannot change plan {plan_id}" in changed.stderr


COMMAND = ("--", "python", "train.py")


def of_command(home: Path, *arguments: str) -> dict[str, Any]:
    (home / "train.py").write_text("print('never run here')\n")
    done = rehearse(home, *arguments, "--json", *COMMAND)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = document_in(done.stdout)
    assert made["violations"] == []  # that money went beyond what faults excuse is one of them
    return made


def test_a_command_is_played_with_every_habit_of_scripts(tmp_path: Path) -> None:
    made = of_command(tmp_path, "1xH100", "--budget", "20", "--runs", "60")
    assert made["habits"].keys() == set(HABITS)
    assert {"landed", "finished"} <= made["outcomes"].keys()
    assert len(made["faults_felt"]) > 10
    assert made["steps_saved"] == {}, "its own steps are not known"
    assert made["training_kept_s"]["max"] > 3600
    assert not (tmp_path / "trmcloud" / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("local", "--rate", "3.60", "--grace", "5"),
        ("any", "--memory", "24", "--hours", "2"),
        ("2x8xH100", "--provider", "lambda"),
        ("8xH100", "--volume", "-d"),
        ("1xH100", "--deadline", "3h", "--resume", "python train.py {checkpoint}"),
    ],
    ids=" ".join,
)
def test_without_faults_a_command_leaves_a_checkpoint(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    made = of_command(tmp_path, *arguments, "--budget", "200", "--runs", "6", "--faults", "none")
    assert made["habits"] == {"plain": 6}
    assert made["outcomes"].keys() <= {"landed", "finished"}
    assert float(made["spent"]["max_usd"]) <= float(made["cap_usd"])
    assert made["plays_without_checkpoint"] == 0
    assert made["training_kept_s"]["min"] > 0


def test_a_habit_is_named_among_the_faults(tmp_path: Path) -> None:
    named = ("1xH100", "--budget", "20", "--runs", "5", "--faults", "slow-to-save,preempted")
    assert of_command(tmp_path, *named)["habits"] == {"slow-to-save": 5}


def test_its_screen_says_what_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never run here')\n")
    wish = ("1xH100", "--budget", "20", "--runs", "3", "--faults", "deaf")
    done = rehearse(tmp_path, *wish, *COMMAND)
    assert done.returncode == 0, done.stderr
    assert "simulated in place of python train.py, which is not run" in done.stdout
    assert "0.3 to 1.5 times its time limit" in done.stdout
    assert "script    deaf\n" in done.stdout
    assert "crashed   not restarted" in done.stdout
    assert "of training, median" in done.stdout
    assert "never run here" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words", "message"),
    [
        (("8xH100", "--budget", "9", "--checkpoints", "out"), (), "--checkpoints needs a comm"),
        (("8xH100", "--budget", "9", "--memory", "9"), (), "--memory needs a command"),
        (
            ("8xH100", "--budget", "9", "--recipe", "trm"),
            COMMAND,
            "--recipe works only with a recipe",
        ),
        (("8xH100",), COMMAND, "the run needs a limit, because the machine costs money every hour"),
        (("local", "--budget", "9"), ("--", "./absent"), "command not found on this machine"),
        (
            ("8xH100", "--budget", "9", "-d"),
            COMMAND,
            "with -d no command pulls the checkpoints: they would be deleted with the pod",
        ),
        (("--budget", "9"), COMMAND, "no hardware is named before --: 'python' is not hardware"),
        (("8xH100", "--budget", "9", "--faults", "sleepy"), COMMAND, "or a habit: plain, deaf"),
    ],
)
def test_what_run_refuses_is_refused_of_a_rehearsed_command(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "train.py").write_text("print('never run here')\n")
    done = rehearse(tmp_path, *arguments, *words)
    assert done.returncode == 2, done.stdout
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "0"), "--runs must be from 1 to"),
        (("--faults", "gremlins"), "'gremlins' is not a fault"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = rehearse(tmp_path, "8xH100", "--budget", "400", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_faults_by_number_and_by_word() -> None:
    assert fault_names("all") == NAMES
    assert fault_names("none") == ()
    assert fault_names("34,12") == ("34", "12")
    assert fault_names("preempted") == ("34",)
    assert "7" in fault_names("asleep")
    assert fault_names("all", of_command=True) == (*NAMES, *HABITS)
    assert "deaf" in fault_names("34,deaf", of_command=True)
    with pytest.raises(UsageError, match="'kills-the-agent' is not a fault"):
        fault_names("kills-the-agent")
    with pytest.raises(UsageError):
        fault_names("34,,12")
    with pytest.raises(UsageError, match="'65' is not a fault"):
        fault_names("65")  # a pod that lies is played in tests alone


def test_spread() -> None:
    assert spread([1, 2, 3, 4, 5]) == {"min": 1, "p50": 3, "p90": 5, "max": 5}
    assert spread([7]) == {"min": 7, "p50": 7, "p90": 7, "max": 7}
