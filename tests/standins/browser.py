"""A real Chromium without a window, steered over its own debugging pipe (DevTools protocol 1.3).

Nothing is installed for it but the browser itself: commands go in by descriptor 3 and come out by
descriptor 4, each a JSON text that ends with a NUL.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ANSWER_S = 120.0
_ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--metrics-recording-only", "--mute-audio", "--no-proxy-server",
    "--force-color-profile=srgb", "--disable-features=Translate,MediaRouter",
)  # fmt: skip
_KEYS: Mapping[str, tuple[str, int]] = {
    "Tab": ("\t", 9), "Enter": ("\r", 13), "Escape": ("", 27), " ": (" ", 32),
    "ArrowLeft": ("", 37), "ArrowUp": ("", 38), "ArrowRight": ("", 39), "ArrowDown": ("", 40),
    "Home": ("", 36), "End": ("", 35), "PageUp": ("", 33), "PageDown": ("", 34),
}  # fmt: skip


def find_chromium() -> str:
    """Its path; empty where this machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class BrowserError(AssertionError):
    """The browser, or the page in it, refused."""


class Browser:
    """One process, with a profile of its own below ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        profile = f"--user-data-dir={folder / 'profile'}"
        command = [find_chromium(), *_ARGUMENTS, profile, "about:blank"]
        self._log = open(folder / "chromium.log", "wb")  # noqa: SIM115  # closed with it
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "chromium", *command],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, env={**os.environ, "HOME": str(folder)}, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def page(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> Page:
        """A new tab."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            made.send(f"{domain}.enable")
        made.resize(width, height)
        made.dark(dark)
        return made

    def send(self, method: str, *, session: str = "", **params: Any) -> Any:
        number = next(self._numbers)
        answers = self._answers[number] = queue.Queue(1)
        asked = {"id": number, "method": method, "params": params}
        if session:
            asked["sessionId"] = session
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        try:
            answer = answers.get(timeout=_ANSWER_S)
        except queue.Empty:
            raise BrowserError(f"no answer to {method} within {_ANSWER_S:.0f} s") from None
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def close(self) -> None:
        with suppress(BrowserError, OSError):
            self.send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait(10)
        os.close(self._to)
        self._thread.join(10)
        os.close(self._from)
        self._log.close()

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._from, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                self._take(json.loads(text))

    def _take(self, said: Mapping[str, Any]) -> None:
        if "id" in said:
            self._answers.pop(said["id"]).put(said)
        elif (page := self._pages.get(said.get("sessionId", ""))) is not None:
            page.take(said["method"], said["params"])


class Page:
    """One tab. ``errors`` is what went wrong in it: exceptions, refusals by the content security
    policy, failed requests."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, session=self._session, **params)

    def take(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            told = params["exceptionDetails"]
            self.errors.append(told.get("exception", {}).get("description") or told["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}".rstrip())

    def resize(self, width: int, height: int) -> None:
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip

    def dark(self, on: bool = True) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Away from what is shown and to another: an address that differs by its fragment alone
        would load nothing."""
        self.send("Page.navigate", url="about:blank")
        self.until("document.readyState === 'complete'")
        told = self.send("Page.navigate", url=address)
        if told.get("errorText"):
            raise BrowserError(f"{address}: {told['errorText']}")

    def run(self, script: str) -> Any:
        """What an expression comes to, promises awaited."""
        told = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            details = told["exceptionDetails"]
            what = details.get("exception", {}).get("description") or details["text"]
            raise BrowserError(f"{script[:200]}: {what}")
        return told["result"].get("value")

    def until(self, script: str, within_s: float = 150.0) -> Any:
        """Poll until an expression is true; what it came to."""
        deadline = time.monotonic() + within_s
        while True:
            with suppress(BrowserError):  # between two documents there is nothing to ask
                if found := self.run(f"(it => it instanceof Node || it)({script})"):
                    return found
            if time.monotonic() > deadline:
                shown = self.run("document.body ? document.body.innerText : ''")
                raise BrowserError(f"not within {within_s} s: {script}\n{shown}\n{self.errors}")
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def click(self, selector: str) -> None:
        """As a mouse does, in the middle of what is found."""
        spot = self.until(
            f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            if (!found || found.disabled) return null;
            found.scrollIntoView({{block: "center"}});
            const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=spot[0], y=spot[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, key: str, times: int = 1, *, shift: bool = False) -> None:
        text, code = _KEYS.get(key, (key, ord(key[0].upper())))
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        for _ in range(times):
            down = {"text": text} if text and text != "\t" else {}
            kind = "keyDown" if down else "rawKeyDown"
            self.send("Input.dispatchKeyEvent", type=kind, **about, **down)
            self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def focused(self) -> str:
        """What has the keyboard: its id, else its tag with its text."""
        return str(
            self.run(
                "(() => { const it = document.activeElement; return it.id ||"
                " `${it.tagName.toLowerCase()} ${(it.textContent || it.value || '').trim()}`"
                "; })()"
            )
        )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """What is shown, or all of the document, as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        made = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
