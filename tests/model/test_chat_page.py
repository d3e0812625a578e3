"""The chat page at `/`, in a real browser over a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from model.serving.openai import NO_TEMPLATE
from model.training.load import LoadedModel
from tests.e2e.on_page import findings_of
from tests.model.test_serving import Client, serving
from tests.standins.browser import Browser, Page, chromium, find_chromium
from tests.standins.loopback import until

IDLE = "!document.getElementById('send').disabled"
LAST = "[...document.querySelectorAll('.turn.assistant p')].filter(it => !it.className).at(-1)"


@pytest.fixture(scope="module")
def client(loaded: LoadedModel) -> Iterator[Client]:
    with serving(loaded) as made:
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not find_chromium():
        pytest.skip("there is no chromium here: apt install chromium")
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def opened(browser: Browser, client: Client, **size: Any) -> Page:
    page = browser.page(**size)
    page.open(f"http://127.0.0.1:{client.port}/")
    page.until("document.documentElement.dataset.ready")
    return page


def set_to(page: Page, field: str, value: str) -> None:
    page.run(f"document.getElementById('{field}').value = '{value}'")


def test_a_conversation_by_the_keyboard_alone(browser: Browser, client: Client) -> None:
    page = opened(browser, client)
    assert "test · fast step 40" in page.text()
    set_to(page, "seed", "3")
    set_to(page, "max_tokens", "8")
    assert page.focused() == "text"
    page.type("the dog")
    page.press("Enter")
    page.until(f"{IDLE} && {LAST}.textContent")
    assert page.focused() == "text", "the next message can be typed at once"
    first = str(page.run(f"{LAST}.textContent"))
    plain = {"prompt": "the dog", "seed": 3, "temperature": 0.8, "max_tokens": 8}
    _, _, body = client.ask("POST", "/v1/completions", {"model": "test", **plain})
    assert json.loads(body)["choices"][0]["text"] == first
    assert page.run("document.getElementById('warning').innerText") == NO_TEMPLATE
    for _ in range(3):  # beyond the 15 tokens that there is room for
        page.type("a cat sees")
        page.press("Enter")
        page.until(f"{IDLE} && {LAST}.textContent")
    assert "messages did not fit and were left out" in page.text()
    assert page.run("document.getElementById('trouble').hidden")
    page.press("Tab", 2)
    assert page.focused() == "fresh"
    page.press("Enter")
    page.until("!document.querySelector('.turn')")
    assert all("status of 400" in each for each in page.errors), "of what did not fit alone"


def test_an_answer_is_stopped_and_its_place_given_to_others(
    browser: Browser, loaded: LoadedModel, slow: threading.Event
) -> None:
    with serving(loaded, batch=1) as client:
        page = opened(browser, client)
        set_to(page, "max_tokens", "2048")
        page.type("a")
        page.press("Enter")
        page.until(f"{LAST} && {LAST}.textContent.length > 3")
        page.press("Escape")
        page.until(IDLE)
        assert "Stopped." in page.text()
        until(lambda: client.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})
        slow.set()
        page.type("b")
        page.press("Enter")
        page.click("#fresh")
        page.until(f"{IDLE} && !document.querySelector('.turn')")
        assert page.errors == []


def test_what_is_refused_is_shown_and_the_text_given_back(browser: Browser, client: Client) -> None:
    page = opened(browser, client)
    page.type("the dog " * 30)
    page.press("Enter")
    page.until(f"{IDLE} && !document.getElementById('trouble').hidden")
    assert "the model takes at most 15" in page.run("document.getElementById('trouble').innerText")
    assert str(page.run("document.getElementById('text').value")).startswith("the dog")
    assert page.run("document.querySelectorAll('.turn').length") == 0


def test_text_of_a_model_is_never_markup(browser: Browser, client: Client) -> None:
    page = opened(browser, client)
    page.type("<img src=x>")
    page.press("Enter")
    page.until(IDLE)
    assert page.run("document.images.length") == 0


def test_beyond_loopback_it_asks_for_the_token(browser: Browser, loaded: LoadedModel) -> None:
    with serving(loaded, token="s3cret") as client:
        page = browser.page()
        page.open(f"http://127.0.0.1:{client.port}/")
        page.until("!document.getElementById('access').hidden")
        assert page.focused() == "token"
        page.type("wrong")
        page.press("Enter")
        page.until("!document.getElementById('trouble').hidden")
        set_to(page, "token", "")
        page.type("s3cret")
        page.press("Enter")
        page.until("document.documentElement.dataset.ready")
        page.type("a")
        page.press("Enter")
        page.until(f"{IDLE} && {LAST} && {LAST}.textContent")


@pytest.mark.parametrize(("width", "dark"), [(360, False), (768, True), (1280, False)])
def test_axe_finds_nothing(browser: Browser, client: Client, width: int, dark: bool) -> None:
    page = opened(browser, client, width=width, height=800, dark=dark)
    page.type("the dog " * 30)
    page.press("Enter")
    page.until("!document.getElementById('trouble').hidden")
    set_to(page, "text", "a")
    page.run("document.getElementById('text').focus()")
    page.press("Enter")
    page.until(f"{IDLE} && {LAST} && {LAST}.textContent")
    covered = page.run(
        "document.querySelector('.turn:last-child').getBoundingClientRect().bottom"
        " - document.querySelector('footer').getBoundingClientRect().top"
    )
    assert covered <= 0, "the end of an answer is seen"
    page.run("document.querySelector('details').open = true")
    assert page.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert findings_of(page, of_any_impact=False) == []


def test_it_needs_nothing_from_elsewhere(client: Client) -> None:
    status, headers, body = client.ask("GET", "/")
    assert status == 200
    assert b"://" not in body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert len(body) < 20_000
