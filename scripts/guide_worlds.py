"""The worlds in which scripts/guides.py runs what the guides show: those of the tests, by page."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import guide_worlds_jobs
import guide_worlds_sky
import guide_worlds_told
import guide_worlds_vast
from guide_readers import TINY, Reader, World, at_home, gone, rented, smoked, trains

from tests.e2e import impatient, mission
from tests.e2e.rented import account
from tests.e2e.user import SMALL, User, real_trainer, until
from tests.standins import s3
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from trmcloud.pod.machine import processes

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / ".venv-own" / "bin"
HOUR, DAY = 3600.0, 86_400.0
_TERMS = "^  (plan|hardware|rate|cap|stops|checkpoints|trmcloud)|^(r-|✔)"
"""Of a launch, its terms and its course."""


@contextlib.contextmanager
def first_run(folder: Path) -> Iterator[Reader]:
    only = {
        "plan": "^(trm |▸|test settings|Recommended|  stops|Launch)",
        "launch": "^  (plan|hardware|extreme|rate|cap|stops|pulled|its bill|trmcloud)|^(r-|✔)",
    }
    with mission.world(folder) as (user, _):
        yield Reader(at_home(user), only=only)


def _with_agent(user: User, folder: Path) -> User:
    """With an agent's scripts and what they train, and a ``trmcloud`` on its path."""
    user.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}"
    for name in ("agent.py", "research.py", "train.py"):
        shutil.copy(ROOT / "docs" / "guide" / "agents" / name, folder)
    (folder / ".trmcloudignore").write_text("trmcloud-home/\n")
    return user


@contextlib.contextmanager
def agents(folder: Path) -> Iterator[Reader]:
    """A user of a RunPod whose pods run, where lists and bills take seconds."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"from {impatient.__name__} import shorten\nshorten()\n")
    with account(folder) as standin:
        project = folder / "project"
        project.mkdir()
        user = at_home(_with_agent(User(project), project))
        user.environment |= standin.environment
        user.environment["PYTHONPATH"] = os.pathsep.join((str(site), str(ROOT)))
        smoked(user)
        only = {
            "grant give": "^agent",
            "grant approve": "^a-|^agent",
            "report": '^   "(run|principal|state)"|^    "(cap|reserved|accrued|at_most)_usd"',
            "report --verify": "^r-|^✔ (page|hashes|account|ledger)",
        }
        yield Reader(user, only=only)


@contextlib.contextmanager
def agents_loop(folder: Path) -> Iterator[Reader]:
    """This machine as a user's who has given an agent a grant."""
    user = at_home(_with_agent(User(folder, trainer=None, cwd=folder), folder))
    user.run("grant", "give", "agent", "2", "--per-run", "0.05")
    yield Reader(user)


@contextlib.contextmanager
def your_own(folder: Path) -> Iterator[Reader]:
    """A stranger's folder: a script that needs torch, in a repository, and a key beside it."""
    user = at_home(User(folder, trainer=None, cwd=folder))
    user.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    shutil.copy(ROOT / "docs" / "guide" / "your-own" / "train.py", folder)
    (folder / ".env").write_text("WANDB_API_KEY=secret\n")
    (folder / ".trmcloudignore").write_text("trmcloud-home/\n")
    only = {
        "launch --rate 3.60 --budget 0.05 --dry-run": "^  (hardware|command|best|cap|from|code) ",
        "launch --rate 3.60 --budget 0.05 -y": "^(r-|✔)|^  (why|spent|trmcloud)",
    }
    yield Reader(user, only=only)


@contextlib.contextmanager
def own_desk(folder: Path) -> Iterator[Reader]:
    """The same folder; of a rehearsal, what is simulated and what came of it."""
    shown = "^  simulated|^    (length|saves|script)|^100 plays|^  (spent|ended|saved|exposed)"
    with your_own(folder) as reader:
        yield Reader(reader.user, only={"rehearse": shown})


@contextlib.contextmanager
def post_training(folder: Path) -> Iterator[Reader]:
    """A repository of the guide's own scripts, with TRL and PEFT: ``make own-all`` makes these."""
    user = at_home(User(folder, trainer=None, cwd=folder))
    user.environment["PATH"] = f"{OWN}:{SYSTEM_PATH}"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".git" / "info" / "exclude").write_text("trmcloud-home/\n")
    shutil.copytree(ROOT / "docs" / "guide" / "post-training", folder, dirs_exist_ok=True)
    only = {
        "make_model.py": "^base",
        "ask.py": "right$",
        "run": "^r-.* finished|^train .*best|^  spent",
        "fetch-best": "fetched|^  (eval_loss|reward|folder)",
    }
    yield Reader(user, only=only, python=str(OWN / "python"))


@contextlib.contextmanager
def runpod(folder: Path) -> Iterator[Reader]:
    """A user with a key, a text and a smoke run on record; the pods' torch is this one's."""
    image_env = {"PATH": f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}", "OMP_NUM_THREADS": "2"}
    with judged(folder / "runpod", image_env=image_env) as standin:
        user = at_home(User(folder, trainer=None))
        user.environment |= {
            "RUNPOD_API_KEY": standin.api_key,
            "TRMCLOUD_RUNPOD_IMAGE": "an/image:with-this-machines-torch",
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
        }
        (folder / "notes.txt").write_text(_prose())
        smoked(user)
        shown = "^  (rate|cap|stops|checkpoints|balance|trmcloud)|^(r-|✔)"
        yield Reader(user, only={"launch": shown})


@contextlib.contextmanager
def desk(folder: Path) -> Iterator[Reader]:
    """An empty home."""
    yield Reader(at_home(User(folder)))


@contextlib.contextmanager
def planner(folder: Path) -> Iterator[Reader]:
    """An empty home, shipped prices, and this machine."""
    user = at_home(User(folder, trainer=None))
    yield Reader(user, only={"plan --budget 1000 --own": "^Your |^  an hour of it|sooner"})


# -- buckets ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def bucket(folder: Path) -> Iterator[Reader]:
    """The real trainer on this machine, and a bucket."""
    with s3.running() as store:
        store.client.create_bucket(Bucket="my-bucket")
        user = at_home(User(folder, trainer=real_trainer(folder / "trainer")))
        user.environment |= store.environment | {"OMP_NUM_THREADS": "1"}
        (folder / "text.txt").write_text(_prose())

        def forget() -> None:
            for kept in user.home.glob("runs/*/*/checkpoints"):
                shutil.rmtree(kept)

        before = {"this machine's own copies were deleted": forget}
        only = {"doctor": "bucket", "launch": f"{_TERMS}|^  (storage|why|spent)"}
        yield Reader(user, before=before, only=only)


@contextlib.contextmanager
def bucket_alone(folder: Path) -> Iterator[Reader]:
    """Pods that reach the bucket, and a clock that is moved on once they are gone."""
    with s3.running() as store, rented(folder, reach=[store.port]) as user:
        store.client.create_bucket(Bucket="my-bucket")
        user.environment |= store.environment
        smoked(user)

        def later() -> None:
            gone(user)
            user.clock.advance(HOUR)

        before = {
            "an hour later": later,
            "a quarter of an hour later": lambda: user.clock.advance(HOUR / 4),
            "and another": lambda: user.clock.advance(HOUR / 4),
        }
        yield Reader(user, before=before, only={"launch": "checkpoints in|reserved|goes on"})


@contextlib.contextmanager
def shared_out(folder: Path) -> Iterator[Reader]:
    """The real trainer on this machine, killed with all that belongs to it, and a bucket."""
    with s3.running() as store:
        store.client.create_bucket(Bucket="my-bucket")
        user = at_home(User(folder, trainer=real_trainer(folder / "trainer")))
        user.environment |= store.environment | {"OMP_NUM_THREADS": "1"}

        def stored() -> int:
            listed = store.client.list_objects_v2(Bucket="my-bucket").get("Contents", [])
            named = [each for each in listed if each["Key"].endswith("manifest.json")]
            return sum(each["Size"] > 0 for each in named)

        def kill_all() -> None:
            until(lambda: stored() >= 2, within_s=300.0, what="two checkpoints in the bucket")
            for pod in user.live_pods():
                for pid in processes.of_pod(pod.name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(2.0)

        aside = folder / "aside"

        def set_aside() -> None:
            for kept in user.home.glob("runs/*/*/checkpoints"):
                kept.rename(aside)

        def put_back() -> None:
            for phase in user.home.glob("runs/*/train") if aside.exists() else ():
                aside.rename(phase / "checkpoints")

        before = {
            "after kill -9 of all its processes": kill_all,
            "where this machine has no copy of its own": set_aside,
            "": put_back,
        }
        only = {
            "launch": f"{_TERMS}|^  set by",
            "resume --processes 1": "^  (hardware|goes|train from|processes|cap)|^r-|^✔|spent",
            "eval": "step|final",
        }
        yield Reader(user, before=before, only=only)


@contextlib.contextmanager
def shared_out_plan(folder: Path) -> Iterator[Reader]:
    """An empty home, and shipped prices."""
    user = at_home(User(folder, trainer=None))
    told = "tokens per step|recompute|links|^  step |saving|saves of|lands|sum|batch 4 needs|here:"
    yield Reader(user, only={"plan": told})


# -- money -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def unscored(folder: Path) -> Iterator[Reader]:
    """A run whose last evaluation ran out of memory, and which has no other checkpoint."""
    user = at_home(User(folder))
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "out-of-memory@40"
    rarely = ("--set", "save_every=100", "--set", "eval_every=100")
    words = ("launch", "local", *SMALL, "--phase", "fast", *rarely, "--steps", "40")
    user.run(*words, "--budget", "1", "-y", code=24)
    yield Reader(user)


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[Reader]:
    """The real trainer trains on this machine, left alone."""
    user = at_home(User(folder, trainer=real_trainer(folder / "trainer")))
    user.environment["OMP_NUM_THREADS"] = "1"
    (folder / "text.txt").write_text(inspect.getsource(argparse))
    rarely = ("--set", "save_every=100000", "--set", "eval_every=100000")
    words = ("launch", "local", "--rate", "3.60", *TINY, *rarely, "--steps", "4000")
    user.run(*words, "--budget", "2", "-y", "-d")
    until(lambda: trains(user), what="training")
    yield Reader(user)


@contextlib.contextmanager
def settling(folder: Path) -> Iterator[Reader]:
    """A run left alone whose pod ended itself, ten minutes before anybody looks."""
    with rented(folder) as user:
        words = ("launch", "1xRTX4090", *TINY, "--accept-exposure", "2", "--accept-loss")
        user.run(*words, "--steps", "60", "--budget", "0.30", "-y", "-d")
        gone(user)
        user.run("status")
        user.clock.advance(600.0)
        yield Reader(user, only={"status r-": "^(·|run |state|spent|at most)"})


@contextlib.contextmanager
def volume(folder: Path) -> Iterator[Reader]:
    """A run left alone on a network volume, and the days after it."""
    with rented(folder) as user:
        smoked(user)

        def later() -> None:
            gone(user)
            user.close_books()

        before = {
            "when its pod is gone": later,
            "two days later": lambda: user.clock.advance(2 * DAY),
        }
        yield Reader(user, before=before, only={"launch": "storage|volume|goes on by itself"})


def _prose() -> str:
    """A text: these documents."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return "".join(page.read_text("utf-8") for page in pages)


WORLDS: Mapping[str, Mapping[str, World]] = {
    "first-run": {"": first_run},
    "agents": {"": agents, "loop": agents_loop},
    "your-own": {"": your_own},
    "post-training": {"": post_training},
    "runpod": {"": runpod},
    "huggingface": {"": guide_worlds_jobs.huggingface},
    "vast": {"": guide_worlds_vast.vast},
    "rehearse": {"": desk, "own": own_desk},
    "plan": {"": planner},
    "receipt": {"": guide_worlds_told.receipt},
    "notify": {"": guide_worlds_told.notify},
    "watch": {"": guide_worlds_told.watch},
    "api": {"": guide_worlds_told.api, "own": guide_worlds_told.api_of_commands},
    "skypilot": {"": guide_worlds_sky.sky},
    "s3": {"": bucket, "alone": bucket_alone},
    "scale": {"": shared_out, "plan": shared_out_plan},
    "budget": {
        "": desk,
        "unscored": unscored,
        "saving": saving,
        "settling": settling,
        "volume": volume,
    },
}
