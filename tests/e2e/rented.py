"""A RunPod account to rent from: a stand-in whose image can train, and its users."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.runpod_user import RentedUser, TestClock, why_not
from tests.e2e.user import IMPATIENT, STANDIN, User
from tests.standins.runpod.containers import SYSTEM_PATH
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.standin import StandIn
from trmcloud.pod.machine import packages

#: A launch that rents for cents; follow it with --phase, --steps and the like.
LAUNCH = (
    *("launch", "1xA100", "--recipe", "trm-tiny", "--data", "python-stdlib", "--budget", "2"),
    *("--set", "depth=1", "--set", "width=32", "--set", "vocab_size=256"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024"),
    *("--set", "eval_every=10", "--set", "save_every=20"),
    *("--accept-exposure", "2", "-y"),
)


#: TensorBoard's command line over a plain server of files.
BOARD = """import argparse, functools, http.server
parser = argparse.ArgumentParser()
for name in ("--logdir", "--host", "--port"):
    parser.add_argument(name, required=True)
if __name__ == "__main__":
    given = parser.parse_args()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=given.logdir)
    http.server.ThreadingHTTPServer((given.host, int(given.port)), handler).serve_forever()
"""


def image(folder: Path) -> Path:
    """What RunPod's image has and this machine's own Python lacks: a torch (the stand-in
    trainer's), a board, and word of the packages that are not to be installed again."""
    site = folder / "site"
    shutil.copytree(STANDIN / "torch", site / "torch")
    (site / "tensorboard").mkdir()
    (site / "tensorboard" / "main.py").write_text(BOARD)
    for package in packages.read_list(packages.LIST.read_text()):
        about = site / f"{package.name.replace('-', '_')}-{package.pin}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.pin}\n"
        )
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{site}" exec /usr/bin/python3 "$@"\n'
    )
    python.chmod(0o755)
    return folder


def path_of(inside: Path) -> dict[str, str]:
    """The environment of an image that is kept there."""
    return {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}"}


def skip_without_pods() -> None:
    if missing := why_not():
        pytest.skip(f"pods that answer over SSH: {missing}")


@contextlib.contextmanager
def account(folder: Path) -> Iterator[StandIn]:
    """A stand-in whose isolated pods can train."""
    skip_without_pods()
    inside = image(folder / "image")
    with judged(folder / "runpod", keep=[inside], image_env=path_of(inside)) as standin:
        yield standin


@contextlib.contextmanager
def renting(
    folder: Path,
    inside: Path | None = None,
    *,
    keep: Sequence[Path] = (),
    image_env: Mapping[str, str] | None = None,
    reach: Sequence[int] = (),
) -> Iterator[RentedUser]:
    """A user of a RunPod of their own, whose pods are machines of their own with the image
    ``inside`` (None: one that can train). The rest as ``standin.running`` has it."""
    skip_without_pods()
    inside = inside or image(folder / "image")
    clock = TestClock(folder / "clock")
    with judged(
        folder / "runpod",
        clock=clock,
        keep=[inside, *keep],
        image_env=path_of(inside) if image_env is None else image_env,
        reach=reach,
    ) as standin:
        made = RentedUser(folder, standin=standin, clock=clock)
        yield made
        made.end_everything()


def tenant(folder: Path, standin: StandIn) -> User:
    """A user of that account, to whom RunPod's lists prove within seconds that a pod is gone."""
    user = User(folder, program=IMPATIENT)
    user.environment |= standin.environment
    return user
