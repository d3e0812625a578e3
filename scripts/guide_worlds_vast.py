"""The world of docs/guide/vast.md: a stand-in of vast.ai, whose instances really run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from guide_readers import Reader, at_home

from tests.e2e.rented import image, path_of
from tests.e2e.user import IMPATIENT, User
from tests.standins.vast.standin import running

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def vast(folder: Path) -> Iterator[Reader]:
    """A user with a key and a text; lists prove within seconds that an instance is gone."""
    inside = image(folder / "image")
    image_env = path_of(inside) | {"OMP_NUM_THREADS": "2"}
    with running(folder / "vast", keep=[inside], image_env=image_env) as standin:
        user = at_home(User(folder, program=IMPATIENT))
        user.environment |= standin.environment | {
            "TRMCLOUD_VAST_IMAGE": "an/image:with-this-machines-torch",
        }
        pages = sorted((ROOT / "docs").rglob("*.md"))
        (folder / "notes.txt").write_text("".join(page.read_text("utf-8") for page in pages))
        only = {
            "smoke": "ends itself|prepaid  |^verified",
            "plan": "^▸|^balance",
            "launch": "^r-|^✔ (Boot|Making)",
            "status": "prepaid",
            "fetch-best": "fetched",
            "report": "^total",
        }
        yield Reader(user, only=only)
