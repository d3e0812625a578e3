"""Who types what a guide shows, and the world they share: for scripts/guides.py."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.rented import image
from tests.e2e.runpod_user import RentedUser, TestClock
from tests.e2e.user import User, until
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev

TINY = (
    *("--recipe", "trm-tiny", "--data", "text.txt", "--phase", "fast"),
    *("--set", "depth=1", "--set", "width=32", "--set", "vocab_size=512"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024"),
)


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
    python: str = sys.executable
    """The Python that ``$ python`` starts."""


World = Callable[[Path], AbstractContextManager[Reader]]


@contextlib.contextmanager
def rented(folder: Path, **more: object) -> Iterator[RentedUser]:
    """A user of pods that are machines of their own, with a clock that can be moved on."""
    clock = TestClock(folder / "clock")
    inside = image(folder / "image")
    settings = {"keep": [inside], "image_env": {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"}}
    with judged(folder / "runpod", clock=clock, **(settings | more)) as standin:
        user = RentedUser(folder, standin=standin, clock=clock)
        at_home(user)
        yield user


def smoked(user: User) -> None:
    """What a smoke run has seen is on record."""
    user.run("budget", "show")
    ledger = SqliteLedger(user.ledger_path)
    for layer in ("agent", "prepaid"):
        ledger.verify_layer(ev.LayerVerified("runpod", layer, "a smoke run"), time.time())


def gone(user: RentedUser) -> None:
    until(lambda: not user.live(), what="its pod ends by itself")


def at_home(user: User) -> User:
    user.environment["TRMCLOUD_HOME"] = str(user.home)
    return user


def trains(user: User) -> bool:
    return user.ledger_path.exists() and any(run.trains for run in user.ledger().runs.values())
