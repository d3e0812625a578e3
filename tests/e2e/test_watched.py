"""The whole of it, by somebody who never used it: a run watched in a browser, saved and landed by a
click, told by webhook, and held against its receipt in another home."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving, agreed, browser, done, opened, serve
from tests.e2e.user import LAUNCH, User, until
from tests.standins.browser import Browser
from tests.standins.receiver import LOSES, Receiver
from trmcloud.core.contract.notices import headers_of
from trmcloud.core.errors import Outcome

pytest.importorskip("starlette", reason="the extra `ui`")

__all__ = ["browser", "serve"]


def test_it_is_watched_saved_landed_told_and_verified_elsewhere(
    user: User, new_user: Callable[[str], User], receiver: Receiver,
    serve: Callable[..., Serving], browser: Browser,
) -> None:  # fmt: skip
    added = user.run("notify", "add", "webhook", f"{receiver.url}/hook")
    (secret,) = re.findall(r"whsec_\S+", added)
    receiver.answers = [LOSES]
    user.hold()
    rarely = ("--set", "save_every=20", "--set", "eval_every=10", "--set", "log_every=2")
    user.run(*LAUNCH, *rarely, "--steps", "4000", "--budget", "1", "-d")
    run = user.only_run()

    page = opened(browser, serve(user), run)
    page.until("document.body.innerText.includes('of 4,000')")
    page.until("/step 40|40 of 4,000/.test(document.body.innerText)")
    agreed(page, "save")
    assert "has saved" in done(page, "save")
    agreed(page, "land")
    assert "was told to land" in done(page, "land")
    page.until("document.querySelector('h1').innerText.includes('stopped')", 200)
    assert page.errors == []
    assert user.only_run().outcome is Outcome.STOPPED

    until(lambda: any(each["kind"] == "ended" for each in receiver.notices), what="word of its end")
    kinds = [each["kind"] for each in receiver.notices]
    assert kinds.count("ended") == kinds.count("started") == 1
    end = next(each for each in receiver.notices if each["kind"] == "ended")
    assert (end["run"], end["facts"]["outcome"]) == (run.run_id, "stopped")
    for _, headers, body in receiver.got:
        at = float(headers["webhook-timestamp"])
        expected = headers_of(headers["webhook-id"], body.decode(), secret, at)
        assert headers["webhook-signature"] == expected["webhook-signature"]

    user.run("report", run.run_id, "--html", "receipt.html")
    user.run("fetch-best", run.run_id, "--into", "kept")
    other = new_user("other")
    for name in ("receipt.html", "kept"):
        whence, where = user.folder / name, other.folder / name
        (shutil.copytree if whence.is_dir() else shutil.copy)(whence, where)
    told = other.run("verify", "receipt.html", "--against", "kept")
    assert "it matches itself alone: unsigned by a known key" in told
    assert "✔ checkpoint" in told
    assert not (other.home / "ledger.db").exists(), "a look makes no home"

    receipt = Path(other.folder / "receipt.html")
    text = receipt.read_text()
    receipt.write_text(text.replace(run.run_id, run.run_id[:-1] + "_", 1))
    assert "it does NOT match" in other.run("verify", "receipt.html", code=18)
