"""``trmcloud try``: real commands in a copy of what would be sent, observed, stopped and judged."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_terminal import Terminal
from tests.e2e.user import User, until
from trmcloud.core.errors import Outcome, TrialFailed

SHORT = ("--for", "3", "--grace", "3")
FAILED = TrialFailed.exit_code

#: Saves every tenth step and at SIGTERM; resumes from a checkpoint; ends by itself.
TRAINS = """
import os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
os.makedirs("out", exist_ok=True)
first = int(open(sys.argv[1]).read()) + 1 if len(sys.argv) > 1 else 1
for step in range(first, 121):
    time.sleep(0.05)
    print(f"step {step} train_loss={5 / step:.4f} val_loss={100 / step:.4f}")
    if step % 10 == 0 or told:
        with open(f"out/step-{step}.pt", "w") as file:
            file.write(str(step))
    if told:
        break
"""

#: Reads its data as nanoGPT does.
READS = """
import os, time
with open(os.path.join("data", "shakespeare", "train.bin"), "rb") as file:
    data = file.read()
for step in range(1000):
    print(f"step {step}: train loss {4 - step / 1000:.4f}, val loss {4.1 - step / 1000:.4f}")
    time.sleep(0.05)
"""


@pytest.fixture
def user(in_project: User) -> User:
    subprocess.run(["git", "init", "-q", str(in_project.here)], check=True)
    return in_project


def script(user: User, text: str, name: str = "train.py") -> None:
    (user.here / name).write_text(text, encoding="utf-8")


def tried(user: User, *words: str, code: int = 0) -> dict[str, Any]:
    """The record by ``--json``, its checks by name."""
    said = user.json("try", *SHORT, "--json", *words, code=code)
    return {**said, "checks": {check["code"]: check for check in said["checks"]}}


def results(record: dict[str, Any]) -> dict[str, str]:
    return {name: check["result"] for name, check in record["checks"].items()}


def nothing_is_left(user: User) -> None:
    """No process whose working folder is one of a trial, and no folder of one."""
    assert _in_trials(user) == []
    assert list((user.home / "trials").glob(".trial-*")) == []


def _in_trials(user: User) -> list[int]:
    """Processes whose working folder is that of a trial."""
    trials, found = str(user.home / "trials"), []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/cwd").startswith(trials):
                    found.append(int(entry))
    return found


def test_the_line_that_it_prints_works_as_it_stands(user: User) -> None:
    script(user, TRAINS)
    resume = "python3 train.py {checkpoint}"
    out = user.run("try", *SHORT, "--resume", resume, "--", "python3", "train.py")
    assert "✔ starts" in out
    assert "✔ resumes   from out/step-" in out
    assert "· gpu       unknown: " in out
    assert "trmcloud run any --memory 20 --probe 200 --budget 1 -- python3 train.py" in out
    line = out.splitlines()[-1]
    assert line.startswith("trmcloud run local --rate 1 --budget 1 --checkpoints out "), line
    nothing_is_left(user)
    typed = Terminal(user, *shlex.split(line)[1:])
    typed.sees("Proceed?")
    typed.types("y\n")
    assert typed.ends() == Outcome.FINISHED.exit_code, typed.shown
    fetched = user.run("fetch-best", "--into", "best")
    assert "fetched and verified" in fetched
    assert "in Python" not in fetched, "torch has not written it"
    [own] = (user.here / "best" / "own").iterdir()
    assert own.read_text() == "120", "the lowest val_loss is that of the last step"


def test_a_trial_is_a_run(user: User, tmp_path: Path) -> None:
    """Sockets below TMPDIR, signals at their defaults, a tracker without its key, and checkpoints
    that stand elsewhere: the line that is printed works unchanged for all of them."""
    place = tmp_path / "models"
    script(
        user,
        f"""
import os, signal, socket, tempfile, time
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
folder = tempfile.mkdtemp(prefix="pymp-")
socket.socket(socket.AF_UNIX).bind(os.path.join(folder, "listener-" + "x" * 20))
assert os.environ.get("WANDB_MODE") == "offline", "it would ask for a key"
os.makedirs("wandb/offline-run-1", exist_ok=True)
open("wandb/offline-run-1/run.wandb", "w").close()
os.makedirs({str(place)!r}, exist_ok=True)
from safetensors.torch import save_file
for epoch in range(1, 4):
    time.sleep(0.3)
    print(f"epoch {{epoch}} val_loss={{1 / epoch:.4f}}", flush=True)
    save_file(f"weights {{epoch}}", {str(place)!r} + f"/model_{{epoch}}.pt")
""",
    )
    (user.here / "safetensors").mkdir()
    script(user, "", "safetensors/__init__.py")
    saves = "def save_file(tensors, filename):\n    open(filename, 'w').write(tensors)\n"
    script(user, saves, "safetensors/torch.py")
    made = tried(user, "--", "python3", "train.py")
    assert results(made)["starts"] == results(made)["writes"] == "passed", made["checks"]
    line = made["run_command"]
    assert line.endswith("-- env WANDB_MODE=offline python3 train.py")
    assert f"--checkpoints {place} " in line
    for old in place.iterdir():
        old.unlink()
    words = shlex.split(line)[1:]
    user.run(*words[: words.index("--")], "-y", *words[words.index("--") :])
    assert re.search("val_loss +0.3333", user.run("fetch-best", "--into", "best"))
    assert [path.read_text() for path in (user.here / "best").rglob("*.pt")] == ["weights 3"]


def test_launch_reads_from_its_file_what_its_line_says(user: User) -> None:
    script(user, TRAINS)
    resume = "python3 train.py {checkpoint}"
    line = tried(user, "--write", "--resume", resume, "--", "python3", "train.py")["run_command"]
    words = shlex.split(line)[1:]
    looks = ("--dry-run", "--json")
    typed = user.json(*words[: words.index("--")], *looks, *words[words.index("--") :])
    read = user.json("launch", *looks)
    specs = [
        json.loads((user.home / "plans" / f"{plan['id']}.json").read_text())["spec"]
        for plan in (typed, read)
    ]
    assert specs[0] == specs[1]
    assert specs[0]["command"]["resume"] == ["python3", "train.py", "{checkpoint}"]
    assert "tried here" in user.run("launch", "1xH100", "--dry-run"), "of the same code"


def test_its_checks_are_kept_by_code_and_command(user: User) -> None:
    script(user, TRAINS)
    record = tried(user, "--metric", "val_loss=([0-9.]+)", "--", "python3", "train.py")
    assert results(record) == {
        "starts": "passed",
        "reads": "passed",
        "imports": "passed",
        "writes": "passed",
        "metric": "passed",
        "pace": "passed",
        "stops": "passed",
        "resumes": "unknown",
        "gpu": "unknown",
    }
    assert record["command"] == ["python3", "train.py"]
    assert record["checks"]["stops"]["message"].startswith("saved ")
    assert "in out, " in record["checks"]["writes"]["message"]
    kept = list((user.home / "trials").glob("*.json"))
    assert len(kept) == 1
    assert json.loads(kept[0].read_text())["code_sha256"] == record["code_sha256"]
    assert "val_loss=" in kept[0].with_suffix(".log").read_text()
    assert sorted(entry.name for entry in user.here.iterdir()) == [".git", "train.py"]
    plan = ("run", "1xH100", "--budget", "5", "--dry-run", "--", "python3")
    assert "  · tried here " in (said := user.run(*plan, "train.py"))
    assert "not known: resumes, gpu" in said
    assert "not tried here yet: trmcloud try -- python3 -m other" in user.run(*plan, "-m", "other")
    script(user, TRAINS + "\n")
    assert "not tried here yet: " in user.run(*plan, "train.py"), "the code is another one"
    assert "tried here" not in user.run(
        *("run", "local", "--rate", "1", "--budget", "1", "--dry-run", "--", "python3", "train.py")
    )


def test_data_that_git_ignores_is_named_with_what_sends_it(user: User) -> None:
    script(user, READS)
    data = user.here / "data" / "shakespeare"
    data.mkdir(parents=True)
    (data / "prepare.py").write_text("print()")
    (data / "train.bin").write_bytes(b"to be" * 100)
    (user.here / ".gitignore").write_text("*.bin\n")
    out = user.run("try", *SHORT, "--", "python3", "train.py", code=FAILED)
    assert "data/shakespeare/train.bin exists here but was not sent: git ignores it\n" in out, out
    assert "    fix: --data data/shakespeare\n" in out
    assert "    | FileNotFoundError: " in out
    assert "\ntrmcloud run local" not in out
    plan = ("run", "1xH100", "--budget", "5", "--dry-run", "--", "python3", "train.py")
    assert "! failed there: starts: " in user.run(*plan)
    again = tried(user, "--data", "data/shakespeare", "--", "python3", "train.py")
    assert results(again)["starts"] == "passed"
    assert "--data data/shakespeare --metric val_loss " in again["run_command"]


def test_files_packages_and_places_beyond_what_is_sent(user: User, tmp_path: Path) -> None:
    outside = tmp_path / "notes.txt"
    outside.write_text("a text")
    script(
        user,
        f"""
import os, socket, time
import yaml
print(open({str(outside)!r}).read())
with open({str(tmp_path / "made.txt")!r}, "w") as file:
    file.write("for real")
with open(os.path.expanduser("~/kept.txt"), "w") as file:
    file.write("in the trial's HOME")
print("WANDB_MODE", os.environ["WANDB_MODE"], "SECRET" in os.environ, os.environ["NAMED"])
for step in range(1000):
    print(f"step {{step}} loss={{1 / (step + 1):.5f}}")
    time.sleep(0.05)
""",
    )
    (user.here / "requirements.txt").write_text("torch>=2\n# pyyaml\n")
    user.environment |= {"SECRET": "s", "NAMED": "n"}
    made = tried(user, "--env", "NAMED", "--", "python3", "train.py", code=FAILED)
    assert results(made)["starts"] == "passed"
    assert str(outside).replace(str(tmp_path), "") in made["checks"]["reads"]["message"]
    assert made["checks"]["imports"]["message"] == (
        "requirements.txt does not name pyyaml, which is imported"
    )
    assert "/made.txt" in made["checks"]["writes"]["message"]
    assert (tmp_path / "made.txt").read_text() == "for real"
    assert not (tmp_path / "kept.txt").exists()
    assert "--env NAMED" in made["run_command"]
    log = next((user.home / "trials").glob("*.log")).read_text()
    assert "WANDB_MODE offline False n\n" in log


DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for step in range(6000):
    print("step", step, "loss", 1.0)
    time.sleep(0.1)
"""
FILLS = """
with open("big", "wb") as file:
    while True:
        file.write(b"x" * (1 << 20))
"""
BINARY = """
import os, sys, time
for _ in range(6000):
    sys.stdout.buffer.write(os.urandom(2000) + b"'\\n")
    sys.stdout.flush()
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("text", "check", "said", "code"),
    [
        (DAEMON, "starts", "and left 1 process running", FAILED),
        (DEAF, "stops", "it was still running 3 s after SIGTERM, and was killed", FAILED),
        (FILLS, "starts", "it wrote more than 0.05 GB", FAILED),
        (BINARY, "metric", "", 0),
    ],
    ids=["daemon", "deaf", "fills", "binary"],
)
def test_bad_commands(user: User, text: str, check: str, said: str, code: int) -> None:
    script(user, text)
    made = tried(user, "--gb", "0.05", "--", "python3", "train.py", code=code)
    assert said in made["checks"][check]["message"]
    assert (made["checks"][check]["result"] == "failed") == (code == FAILED)
    nothing_is_left(user)


def test_a_command_that_is_no_python_is_tried_too(user: User) -> None:
    script(user, 'for i in 1 2 3 4 5 6 7 8 9; do echo "step $i loss=0.$i"; sleep 0.5; done', "run")
    (user.here / "run").chmod(0o755)
    script(user, "", "empty.py")
    made = tried(user, "--", "sh", "./run")
    assert made["checks"]["reads"]["message"] == "no Python process was seen"
    assert results(made)["pace"] == "passed"
    assert "--metric loss " in made["run_command"]


#: Writes what transformers' Trainer writes, and takes its options.
LIKE_TRANSFORMERS = """
import json, os, struct, sys, time  # from transformers import HfArgumentParser
first = 0
if "--resume_from_checkpoint" in sys.argv:
    state = os.path.join(sys.argv[-1], "trainer_state.json")
    first = json.load(open(state))["global_step"]
rows = []
for step in range(first + 1, 2000):
    time.sleep(0.02)
    if step % 10 == 0:
        row = {"eval_loss": 9 / step, "step": step, "epoch": 1.0}
        rows.append(row)
        print({**row, "eval_loss": f"{row['eval_loss']:.4f}"})
        print("global_step", step)
    if step % 20 == 0:
        at = f"out/checkpoint-{step}"
        os.makedirs(at)
        with open(f"{at}/model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", 2) + b"{}")
        for name in ("config.json", "training_args.bin", "optimizer.pt"):
            with open(f"{at}/{name}", "w") as file:
                file.write("{}")
        with open(f"{at}/trainer_state.json", "w") as file:
            json.dump({"global_step": step, "log_history": rows}, file)
"""


def test_a_known_framework_is_resumed_by_its_own_option(user: User) -> None:
    script(user, LIKE_TRANSFORMERS)
    made = tried(user, "--", "python3", "train.py", "--output_dir", "out")
    assert results(made)["resumes"] == "passed", made["checks"]["resumes"]
    assert "(transformers-model" in made["checks"]["writes"]["message"]
    assert "eval_loss (" in made["checks"]["metric"]["message"]
    words = shlex.split(made["run_command"])
    assert words[words.index("--metric") + 1] == "eval_loss"
    assert words[words.index("--resume") + 1] == (
        "python3 train.py --output_dir out --resume_from_checkpoint {checkpoint}"
    )


def test_a_resumed_one_that_shows_nothing_has_not_passed(user: User) -> None:
    """The checkpoint that was put back for it is no step of its own."""
    waits = "if '--resume_from_checkpoint' in sys.argv:\n    time.sleep(60)\nfirst = 0\n"
    script(user, LIKE_TRANSFORMERS.replace("first = 0\n", waits, 1))
    made = tried(user, "--", "python3", "train.py", "--output_dir", "out")
    assert made["checks"]["resumes"]["message"].endswith(": its log shows no step")
    assert "--resume " not in made["run_command"]


def test_one_that_writes_faster_than_is_read_is_judged_in_time(user: User) -> None:
    """Its long lines take milliseconds each to look at; what it said last is shown all the same."""
    script(
        user,
        """
import time
until = time.monotonic() + 3
while time.monotonic() < until:
    print("y" * 3000)
raise SystemExit("the very last line")
""",
    )
    process = user.start("try", "--for", "30", "--grace", "3", "--", "python3", "train.py")
    out, _ = process.communicate(timeout=150)
    assert process.returncode == FAILED
    assert "the very last line" in out


def test_nothing_outlives_a_killed_try(user: User) -> None:
    script(user, DEAF)
    process = user.start("try", "--", "python3", "train.py")
    until(lambda: bool(_in_trials(user)) and bool(list(user.home.glob("trials/.trial-*/log"))))
    process.kill()
    process.communicate()
    until(lambda: not _in_trials(user), within_s=30)
    script(user, TRAINS)
    tried(user, "--", "python3", "train.py")
    nothing_is_left(user)


def test_ctrl_c_ends_all_of_it(user: User) -> None:
    script(user, TRAINS)
    process = user.start("try", "--", "python3", "train.py")
    until(lambda: bool(list(user.home.glob("trials/.trial-*/run/work/out/*"))))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "interrupted: the command and all its processes have ended\n"
    assert time.monotonic() - began < 30
    nothing_is_left(user)
    assert list(user.home.glob("trials/*.json")) == []
