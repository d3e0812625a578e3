"""The worlds of the guides about receipts, notices, boards and programs, and the pictures that they
leave: what a browser shows of pages that the guides' own commands made."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from guide_readers import TINY, Reader, at_home

from tests.e2e.user import User, real_trainer, until
from tests.standins.browser import chromium
from tests.standins.receiver import Receiver, receiving
from tests.standins.runpod.containers import SYSTEM_PATH
from trmcloud.operations.money.html_page import head_of, html_table, words

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guide"
HOOK_PORT = 8099
BOARD_PORT = 6006
_CHROMIUM = ("chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu")


@contextlib.contextmanager
def receipt(folder: Path) -> Iterator[Reader]:
    """A run of the real trainer that has ended; a second home that knows nothing of it."""
    user = _trained(folder)
    home = user.environment["TRMCLOUD_HOME"]
    page = folder / "receipt.html"

    def elsewhere() -> None:
        user.environment["TRMCLOUD_HOME"] = str(folder / "elsewhere")

    def back() -> None:
        user.environment["TRMCLOUD_HOME"] = home

    before = {
        "in another home": elsewhere,
        "at home again": back,
    }
    yield Reader(user, before=before)
    picture(page, "receipt.png", 1000, 2225)
    picture(folder / "month.html", "month.png", 1000, 720)


@contextlib.contextmanager
def notify(folder: Path) -> Iterator[Reader]:
    """Somebody who is told, at this machine's own address."""
    user = at_home(User(folder))
    with receiving(Receiver(port=HOOK_PORT)) as receiver:
        yield Reader(user, only={"launch": "^(r-|✔|  spent|  why)"})
        page = folder / "received.html"
        page.write_text(_received(receiver), encoding="utf-8")
        picture(page, "notify.png", 1000, 60 + 62 * (len(receiver.notices) + 1))


@contextlib.contextmanager
def watch(folder: Path) -> Iterator[Reader]:
    """A run of the real trainer that has ended, for boards; W&B has no account here."""
    user = _trained(folder)
    user.environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}

    def looked_at() -> None:
        chosen = quote("train/(loss|throughput)")
        address = f"http://127.0.0.1:{BOARD_PORT}/?tagFilter={chosen}#timeseries"
        with chromium(folder / "chromium") as browser:
            page = browser.page(1440, 620)
            until(lambda: _is_open(BOARD_PORT), what="TensorBoard listens")
            page.open(address)
            page.until("document.body.innerText.includes('throughput')")
            page.until("document.querySelectorAll('line-chart').length > 1")
            time.sleep(3.0)  # its lines are moved into their place
            page.picture(GUIDE / "pictures" / "tensorboard.png")
        os.kill(_child_with("tensorboard"), signal.SIGINT)

    yield Reader(user, during={"until Ctrl-C": looked_at})


@contextlib.contextmanager
def api(folder: Path) -> Iterator[Reader]:
    """The page's own programs, and the real trainer."""
    user = at_home(User(folder, trainer=real_trainer(folder / "trainer")))
    user.environment["OMP_NUM_THREADS"] = "1"
    (folder / "text.txt").write_text(_prose())
    _write_programs(folder)
    yield Reader(user)
    picture(folder / "curve.html", "curve.png", 1000, 420)


@contextlib.contextmanager
def api_of_commands(folder: Path) -> Iterator[Reader]:
    """The page's own programs, and a folder with a stranger's script that needs torch."""
    user = at_home(User(folder, trainer=None))
    user.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}"
    (folder / "project").mkdir()
    shutil.copy(GUIDE / "your-own" / "train.py", folder / "project")
    _write_programs(folder)
    yield Reader(user)


def _write_programs(folder: Path) -> None:
    page = (GUIDE / "api.md").read_text()
    for name, program in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.S):
        (folder / name).write_text(program)


def _trained(folder: Path) -> User:
    user = at_home(User(folder, trainer=real_trainer(folder / "trainer")))
    user.environment["OMP_NUM_THREADS"] = "1"
    (folder / "text.txt").write_text(_prose())
    user.run("budget", "set", "month", "1")
    often = ("--set", "eval_every=10", "--set", "save_every=40")
    user.run("launch", "local", "--rate", "3.60", *TINY, *often, "--steps", "200",
             "--budget", "1", "-y", within_s=900)  # fmt: skip
    return user


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _child_with(word: str) -> int:
    """The process of ours whose command has this word."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for pid in listed.read_text().split():
            if word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return int(pid)
    raise LookupError(word)


def picture(page: Path, name: str, width: int, height: int) -> None:
    """What a browser shows of a page's first ``height`` pixels, beside the guides."""
    subprocess.run(
        [
            *_CHROMIUM,
            f"--window-size={width},{height}",
            f"--screenshot={GUIDE / name}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )


def _received(receiver: Receiver) -> str:
    rows = [
        (words(each["kind"]), words(each["title"]), words(each["text"]),
         f"<code>{words(each['id'])}</code>")
        for each in receiver.notices
    ]  # fmt: skip
    table = html_table(("kind", "title", "text", "id"), rows, numbers=3)
    return f"{head_of('What the receiver got')}{table}</body></html>\n"


def _prose() -> str:
    return "".join(page.read_text("utf-8") for page in sorted(GUIDE.glob("*.md")))
