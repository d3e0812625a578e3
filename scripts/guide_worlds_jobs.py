"""The world of docs/guide/huggingface.md: a stand-in of the Hub, whose jobs really run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from guide_readers import Reader, at_home

from tests.e2e.rented import image
from tests.e2e.user import IMPATIENT, User
from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.machines import JobMachines
from tests.standins.huggingface.server import serving
from tests.standins.runpod.containers import SYSTEM_PATH

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def huggingface(folder: Path) -> Iterator[Reader]:
    """A user with a token, a registered key and a text; lists prove within seconds that a job is
    gone."""
    inside = image(folder / "image")
    image_env = {"PATH": f"{inside / 'bin'}:{SYSTEM_PATH}", "OMP_NUM_THREADS": "2"}
    machines = JobMachines(folder / "hub", time.time, [inside], image_env)
    hub = Hub(time.time, machines)
    hub.knobs.scheduling_s = 2.0
    machines.hub = hub
    with serving(hub) as standin:
        machines.api_url = standin.url
        user = at_home(User(folder, program=IMPATIENT))
        user.environment |= standin.environment | {
            "TRMCLOUD_HF_SSH_KEY": str(machines.user_key),
            "TRMCLOUD_HF_IMAGE": "an/image:with-this-machines-torch",
        }
        text = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))
        (folder / "notes.txt").write_text(text)

        only = {
            "smoke": "timeout|ends itself|^verified",
            "plan": "^▸",
            "launch 1xL4": "^r-|^✔ (Boot|Train)",
            "status": "timeout",
            "fetch-best": "fetched",
            "report": "^total",
        }
        yield Reader(user, only=only, python=sys.executable)
