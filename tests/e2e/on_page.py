"""``trmcloud ui`` as tests see it: its process, a browser before it, what a click asks and does."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.serving import WITHIN_S, UiServer
from tests.e2e.user import ROOT, User
from tests.standins.browser import Browser, Page, chromium, find_chromium
from trmcloud.core.control.run_state import RunState

AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


class Serving(UiServer):
    """``trmcloud ui``, and what a browser asks of it."""

    def of(self, run_id: str) -> str:
        return f"http://127.0.0.1:{self.port}/run/{run_id}#token={self.token}"

    def ask(
        self, path: str, wish: object = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """(status, what it told); the headers in place of a browser's, bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        told = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if wish is not None:
            told["Content-Type"] = "application/json"
        told |= {name.replace("_", "-"): text for name, text in headers.items()}
        body = wish if wish is None or isinstance(wish, bytes) else json.dumps(wish)
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not find_chromium():
        pytest.skip("there is no chromium here: apt install chromium")
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
        each.kill()


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


def findings_of(page: Page, *, of_any_impact: bool = True) -> list[str]:
    """Return axe-core's findings; without ``of_any_impact`` only serious and critical ones. The
    test is skipped where axe-core is not installed."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make axe")
    page.run(AXE.read_text(encoding="utf-8") + "\n;undefined")
    found = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then(told => told.violations"
        f".filter(each => {json.dumps(of_any_impact)} ||"
        " ['serious', 'critical'].includes(each.impact))"
        ".map(each => `${each.id}: ${each.nodes.map(node => node.html).join(' | ')}`))"
    )
    return list(found)
