"""The worlds in which scripts/guides.py runs what the guides show: those of the tests, by page."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e import mission
from tests.e2e.bare import bare_image
from tests.e2e.rented import image
from tests.e2e.runpod_user import RentedUser, TestClock
from tests.e2e.test_several_machines import sailing
from tests.e2e.test_skypilot import DOWN, by_sky
from tests.e2e.user import SMALL, User, real_trainer, until
from tests.standins import s3, sky_machines
from tests.standins.downloads import downloads
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.standins.sshd import free_port
from tests.unit.skypilot.rig import stand_in
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev

ROOT = Path(__file__).resolve().parents[1]
HOUR, DAY = 3600.0, 86_400.0
_TINY = (
    *("--recipe", "trm-tiny", "--data", "text.txt", "--phase", "fast"),
    *("--set", "depth=1", "--set", "width=32", "--set", "vocab_size=512"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024"),
)
#: What is shown of a launch whose plan is not the matter.
_COURSE = r"^(r-|✔|✘)|^  (hardware|rate|generation|pulled|waits|the pod|nor|why|spent|try|trmcloud)"
_ITS_COURSE = {"launch": _COURSE, "resume": _COURSE}
_SMALL = """\
depth = 1
width = 32
vocab_size = 300
sequence = 64
eval_tokens = 1024
eval_every = 20
save_every = 20
log_every = 5
steps = 100000
"""
_VIA_SKY = ("--via", "skypilot", "--provider", "runpod", "--allow-account-key-on-pod")


@dataclass(frozen=True)
class Reader:
    """Who types what a page shows."""

    user: User
    before: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """What happens before a command, by the comment behind it."""
    during: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """Likewise while it runs."""
    only: Mapping[str, str] = field(default_factory=dict)
    """Lines that are shown of a command, by how it begins."""


World = Callable[[Path], AbstractContextManager[Reader]]


@contextlib.contextmanager
def first_run(folder: Path) -> Iterator[Reader]:
    with mission.world(folder) as (user, _):
        yield Reader(_at_home(user))


@contextlib.contextmanager
def runpod(folder: Path) -> Iterator[Reader]:
    """A user with a key and a text; the pods' torch is this one's."""
    image_env = {"PATH": f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}", "OMP_NUM_THREADS": "2"}
    with judged(folder / "runpod", image_env=image_env) as standin:
        user = _at_home(User(folder, trainer=None))
        user.environment |= {
            "RUNPOD_API_KEY": standin.api_key,
            "TRMCLOUD_RUNPOD_IMAGE": "an/image:with-this-machines-torch",
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
        }
        (folder / "notes.txt").write_text(_prose())
        yield Reader(user)


@contextlib.contextmanager
def desk(folder: Path) -> Iterator[Reader]:
    """An empty home."""
    user = _at_home(User(folder))
    user.environment["LOGNAME"] = "you"
    yield Reader(user)


# -- renting, with a trainer that is a stand-in, too -----------------------------------------------


@contextlib.contextmanager
def _rented(folder: Path, **more: object) -> Iterator[RentedUser]:
    """A user of pods that are machines of their own, with a clock that can be moved on."""
    clock = TestClock(folder / "clock")
    inside = image(folder / "image")
    settings = {"keep": [inside], "image_env": {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"}}
    with judged(folder / "runpod", clock=clock, isolated=True, **(settings | more)) as standin:
        user = RentedUser(folder, standin=standin, clock=clock)
        _at_home(user)
        yield user


def _smoked(user: User) -> None:
    """What a smoke run has seen is on record."""
    user.run("budget", "show")
    ledger = SqliteLedger(user.ledger_path)
    for layer in ("agent", "prepaid"):
        ledger.verify_layer(ev.LayerVerified("runpod", layer, "a smoke run"), time.time())


def _gone(user: RentedUser) -> None:
    until(lambda: not user.live(), what="its pod ends by itself")


@contextlib.contextmanager
def runpod_no_graphql(folder: Path) -> Iterator[Reader]:
    """The balance and the spend limit have no source any more."""
    with _rented(folder) as user:
        user.standin.control.set(graphql_gone=True)

        def train() -> None:
            words = ("launch", "1xRTX4090", *_TINY, "--accept-exposure", "2", "--accept-loss")
            user.run(*words, "--steps", "100000", "--budget", "0.30", "-y", "-d")

        only = {
            "doctor": "runpod key|scopes|balance|console|^. pods|skew",
            "smoke": "account|prepaid",
            "status": "prepaid",
        }
        yield Reader(user, before={"of a run that trains": train}, only=only)


# -- SkyPilot --------------------------------------------------------------------------------------


@contextlib.contextmanager
def sky(folder: Path) -> Iterator[Reader]:
    """Three clouds are enabled; nothing is there to be rented."""
    state = folder / "sky.json"
    state.write_text(json.dumps({"enabled": ["AWS", "GCP", "RunPod"]}))
    user = _at_home(User(folder))
    user.environment["TRMCLOUD_SKY"] = str(stand_in(folder / "sky", state))
    only = {
        "doctor": "skypilot",
        "plan": "^(trm|▸|Recommended|Launch)|^  (price|spot|nothing|lands)",
    }
    yield Reader(user, only=only)


@contextlib.contextmanager
def sky_trains(folder: Path) -> Iterator[Reader]:
    """A launch that goes on elsewhere, and trains."""
    with _rented(folder) as user:
        by_sky(user)
        words = ("launch", "1xRTX4090", *_TINY, *_VIA_SKY, "--accept-exposure", "2")
        user.start(*words, "--steps", "100000", "--budget", "0.30", "-y")
        until(lambda: _trains(user), what="training")
        yield Reader(user)


@contextlib.contextmanager
def sky_installs(folder: Path) -> Iterator[Reader]:
    """Machines without a torch, and nowhere to get one."""
    inside, kept = bare_image(folder / "bare")
    with (
        downloads(folder / "downloads") as served,
        _rented(
            folder,
            keep=kept,
            image_env={"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"},
            reach=[served.port],
        ) as user,
    ):
        by_sky(user)
        user.environment |= served.settings() | {
            "TRMCLOUD_INSTALL_UV_DEFAULT_INDEX": f"http://127.0.0.1:{free_port()}/",
            "TRMCLOUD_INSTALL_UV_HTTP_RETRIES": "0",
        }
        yield Reader(user, only=_ITS_COURSE)


@contextlib.contextmanager
def sky_sold_out(folder: Path) -> Iterator[Reader]:
    clock = TestClock(folder / "clock")
    with judged(folder / "runpod", clock=clock, real_pods=False) as standin:
        standin.control.set(no_capacity=["*"])
        user = RentedUser(folder, standin=standin, clock=clock)
        _at_home(user)
        yield Reader(by_sky(user), only=_ITS_COURSE)


@contextlib.contextmanager
def sky_exits(folder: Path) -> Iterator[Reader]:
    """A pod that stops behind SkyPilot's back."""
    with _rented(folder) as user:
        by_sky(user)

        def stop() -> None:
            until(lambda: bool(user.checkpoints()), what="a checkpoint here")
            (pod,) = user.live()
            account = {"url": user.standin.url, "key": user.standin.api_key}
            sky_machines.ask(account, "POST", f"/pods/{pod.id}/action", {"action": "stop"})

        during = {"its pod exits while it trains": stop}
        yield Reader(user, during=during, only=_ITS_COURSE)


@contextlib.contextmanager
def sky_two(folder: Path) -> Iterator[Reader]:
    """Two machines with the real trainer, of which one is lost; what goes on then is stopped."""
    with sailing(folder) as user:
        _at_home(user)
        settings = folder / "small.toml"
        settings.write_text(_SMALL)
        user.environment["TRMCLOUD_TEST_SETTINGS"] = str(settings)

        def reached() -> int:
            return max((made.step for made in user.checkpoints().values()), default=0)

        def lose() -> None:
            until(lambda: reached() > 0, within_s=300.0, what="a checkpoint here")
            _, other = sorted(user.live(), key=lambda pod: pod.name)
            user.standin.control.lose_host(other.id)

        def stop() -> None:
            before = reached()
            until(lambda: reached() > before, within_s=300.0, what="a newer checkpoint")
            user.run("stop", "-d")

        during = {"its second machine is lost": lose, "and a stop elsewhere": stop}
        yield Reader(user, during=during, only=_ITS_COURSE)


@contextlib.contextmanager
def sky_cannot(folder: Path) -> Iterator[Reader]:
    """SkyPilot in each state in which it rents nothing."""
    user = _at_home(User(folder))
    state, program = folder / "sky.json", folder / "sky"

    def as_(**told: object) -> Callable[[], None]:
        def change() -> None:
            state.write_text(json.dumps(told))
            user.environment["TRMCLOUD_SKY"] = str(stand_in(program, state))

        return change

    before = {
        "an old one": as_(version="0.9.2"),
        "its server does not answer": as_(fail={"check": DOWN}),
        "no credentials of AWS": as_(enabled=["GCP"]),
    }
    yield Reader(user, before=before)


# -- buckets ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def bucket(folder: Path) -> Iterator[Reader]:
    """The real trainer on this machine, and a bucket."""
    with s3.running() as store:
        store.client.create_bucket(Bucket="my-bucket")
        user = _at_home(User(folder, trainer=real_trainer(folder / "trainer")))
        user.environment |= store.environment | {"OMP_NUM_THREADS": "1"}
        (folder / "text.txt").write_text(_prose())

        def forget() -> None:
            for kept in user.home.glob("runs/*/*/checkpoints"):
                shutil.rmtree(kept)

        before = {"this machine's own copies were deleted": forget}
        yield Reader(user, before=before, only={"doctor": "bucket"})


@contextlib.contextmanager
def bucket_alone(folder: Path) -> Iterator[Reader]:
    """Pods that reach the bucket, and a clock that is moved on once they are gone."""
    with s3.running() as store, _rented(folder, reach=[store.port]) as user:
        store.client.create_bucket(Bucket="my-bucket")
        user.environment |= store.environment
        _smoked(user)

        def later() -> None:
            _gone(user)
            user.clock.advance(HOUR)

        before = {
            "an hour later": later,
            "a quarter of an hour later": lambda: user.clock.advance(HOUR / 4),
            "and another": lambda: user.clock.advance(HOUR / 4),
        }
        yield Reader(user, before=before, only={"launch": "checkpoints in|reserved|goes on"})


# -- money -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def unscored(folder: Path) -> Iterator[Reader]:
    """A run whose last evaluation ran out of memory, and which has no other checkpoint."""
    user = _at_home(User(folder))
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "out-of-memory@40"
    rarely = ("--set", "save_every=100", "--set", "eval_every=100")
    words = ("launch", "local", *SMALL, "--phase", "fast", *rarely, "--steps", "40")
    user.run(*words, "--budget", "1", "-y", code=24)
    yield Reader(user)


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[Reader]:
    """The real trainer trains on this machine, left alone."""
    user = _at_home(User(folder, trainer=real_trainer(folder / "trainer")))
    user.environment["OMP_NUM_THREADS"] = "1"
    (folder / "text.txt").write_text(inspect.getsource(argparse))
    rarely = ("--set", "save_every=100000", "--set", "eval_every=100000")
    words = ("launch", "local", "--rate", "3.60", *_TINY, *rarely, "--steps", "4000")
    user.run(*words, "--budget", "2", "-y", "-d")
    until(lambda: _trains(user), what="training")
    yield Reader(user)


@contextlib.contextmanager
def settling(folder: Path) -> Iterator[Reader]:
    """A run left alone whose pod ended itself, ten minutes before anybody looks."""
    with _rented(folder) as user:
        words = ("launch", "1xRTX4090", *_TINY, "--accept-exposure", "2", "--accept-loss")
        user.run(*words, "--steps", "60", "--budget", "0.30", "-y", "-d")
        _gone(user)
        user.run("status")
        user.clock.advance(600.0)
        yield Reader(user, only={"status r-": "^(·|run |state|spent|at most)"})


@contextlib.contextmanager
def volume(folder: Path) -> Iterator[Reader]:
    """A run left alone on a network volume, and the days after it."""
    with _rented(folder) as user:
        _smoked(user)

        def later() -> None:
            _gone(user)
            user.close_books()

        before = {
            "when its pod is gone": later,
            "two days later": lambda: user.clock.advance(2 * DAY),
        }
        yield Reader(user, before=before, only={"launch": "storage|volume|goes on by itself"})


# -- what they have in common ----------------------------------------------------------------------


def _at_home(user: User) -> User:
    user.environment["TRMCLOUD_HOME"] = str(user.home)
    return user


def _prose() -> str:
    """A text: these documents."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return "".join(page.read_text("utf-8") for page in pages)


def _trains(user: User) -> bool:
    return user.ledger_path.exists() and any(run.trains for run in user.ledger().runs.values())


WORLDS: Mapping[str, Mapping[str, World]] = {
    "first-run": {"": first_run},
    "runpod": {"": runpod, "no-graphql": runpod_no_graphql},
    "rehearse": {"": desk},
    "skypilot": {
        "": sky,
        "trains": sky_trains,
        "installs": sky_installs,
        "sold-out": sky_sold_out,
        "exits": sky_exits,
        "cannot": sky_cannot,
        "two": sky_two,
    },
    "s3": {"": bucket, "alone": bucket_alone},
    "budget": {
        "": desk,
        "unscored": unscored,
        "saving": saving,
        "settling": settling,
        "volume": volume,
    },
}
