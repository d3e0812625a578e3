"""``trmcloud ui`` as tests see it: its process, a browser before it, what a click asks and does."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.user import User
from tests.standins.browser import Browser, Page, chromium
from trmcloud.core.control.run_state import RunState

WITHIN_S = 200.0


class Serving:
    """``trmcloud ui`` as a process group of its own, as a terminal makes one."""

    def __init__(self, user: User, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trmcloud", "ui", *more, "--port", "0"],
            cwd=user.folder, env=user.env(), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/(\S*)#token=(\S+)", self.address)
        assert found is not None, self.address + self.process.communicate(timeout=WITHIN_S)[1]
        self.port, self.token = int(found[1]), found[3]

    def of(self, run_id: str) -> str:
        return f"http://127.0.0.1:{self.port}/run/{run_id}#token={self.token}"

    def ask(
        self, path: str, wish: object = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, what it told); the headers in place of a browser's."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        told = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if wish is not None:
            told["Content-Type"] = "application/json"
        told |= {name.replace("_", "-"): text for name, text in headers.items()}
        body = None if wish is None else json.dumps(wish)
        connection.request("GET" if wish is None else "POST", path, body, told)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def files(self) -> str:
        """Where the page's own files lie: an address that their content gives."""
        found = re.search(rb'"(/static/[0-9a-f]{16})/page\.js"', self.ask("/")[1])
        assert found is not None
        return found[1].decode()

    def end(self) -> str:
        """stderr of a server that was ended as Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)
        out, err = self.process.communicate(timeout=WITHIN_S)
        assert self.process.returncode == 0, out + err
        assert out.endswith("ended\n")
        return err


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def start(user: User, *more: str) -> Serving:
        made.append(Serving(user, *more))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.communicate(timeout=WITHIN_S)


def opened(browser: Browser, serving: Serving, run: RunState, **size: Any) -> Page:
    page = browser.page(**size)
    page.open(serving.of(run.run_id))
    page.until("document.documentElement.dataset.drawn")
    return page


def agreed(page: Page, verb: str) -> str:
    """What the question said that came before a click on its button, which is then agreed to."""
    page.click(f"#do-{verb}")
    page.until(
        "document.getElementById('ask').open && !document.getElementById('ask-yes').disabled"
    )
    told = str(page.run("document.getElementById('ask').innerText"))
    page.click("#ask-yes")
    page.until("!document.getElementById('ask').open")
    return told


def done(page: Page, verb: str, within_s: float = WITHIN_S) -> str:
    """What came of a click."""
    told = page.until(
        "(() => { const all = [...document.querySelectorAll('#jobs .job')]"
        f".filter(job => job.dataset.verb === '{verb}' && !job.classList.contains('working'));"
        " const last = all.at(-1); return last && last.className + ': ' + last.innerText; })()",
        within_s,
    )
    return str(told)
