"""The worlds of the guide to SkyPilot, whose command and machines are stand-ins."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from guide_readers import TINY, Reader, at_home, rented, trains

from tests.e2e.bare import bare_image
from tests.e2e.runpod_user import RentedUser, TestClock
from tests.e2e.test_several_machines import sailing
from tests.e2e.test_skypilot import DOWN, by_sky
from tests.e2e.user import User, until
from tests.standins import sky_machines
from tests.standins.downloads import downloads
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.standins.sshd import free_port
from tests.unit.skypilot.rig import stand_in

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


@contextlib.contextmanager
def sky(folder: Path) -> Iterator[Reader]:
    """Three clouds are enabled; nothing is there to be rented."""
    state = folder / "sky.json"
    state.write_text(json.dumps({"enabled": ["AWS", "GCP", "RunPod"]}))
    user = at_home(User(folder))
    user.environment["TRMCLOUD_SKY"] = str(stand_in(folder / "sky", state))
    for path in (".aws/credentials", ".config/gcloud/active_config", ".runpod/config.toml"):
        (user.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (user.folder / path).touch()
    only = {
        "doctor": "skypilot",
        "plan": "^(trm|▸|Recommended|Launch)|^  (price|spot|nothing|lands)",
    }
    yield Reader(user, only=only)


@contextlib.contextmanager
def sky_trains(folder: Path) -> Iterator[Reader]:
    """A launch that goes on elsewhere, and trains."""
    with rented(folder) as user:
        by_sky(user)
        words = ("launch", "1xRTX4090", *TINY, *_VIA_SKY, "--accept-exposure", "2")
        user.start(*words, "--steps", "100000", "--budget", "0.30", "-y")
        until(lambda: trains(user), what="training")
        yield Reader(user)


@contextlib.contextmanager
def sky_installs(folder: Path) -> Iterator[Reader]:
    """Machines without a torch, and nowhere to get one."""
    inside, kept = bare_image(folder / "bare")
    with (
        downloads(folder / "downloads") as served,
        rented(
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
        at_home(user)
        yield Reader(by_sky(user), only=_ITS_COURSE)


@contextlib.contextmanager
def sky_exits(folder: Path) -> Iterator[Reader]:
    """A pod that stops behind SkyPilot's back."""
    with rented(folder) as user:
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
        at_home(user)
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
    user = at_home(User(folder))
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
