"""``trmcloud ui`` over a run on a rented pod that no command drives: on the stand-in, in an
isolated pod, asked through the pinned connection that every command uses."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e.on_page import Serving, agreed, browser, done, opened, serve
from tests.e2e.rented import LAUNCH
from tests.e2e.user import User, until
from tests.standins.browser import Browser
from tests.standins.runpod.standin import StandIn
from trmcloud.core.errors import Outcome

__all__ = ["browser", "serve"]


def test_a_pod_that_nobody_drives_is_watched_saved_and_landed(
    lodger: User, runpod: StandIn, serve: Callable[..., Serving], browser: Browser
) -> None:
    long = ("--phase", "fast", "--steps", "20000", "-d", "--accept-loss")
    lodger.run(*LAUNCH, *long, within_s=400)
    run = lodger.only_run()
    page = opened(browser, serve(lodger), run)
    page.until("document.body.innerText.includes('agent armed')", 200)
    shown = int(page.run("document.documentElement.dataset.beat || '0'").partition(".")[0])
    page.until(f"Number(document.documentElement.dataset.beat) > {shown}", 200)

    agreed(page, "save")
    assert "has saved" in done(page, "save", 300)
    told = agreed(page, "land")
    assert "of the run's $2.00" in told
    assert "soft stop requested" in done(page, "land", 100)
    until(lambda: lodger.only_run().result is not None, within_s=300, what="it has landed")
    until(lambda: runpod.control.live() == [], within_s=300, what="its pod is gone")
    assert lodger.only_run().result == Outcome.STOPPED.value
    assert page.errors == []
