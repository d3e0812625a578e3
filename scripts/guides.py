"""Runs commands of the guides anew, and puts what they print in the place of what stands there:
each block below ``<!-- run -->`` of the pages named here.

.venv/bin/python scripts/guides.py [first-run] [runpod]
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e import mission  # noqa: E402
from tests.e2e.user import User  # noqa: E402
from tests.standins.runpod.containers import SYSTEM_PATH  # noqa: E402
from tests.standins.runpod.fixture import judged  # noqa: E402

_BLOCK = re.compile(r"<!-- run -->\n```\n(?P<shown>.*?)```\n", re.DOTALL)
_PLAN = re.compile(r"launch (p-\w+)")
_LAUNCH_S = 400
_OFFERS_SHOWN = 6
_SHORT = ((r"(test settings.*?depth = 1), .*", r"\1, …"),)


@contextlib.contextmanager
def first_run(folder: Path) -> Iterator[User]:
    with mission.world(folder) as (user, _):
        yield user


@contextlib.contextmanager
def runpod(folder: Path) -> Iterator[User]:
    """A user with a key and a text; the pods' torch is this one's."""
    image_env = {"PATH": f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}", "OMP_NUM_THREADS": "2"}
    pages = sorted((ROOT / "docs").rglob("*.md"))
    with judged(folder / "runpod", image_env=image_env) as standin:
        user = User(folder, trainer=None)
        user.environment |= {
            "RUNPOD_API_KEY": standin.api_key,
            "TRMCLOUD_RUNPOD_IMAGE": "an/image:with-this-machines-torch",
            "TRMCLOUD_RUNPOD_API": standin.url,
            "RUNPOD_API_BASE_URL": standin.url,
            "TRMCLOUD_HOME": str(folder / ".trmcloud"),
        }
        (folder / "notes.txt").write_text("".join(page.read_text("utf-8") for page in pages))
        yield user


WORLDS: dict[str, Callable[[Path], AbstractContextManager[User]]] = {
    "first-run": first_run,
    "runpod": runpod,
}


def main() -> None:
    for name in sys.argv[1:] or WORLDS:
        page = ROOT / "docs" / "guide" / f"{name}.md"
        text = page.read_text("utf-8")
        with tempfile.TemporaryDirectory() as folder, WORLDS[name](Path(folder)) as user:
            try:
                text = _BLOCK.sub(lambda block: _again(user, block["shown"]), text)
            finally:
                user.end_everything()
        page.write_text(text, encoding="utf-8")


def _again(user: User, shown: str) -> str:
    """A block whose commands are run now; what stands before the first one stays."""
    kept = shown[: shown.index("$ trmcloud ")]
    typed = re.findall(r"^\$ trmcloud (.*)$", shown, re.MULTILINE)
    return f"<!-- run -->\n```\n{kept}" + "\n".join(_run(user, words) for words in typed) + "```\n"


def _run(user: User, typed: str) -> str:
    """One command and what it prints: a plan that it names is the one made last."""
    home = Path(user.env()["TRMCLOUD_HOME"])
    plans = sorted(home.glob("plans/p-*.json"), key=lambda path: path.stat().st_mtime)
    if plans:
        typed = _PLAN.sub(f"launch {plans[-1].stem}", typed)
    print(f"$ trmcloud {typed}", flush=True)
    out = user.run(*typed.split(), within_s=_LAUNCH_S)
    out = out.replace(str(user.folder), "~").replace(str(ROOT), "~/trmcloud")
    for pattern, short in _SHORT:
        out = re.sub(pattern, short, out)
    lines = out.rstrip().splitlines()
    if typed.startswith("plan"):
        lines = _first_offers(lines)
    return "\n".join([f"$ trmcloud {typed}", *lines, ""])


def _first_offers(lines: list[str]) -> list[str]:
    """A plan's table, cut to its first offers, and without the chart below it."""
    shown = next(n for n, line in enumerate(lines) if line.startswith("shown "))
    last = next(n for n, line in enumerate(lines) if line.startswith("Recommended:"))
    settings = [line for line in lines[shown:last] if line.startswith("test settings")]
    return [*lines[: 2 + 2 * _OFFERS_SHOWN], "…", lines[shown], *settings, "…", *lines[last:]]


if __name__ == "__main__":
    main()
