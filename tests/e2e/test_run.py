"""``trmcloud run`` on this machine: scripts of strangers, under the real watchdog and agent."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e import written
from tests.e2e.user import ROOT, User, python_of_ranks, until
from tests.standins import scripts
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome
from trmcloud.pod.machine import processes

RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "-y")
METRIC = ("--metric", "val_loss=([0-9.]+)")
LANDED, FAILED = Outcome.LANDED.exit_code, Outcome.FAILED.exit_code


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def script(user: User, text: str) -> None:
    (user.here / "train.py").write_text(text, encoding="utf-8")


def run(user: User, *options: str, code: int = LANDED, words: tuple[str, ...] = ()) -> str:
    command = ("python3", "train.py", *words)
    return user.run("run", "local", *RATE, *options, "--", *command, code=code)


def log_of(user: User) -> str:
    path = user.home / "runs" / user.only_run().run_id / "train" / "train.log"
    return path.read_text(encoding="utf-8", errors="replace")


def kept(user: User) -> list[int]:
    found = user.home.glob("runs/*/train/checkpoints/*/manifest.json")
    return sorted(from_json(path.read_text(), str(path)).step for path in found)


def test_a_strangers_script_ends_in_time_and_its_best_comes_home(user: User) -> None:
    script(user, HOSTILE)
    (user.here / ".env").write_text("KEY=secret")
    (user.here / "notes.bin").write_bytes(b"n" * 5000)
    (user.here / ".trmcloudignore").write_text("*.bin\n")
    out = run(user, "--budget", "0.02", "--grace", "2", "--checkpoints", "out", *METRIC)
    assert "1 file, " in out
    told = user.only_run()
    assert told.outcome is Outcome.LANDED
    assert float(user.json("status", told.run_id, "--json")["runs"][0]["spent_usd"]) <= 0.02
    assert len(kept(user)) <= 3, "the best two and the latest"
    assert "val_loss" in out
    assert "bpb" not in out
    fetched = user.run("fetch-best", "--into", "best")
    best = max(kept(user))
    assert f"train/step-{best:08d}: fetched and verified" in fetched
    assert "val_loss" in fetched
    [own] = (user.here / "best" / "own").iterdir()
    assert own.name == f"step-{best}.pt"
    assert hashlib.sha256(own.read_bytes()).hexdigest() in fetched
    assert f" {100 / best:.4g}\n" in fetched, "the metric is that of its own step"
    again = user.run("fetch-best", "--into", "best")
    assert "already here, verified" in again
    refused = user.fails("fetch-best", "--to", "hf", code=12)
    assert "its checkpoint is already in the format of its own script" in refused
    report = user.json("report", "--json")["runs"]
    assert report[0]["best"]["checkpoint"] == f"train/step-{best:08d}"
    assert f"val_loss {100 / best:.4g}" in user.run("report")
    work = user.home / "runs" / told.run_id / "train" / "work"
    assert sorted(entry.name for entry in work.iterdir()) == ["out", "train.py"]
    _a_manifest_that_says_safe_is_not_believed(user)


def _a_manifest_that_says_safe_is_not_believed(user: User) -> None:
    for path in user.home.glob("runs/*/train/checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest["extra"]["opens"] = "data"
        path.write_text(json.dumps(manifest))
    fetched = user.run("fetch-best", "--into", "claimed")
    [own] = (user.here / "claimed" / "own").iterdir()
    assert " safe: " not in fetched
    assert "opening it      unsafe: a pickle can run code" in fetched
    assert own.name in fetched
    told = [line for line in fetched.splitlines() if "sha256" not in line and "/" not in line]
    assert max(map(len, told)) <= 80
    assert not list(user.here.rglob("opened")), "nothing has opened it"


def test_one_that_is_done_at_once_has_a_code_of_its_own(user: User) -> None:
    """It was given one variable by name, and no other; the metric that was asked for never came."""
    script(user, "import os\nprint('TOKEN', os.environ.get('TOKEN'), os.environ.get('OTHER'))")
    user.environment |= {"TOKEN": "open-sesame", "OTHER": "never"}
    limits = ("--budget", "0.10", "--hours", "0.01", "--checkpoints", "out", "--env", "TOKEN")
    run(user, *limits, "--metric", "never=([0-9]+)", "--best", "min", code=NO_CHECKPOINT_CODE)
    for said in (
        "it left no checkpoint in out", "TOKEN open-sesame None",
        "--metric never has not appeared; seen: ",
    ):  # fmt: skip
        assert said in log_of(user)
    assert not user.live_pods()
    places = subprocess.run(
        ["grep", "-rl", "open-sesame", str(user.home)], capture_output=True, text=True
    ).stdout.split()
    names = {Path(place).name for place in places}
    assert names == {"train.log"}, "the script printed it; nothing else has it any more"


#: Saves a pickle that leaves a file behind wherever it is opened, under a name that says data.
HOSTILE = """
import os, pickle, time
class Runs:
    def __reduce__(self):
        return os.system, ("touch opened",)
os.makedirs("out", exist_ok=True)
for step in range(1, 100000):
    time.sleep(0.05)
    print(f"step {step} val_loss={100 / step:.4f}")
    if step % 10 == 0:
        with open(f"out/step-{step}.pt", "wb") as file:
            pickle.dump([Runs(), step], file)
"""


def test_one_that_listens_saves_when_it_is_told_and_says_how_good_it_is(user: User) -> None:
    script(user, scripts.POLITE)
    user.run(
        *("run", "local", *RATE, "--budget", "0.30", "--grace", "10", "--metric", "val_loss", "-d"),
        *("--", "python3", "train.py"),
    )
    until(lambda: (user.json("status", "--json")["runs"][0]["step"] or 0) > 20)
    user.stop()
    assert user.only_run().outcome is Outcome.STOPPED
    out = user.run("fetch-best", "--into", "best")
    assert (user.here / "best/own/last/model.bin").read_bytes() == b"polite" * 1000
    assert (user.here / "best/own/last/config.json").read_text() == "{}"
    assert "val_loss" in out
    beat = json.loads(next(user.home.glob("runs/*/train/heartbeat.json")).read_text())
    assert beat["outcome"] == "landed_signal"
    assert 0 < beat["landing_seconds"] < 10


def own_mark() -> str:
    """In place of SHED: tests beside this one shed theirs."""
    return f"SHED-{os.getpid()}-{time.monotonic_ns()}"


def shed(mark: str) -> list[int]:
    """Processes with this word in their command that have shed their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and processes.started(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("text", "hours", "seconds", "code"),
    [
        (scripts.FORKING, "0.001", "1000", NO_CHECKPOINT_CODE),
        # Its time ends long after it has killed who started it: on a busy machine, too.
        (scripts.ATTACKING, "0.02", "", FAILED),
    ],
    ids=["told to stop", "who started it is killed"],
)
def test_no_child_outlives_the_run(
    user: User, text: str, hours: str, seconds: str, code: int
) -> None:
    mark = own_mark()
    script(user, text.replace("SHED", mark))
    run(user, "--budget", "0.1", "--hours", hours, "--grace", "1", code=code, words=(seconds,))
    assert not user.live_pods()
    assert not shed(mark)


def test_a_loud_one_is_capped_and_its_last_words_are_kept(user: User) -> None:
    script(user, scripts.LOUD)
    run(user, "--budget", "0.10", "--checkpoints", "out", *METRIC, code=0)
    path = user.home / "runs" / user.only_run().run_id / "train" / "train.log"
    assert path.stat().st_size < (64 << 20) + (1 << 18)
    assert "bytes of log are left out here" in log_of(user)
    assert "the last words" in log_of(user)[-4000:]
    assert kept(user) == [7]


def test_what_cannot_be_carried_home_is_left_out_with_a_reason(user: User) -> None:
    script(user, scripts.CROOKED)
    run(user, "--budget", "0.10", "--checkpoints", "out", *METRIC, code=0)
    log = log_of(user)
    for name, why in {
        "step-1": "model.pt is a link that leads out",
        "step-2": "deeper than 6 folders",
        "step-3": "more than 1024 files",
        "step-5.pt": "its zip has no end",
    }.items():
        assert re.search(f"left out out/{name}: .*{re.escape(why)}", log), (name, log)
    assert "more than the 0.00 GB reserved: --checkpoint-gb" in log, "taken, and said"
    assert "took out/step-4.pt" in log
    assert kept(user) == [6]


def test_a_folder_that_leads_out_gives_nothing_and_an_endless_pattern_costs_nothing(
    user: User, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "step-1.pt").write_bytes(b"not for you")
    elsewhere = str(tmp_path / "elsewhere")
    link = f"import os, time\nos.symlink({elsewhere!r}, 'out')\n"
    script(user, f"{link}for n in range(5): print('x' * 60)\ntime.sleep(3)")
    options = (
        "--budget",
        "0.10",
        "--checkpoints",
        "out",
        "--metric",
        "((?:x+x+)+y)",
        "--best",
        "min",
    )
    began = time.monotonic()
    run(user, *options, code=NO_CHECKPOINT_CODE)
    assert time.monotonic() - began < 60
    assert "leads out of the working tree" in log_of(user)
    assert "pattern takes too long for a line" in log_of(user)
    assert kept(user) == []


def test_given_values_are_deleted_by_whoever_finds_a_pod_that_crashed(user: User) -> None:
    script(user, "import time\ntime.sleep(600)")
    user.environment |= {"TOKEN": "open-sesame"}
    command = ("--env", "TOKEN", "-d", "--", "python3", "train.py")
    user.run("run", "local", *RATE, "--budget", "0.10", *command)
    [given] = user.home.glob("pods/*/environment.json")
    assert given.stat().st_mode & 0o077 == 0
    assert "open-sesame" in given.read_text()
    for pod in user.live_pods():
        while processes.kill_pod(pod.name):
            time.sleep(0.02)
    assert given.exists(), "nothing was left that could have deleted it"
    user.run("status")
    assert not given.exists()


DAEMON = """
import os, signal, sys, time
if os.fork():
    time.sleep(600)
os.setsid()
if os.fork():
    os._exit(0)
pid, chain = int(os.environ["ABOVE"]), []
while pid > 1:
    words = open(f"/proc/{pid}/cmdline").read()
    if "trmcloud.pod" not in words:
        break
    chain.append(pid)
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
time.sleep(1.0)
for pid in reversed(chain):
    os.kill(pid, signal.SIGKILL)
os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "SHED"], {})
"""


def test_a_daemon_that_killed_job_agent_and_watchdog_is_found_and_ended(user: User) -> None:
    """It forked twice, has a session of its own and an empty environment."""
    mark = own_mark()
    above = "import os\nos.environ['ABOVE'] = str(os.getppid())\n"
    script(user, above + DAEMON.replace("SHED", mark))
    limits = ("--budget", "0.1", "--hours", "0.003", "--grace", "1", "-d")
    user.run("run", "local", *RATE, *limits, "--", "python3", "train.py")
    until(lambda: bool(shed(mark)), within_s=30, what="the daemon has killed them")
    [pod] = user.live_pods()
    assert set(processes.of_pod(pod.name)) >= set(shed(mark))
    user.run("stop", "-y", "--now", user.only_run().run_id)
    until(lambda: not shed(mark), within_s=20, what="it is ended")
    assert processes.of_pod(pod.name) == []


@pytest.mark.more
def test_the_guides_script_is_stopped_in_time_for_less_than_five_cents(user: User) -> None:
    """A plain PyTorch loop, word by word as docs/guide/your-own.md has its commands."""
    shutil.copy(ROOT / "docs" / "guide" / "your-own" / "train.py", user.here)
    python = python_of_ranks(user.folder / "bin", step_s=0.02)
    user.environment["PATH"] = f"{python}:{os.environ['PATH']}"
    page = written.GUIDES / "your-own.md"
    text = page.read_text(encoding="utf-8")
    file = text.partition("```toml\n")[2].partition("```\n")[0]
    (user.here / "trmcloud.toml").write_text(file, encoding="utf-8")
    guide = written.commands_in(page.name, text)
    shown = next(c for c in guide if c.words[0] == "launch" and "-y" in c.words)
    user.run(*shown.words, code=LANDED)
    [told] = user.json("status", user.only_run().run_id, "--json")["runs"]
    assert 0 < float(told["spent_usd"]) <= 0.05
    fetched = user.run("fetch-best", "--into", "best")
    assert "opening it      unsafe: a zip with a pickle in it can run code" in fetched
    *_, told, first, second = fetched.splitlines()
    assert told == "  in Python, these lines open it:"
    code = f"{first}\n{second}\nprint(len(model_state))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "5\n", done.stderr


def test_a_probe_measures_its_steps_and_ends(user: User) -> None:
    script(user, scripts.PLAIN)
    began = time.monotonic()
    out = run(user, "--budget", "0.10", "--grace", "2", "--probe", "40", code=0)
    assert time.monotonic() - began < 100, "and not for the hundred seconds of its budget"
    found = re.search(r"measured +([0-9.e-]+) s \(([0-9.e-]+) to ([0-9.e-]+)\) per step", out)
    assert found is not None, out
    step_s, fast_s, slow_s = map(float, found.groups())
    assert fast_s <= step_s <= slow_s
    assert 0.049 <= step_s < 0.5, "it sleeps for 0.05 s in each"
    assert "memory " in out
    assert "elsewhere       not known: the pace on a CPU does not predict that on a GPU" in out


def test_one_that_falls_silent_is_taken_for_hung(user: User) -> None:
    script(user, "import time\nprint('step 1')\ntime.sleep(1000)")
    began = time.monotonic()
    run(user, "--budget", "0.50", "--grace", "2", "--silent", "3", code=FAILED)
    assert time.monotonic() - began < 100
    assert "no step for" in user.run("status", user.only_run().run_id)
    assert not user.live_pods()
