"""The shell of GitHub's action and of GitLab's snippet, run as their runners run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.user import SMALL, User

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "ci"
WITHIN_S = 300
LOCAL = ("local", *SMALL, "--phase", "fast", "--steps", "20", "--budget", "1")


class Runner:
    """One job of a CI: a folder of its own, and the user's home, which outlives it."""

    def __init__(self, user: User, name: str) -> None:
        self.user, self.folder = user, user.folder / name
        self.folder.mkdir()
        tools = user.folder / "tools"
        tools.mkdir(exist_ok=True)
        command = tools / "trmcloud"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trmcloud "$@"\n')
        command.chmod(0o755)
        self.path = f"{tools}:{user.env()['PATH']}"
        self.out = self.folder / "trmcloud-out"

    def bash(self, script: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**self.user.env(), "PATH": self.path, **variables},
            capture_output=True, text=True, timeout=WITHIN_S,
        )  # fmt: skip

    def launched(self) -> Any:
        """The first document of the launch."""
        text = (self.out / "launch.jsonl").read_text()
        return json.JSONDecoder().raw_decode(text)[0]

    def document(self, name: str) -> Any:
        return json.loads((self.out / name).read_text())


class GitHub(Runner):
    """The action's steps in their order, but for those that install and upload."""

    def run(self, arguments: str, *, launch: bool, key: str = "job-1") -> tuple[int, str]:
        """(the first exit code other than 0, all output)."""
        action = yaml.safe_load((CI / "github" / "action.yml").read_text())
        inputs = {name: each.get("default", "") for name, each in action["inputs"].items()}
        inputs |= {"arguments": arguments, "launch": str(launch).lower(), "key": key}
        inputs["home"] = str(self.user.home)
        code, told = 0, ""
        self.outputs = self.folder / "outputs"
        self.outputs.touch()
        for step in action["runs"]["steps"]:
            if "run" not in step or step["name"] == "Install":
                continue
            condition = step.get("if", "")
            assert condition in (
                "", "inputs.launch == 'true'", "always() && inputs.launch == 'true'",
            )  # fmt: skip
            if (condition and not launch) or (code and "always()" not in condition):
                continue
            assert "${{" not in step["run"], "nothing that others write may be a part of a script"
            variables = {
                name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)
                for name, text in step.get("env", {}).items()
            }
            variables |= {"GITHUB_ACTION_PATH": str(CI / "github")}
            variables |= {"GITHUB_OUTPUT": str(self.outputs)}
            done = self.bash(step["run"], variables)
            told += done.stdout + done.stderr
            code = code or done.returncode
        return code, told


class GitLab(Runner):
    """A job of the snippet; ``before_script`` installs, and its last line sets the path."""

    def run(self, job: str, arguments: str) -> tuple[int, str]:
        snippet = yaml.safe_load((CI / "gitlab" / "trmcloud.yml").read_text())
        variables = {**snippet["variables"], "TRMCLOUD_ARGUMENTS": arguments}
        variables |= {"TRMCLOUD_SOURCE": str(ROOT), "TRMCLOUD_KEY": "group/project/17"}
        (self.folder / ".trmcloud-venv" / "bin").mkdir(parents=True, exist_ok=True)
        last = snippet[".trmcloud"]["before_script"][-1]
        code, told = 0, ""
        for part in ("script", "after_script"):
            lines = snippet[job].get(part, [])
            if part == "script":
                lines = [last, *lines]
            done = self.bash("\n".join(lines), variables)
            told += done.stdout + done.stderr
            code = code or (done.returncode if part == "script" else 0)
        return code, told


def test_githubs_job_run_again_launches_nothing(user: User) -> None:
    first = GitHub(user, "first")
    code, told = first.run(" ".join(LOCAL), launch=True)
    assert code == 0, told
    run = user.only_run()
    assert f"run {run.run_id} finished" in told
    assert first.outputs.read_text() == f"run={run.run_id}\n"
    assert first.document("plan.json")["schema"] == "plan/1"
    assert first.launched()["existing"] is False
    sha256 = first.document("fetched.json")["sha256"]
    assert list((first.out / "checkpoint").glob("*.safetensors"))
    assert run.run_id in (first.out / "receipt.html").read_text()
    assert user.live_pods() == []

    again = GitHub(user, "again")
    code, told = again.run(" ".join(LOCAL), launch=True)
    assert code == 0, told
    assert again.launched()["existing"] is True
    assert again.document("fetched.json")["sha256"] == sha256
    assert user.only_run().run_id == run.run_id
    assert len(user.only_run().generations) == 1


def test_a_check_plans_and_rents_nothing(user: User) -> None:
    check = GitHub(user, "check")
    code, told = check.run("\n".join(LOCAL), launch=False)
    assert code == 0, told
    assert re.search(r"^plan p-\w+ fits: at most \$1$", told.replace("1.00", "1"), re.MULTILINE)
    assert not (check.out / "run").exists()
    assert not user.ledger().runs


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "TRMCLOUD_ARGUMENTS is empty"),
        ("local --recipe $(touch${IFS}hacked) --budget 1", "plan refused (3): "),
        ("local --recipe `touch` * --budget 1; touch hacked", "plan refused (2): "),
    ],
)
def test_arguments_that_are_refused_fail_the_check_and_run_nothing(
    user: User, arguments: str, told: str
) -> None:
    check = GitHub(user, "check")
    code, said = check.run(arguments, launch=True)
    assert code != 0
    assert told in said
    assert not (check.folder / "hacked").exists()
    assert not (check.out / "run").exists()
    assert "no run was launched: no receipt" in said


def test_a_launch_without_a_key_is_refused(user: User) -> None:
    code, told = GitHub(user, "first").run(" ".join(LOCAL), launch=True, key="")
    assert code == 2
    assert "TRMCLOUD_KEY is empty" in told
    assert not user.ledger().runs


def test_gitlabs_jobs_plan_and_train_under_their_key(user: User) -> None:
    check = GitLab(user, "check")
    code, told = check.run("trmcloud-plan", " ".join(LOCAL))
    assert code == 0, told
    assert not user.ledger().runs
    job = GitLab(user, "job")
    code, told = job.run("trmcloud-train", " ".join(LOCAL))
    assert code == 0, told
    run = user.only_run()
    assert run.run_id in (job.out / "receipt.html").read_text()
    assert list((job.out / "checkpoint").glob("*.safetensors"))
    assert (run.key, len(run.generations)) == ("group/project/17", 1)
