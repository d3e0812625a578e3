"""The page of one run in a real browser: its log, its machine, its configuration, its buttons; and
that it fits every screen."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving, agreed, browser, done, findings_of, opened, serve
from tests.e2e.serving import WITHIN_S
from tests.e2e.user import LAUNCH, User, until
from tests.standins.browser import Browser, Page
from trmcloud.app.machine_history import EVERY_S, MachineSample, read_samples, samples_path
from trmcloud.app.run_logs import END_BYTES
from trmcloud.core.contract.pod_contract import GpuCounters, GpuWindow
from trmcloud.core.control.run_state import RunState

__all__ = ["browser", "serve"]

pytest.importorskip("starlette", reason="the extra `ui`")
pytest.importorskip("uvicorn", reason="the extra `ui`")

pytestmark = pytest.mark.timeout(900)

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
WIDTHS = (360, 768, 1280)
MOST_LOADED_BYTES = 150_000


def live_run(user: User, *more: str) -> RunState:
    """A run that trains, and gets no further than its 40th step."""
    user.hold()
    rarely = ("--set", "save_every=20", "--set", "eval_every=10", "--set", "log_every=2")
    user.run(*LAUNCH, *rarely, "--steps", "4000", "--budget", "1", *more, "-d")
    run = user.only_run()
    beat = user.home / "runs" / run.run_id / "fast" / "heartbeat.json"
    until(lambda: beat.exists() and json.loads(beat.read_text())["step"] >= 40, what="step 40")
    return run


def log_of(user: User, run: RunState, phase: str = "fast") -> Path:
    return user.home / "runs" / run.run_id / phase / "train.log"


def to(page: Page, selector: str) -> None:
    """Scroll until it is seen: what it shows is asked for then."""
    page.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView()")


def logged(page: Page) -> str:
    return str(page.run("document.getElementById('log').textContent"))


# -- the log -------------------------------------------------------------------------------------


def test_the_log_follows_a_live_run_and_holds_still_when_it_is_read(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = live_run(user)
    path = log_of(user, run)
    with path.open("a") as log:
        log.writelines(f"line {number}\n" for number in range(100))
    page = opened(browser, serve(user), run)
    assert logged(page) == "", "it is asked for once it is seen"
    to(page, "#logs")
    page.until("document.getElementById('log').textContent.includes('line 99')")
    gap = "(b => b.scrollHeight - b.scrollTop - b.clientHeight)(document.getElementById('log'))"
    assert page.run(gap) < 24
    with path.open("a") as log:
        log.write("a new line\n10%\r20%\r")
    page.until("document.getElementById('log').textContent.endsWith('a new line\\n20%')")
    assert page.run(gap) < 24, "it stays at its end"
    page.run("document.getElementById('log').scrollTop = 0")
    with path.open("a") as log:
        log.write("30%\rdone\nlate\n")
    page.until("document.getElementById('log').textContent.endsWith('done\\nlate\\n')")
    assert "20%" not in logged(page), "a progress bar is drawn over itself"
    assert page.run("document.getElementById('log').scrollTop") == 0
    user.stop("-d")
    page.until("document.getElementById('logs').innerText.includes('complete')", WITHIN_S)
    assert page.errors == []


def test_a_log_is_bounded_and_its_text_is_text(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = owner.only_run()
    last = f"\x1b[31m{HOSTILE}\x1b[0m \u202egnp.exe end"
    log_of(owner, run).write_text("one of many lines\n" * 500_000 + f"{last}\n")
    page = opened(browser, serve(owner), run)
    to(page, "#logs")
    page.until("document.getElementById('log').textContent.includes('exe end')")
    text = logged(page)
    assert len(text) <= END_BYTES
    assert text.endswith(f"{HOSTILE} gnp.exe end\n")
    assert page.run("document.querySelectorAll('#log *').length") == 0
    assert "trmcloud" in str(page.run("document.title"))
    assert "the end of 9.0 MB" in str(page.run("document.getElementById('logs').innerText"))
    assert page.errors == []


def test_another_phases_log_is_chosen(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = owner.only_run()
    log_of(owner, run).write_text("of fast\n")
    later = log_of(owner, run, "extreme")
    later.parent.mkdir()
    later.write_text("of extreme\n")
    page = opened(browser, serve(owner), run)
    to(page, "#logs")
    page.until("document.getElementById('log').textContent === 'of extreme\\n'")
    page.run(
        "(() => { const pick = document.getElementById('log-phase'); pick.value = 'fast';"
        " pick.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.getElementById('log').textContent === 'of fast\\n'")
    options = "[...document.querySelectorAll('#log-phase option')].map(o => o.value).join()"
    assert page.run(options) == "fast,extreme"
    assert page.errors == []


def test_what_is_asked_for_below_the_curves_is_guarded(
    owner: User, serve: Callable[..., Serving]
) -> None:
    serving, run = serve(owner), owner.only_run()
    log_of(owner, run).write_text("a secret\n")
    (owner.folder / "outside").write_text("outside\n")
    for part in ("log", "machine", "launched"):
        path = f"/api/runs/{run.run_id}/{part}"
        assert serving.ask(path)[0] == 200
        assert serving.ask(path, token="")[0] == 401
        assert serving.ask(path, token="wrong")[0] == 401
        assert serving.ask(path, Host="evil.example")[0] == 421
        assert serving.ask(path, Origin="http://evil.example")[0] == 403
        assert serving.ask(path, Sec_Fetch_Site="cross-site")[0] == 403
        assert serving.ask(path, {"verb": "land"})[0] == 405
        assert serving.ask(f"/api/runs/r-nobody/{part}")[0] == 404
    path = f"/api/runs/{run.run_id}/log"
    for phase in ("..%2F..%2F..", "extreme", "%00", "fast%2F..", "%ff"):
        status, told = serving.ask(f"{path}?phase={phase}")
        assert (status, set(told)) == (404, {"error", "next"}), phase
    for after in ("-1", "x", "9" * 400, "1e3", "%00"):
        status, told = serving.ask(f"{path}?phase=fast&after={after}")
        assert (status, told["text"]) == (200, "a secret\n"), after
    log_of(owner, run).unlink()
    log_of(owner, run).symlink_to(owner.folder / "outside")
    assert serving.ask(path)[1]["logs"] == []
    assert serving.ask(f"{path}?phase=fast")[0] == 404


# -- GPU and memory ------------------------------------------------------------------------------

NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=utilization.gpu,memory.used,memory.total,clocks.sm)
  echo "97, 70000, 81559, 1980"; echo "55, 60000, 81559, 1980" ;;
*) exit 9 ;;
esac
"""
"""It answers to what the agent samples, and to nothing else: this machine has no GPUs."""


def test_gpus_that_a_machine_reports_are_drawn(
    user: User, serve: Callable[..., Serving], browser: Browser, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    user.environment["TRMCLOUD_GPU_SAMPLE_S"] = "1"
    user.environment["PATH"] = f"{tool.parent}:{os.environ['PATH']}"
    run = live_run(user)
    page = opened(browser, serve(user), run)
    to(page, "#machine")
    shown = (
        "[...document.querySelectorAll('#machine .chart:not([hidden]) h3')].map(h => h.innerText)"
    )
    page.until(f"({shown}).length === 3", WITHIN_S)
    assert page.run(shown) == [
        "GPU use, percent of the time", "GPU memory, GB in use", "Process memory, GB resident",
    ]  # fmt: skip
    says = str(page.run("document.querySelector('#machine output').innerText"))
    assert "GPU 0 97.00 · GPU 1 55.00" in says
    assert "Each has 86 GB." in str(page.run("document.getElementById('machine').innerText"))
    sample = read_samples(user.home, run.run_id)[-1]
    assert sample.window is not None
    assert [gpu.busy_percent for gpu in sample.window.gpus] == [97.0, 55.0]
    assert sample.memory_mib is not None
    assert page.errors == []


def test_a_machine_without_gpus_says_so(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = live_run(user)
    page = opened(browser, serve(user), run)
    to(page, "#machine")
    page.until("document.getElementById('machine').innerText.includes('no GPU samples')", WITHIN_S)
    shown = (
        "[...document.querySelectorAll('#machine .chart:not([hidden]) h3')].map(h => h.innerText)"
    )
    assert page.run(shown) == ["Process memory, GB resident"]
    [sample, *_] = read_samples(user.home, run.run_id)
    assert sample.memory_mib is not None
    assert 1 < sample.memory_mib < 1e5
    assert page.errors == []


def test_the_history_of_many_gpus_outlives_the_run(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = owner.only_run()
    path = samples_path(owner.home, run.run_id)
    path.unlink(missing_ok=True)
    for number in range(500):
        gpus = tuple(GpuCounters(10.0 * gpu, 1000.0 * gpu, 8e4, 1500.0) for gpu in range(8))
        at = run.created_at + EVERY_S * number
        with path.open("a") as file:
            file.write(MachineSample(at, GpuWindow(20, 285.0, gpus), None).to_line())
    page = opened(browser, serve(owner), run)
    to(page, "#machine")
    page.until("document.querySelectorAll('#machine .chart:not([hidden])').length === 2")
    legend = "document.querySelector('#machine .chart ul').innerText"
    assert str(page.run(legend)).split() == ["lowest", "mean", "highest"]
    lines = "[...document.querySelectorAll('#machine .chart line')]"
    dashes = f"{lines}.map(each => each.getAttribute('stroke-dasharray'))"
    assert len(set(page.run(dashes))) == 3, "lines differ by more than colour"
    says = "document.querySelector('#machine output').innerText"
    assert "lowest 0.000 · mean 35.00 · highest 70.00" in str(page.run(says))
    assert page.errors == []


# -- configuration, names ------------------------------------------------------------------------


def test_configuration_name_and_tags_are_shown(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    named = ("--name", "small-one", "--tag", "team=core", "--tag", f"note={HOSTILE[:90]}")
    user.run(*LAUNCH, "--steps", "20", "--budget", "1.25", *named)
    serving, run = serve(user), user.only_run()
    page = opened(browser, serving, run)
    assert page.run("document.title") == f"small-one · {run.run_id} · trmcloud"
    assert str(page.run("document.querySelector('h1').innerText")).startswith("small-one r-")
    tags = "[...document.querySelectorAll('.tags li')].map(l => l.textContent)"
    assert sorted(page.run(tags)) == [f"note={HOSTILE[:90]}", "team=core"]
    to(page, "#launched")
    page.until("document.querySelector('#launched table')")
    text = str(page.run("document.getElementById('launched').innerText"))
    assert run.plan.id in text
    assert "trm-tiny, fast" in text
    assert "$1.25 · reserves $" in text
    assert re.search(r"after .+, then saves within .+; killed at ", text), text
    assert "trainer · agent · watchdog" in text
    body = "[...document.querySelectorAll('#launched tbody tr')]"
    cells = f"{body}.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    rows = {key: (value, before) for _, key, value, before in page.run(cells)}
    assert rows["depth"][0] == "1"
    assert rows["width"][0] == "32"
    assert rows["steps"][0] == "20"
    assert all(value != before for value, before in rows.values())
    assert "seed" not in rows, "the recipe's own settings are left out"
    page.open(serving.address)
    page.until("document.querySelector('tr[data-run]')")
    row = str(page.run("document.querySelector('tr[data-run]').innerText"))
    assert "small-one" in row
    assert "team=core" in row
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.errors == []


# -- buttons -------------------------------------------------------------------------------------


def test_what_ends_a_run_looks_unlike_the_rest_and_a_raise_refuses_first(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = live_run(user)
    page = opened(browser, serve(user), run)
    colour = "getComputedStyle(document.getElementById('do-{}')).color"
    assert page.run(colour.format("stop")) != page.run(colour.format("land"))
    assert page.run("document.getElementById('do-stop').innerText") == "Stop now"
    page.click("#do-raise")
    page.until("!document.getElementById('refused').hidden")
    told = str(page.run("document.getElementById('refused').innerText"))
    assert "Raise: " in told
    assert "once it has landed" in told
    assert not page.run("document.getElementById('ask').open"), "no form is opened"
    page.click("#do-stop")
    page.until("!document.getElementById('ask-yes').disabled")
    assert page.run("document.getElementById('refused').hidden")
    assert page.run("document.getElementById('ask-yes').classList.contains('danger')")
    page.press("Escape")
    page.click("#do-land")
    page.until("!document.getElementById('ask-yes').disabled")
    assert not page.run("document.getElementById('ask-yes').classList.contains('danger')")
    page.press("Escape")
    agreed(page, "land")
    assert "soft stop requested" in done(page, "land")
    page.until("document.querySelector('h1').innerText.includes('stopped')", WITHIN_S)
    page.until("document.getElementById('do-stop').getAttribute('aria-disabled') === 'true'")
    text = page.text()
    assert "why: trmcloud stop" not in text
    assert "why: a user requested the stop" in text
    assert "soft stop requested by" in text
    page.click("#do-stop")
    page.until("document.getElementById('refused').innerText.includes('it has ended: stopped')")
    assert page.errors == []


# -- every screen --------------------------------------------------------------------------------


def test_a_live_run_fits_every_screen(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    live_run(
        user, "--name", "a-name-that-is-as-long-as-one-can-be-" + "x" * 20, "--tag", "team=core"
    )
    with log_of(user, user.only_run()).open("a") as log:
        log.write("a line without a space " + "x" * 500 + "\n")
    user.run("budget", "set", "month", "50")
    assert_fits(user, serve(user), browser, "guard")


def test_a_closed_run_fits_every_screen(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    owner.run("budget", "set", "month", "50")
    assert_fits(owner, serve(owner), browser, "No problems found")


def assert_fits(user: User, serving: Serving, browser: Browser, awaited: str) -> None:
    """The list and the run's page: no sideways scroll, and nothing that axe-core objects to."""
    run, page = user.only_run(), browser.page()
    for dark in (False, True):
        for width in WIDTHS:
            page.resize(width, 900)
            page.dark(dark)
            page.open(serving.address)
            page.until("document.querySelector('tr[data-run]')")
            assert_one_screen(page, width)
            page.open(serving.of(run.run_id))
            page.until("document.documentElement.dataset.drawn")
            page.until(f"document.body.innerText.includes({json.dumps(awaited)})", WITHIN_S)
            for part, ready in (
                ("#machine", "!document.querySelector('#machine').innerText.includes('loading')"),
                ("#logs", "!document.querySelector('#logs').innerText.includes('loading')"),
                ("#launched", "document.querySelector('#launched table')"),
            ):
                to(page, part)
                page.until(ready)
            assert_one_screen(page, width)
            assert page.errors == []


def assert_one_screen(page: Page, width: int) -> None:
    wide = (
        "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right"
        f" > {width} + 1 && !e.closest('.skip, .plot, .log')).map(e => e.outerHTML.slice(0, 120))"
    )
    assert page.run("document.documentElement.scrollWidth") <= width, page.run(wide)
    assert findings_of(page) == []


def test_without_javascript_it_says_what_to_type(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    page = browser.page(360, 800)
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(serve(owner).address)
    page.until("document.body && document.body.innerText.includes('trmcloud')")
    text = page.text()
    assert "This page needs JavaScript." in text
    assert "trmcloud status" in text
    assert "connecting" not in text
    assert page.run("document.documentElement.scrollWidth") <= 360


def test_all_that_a_runs_page_loads_is_small(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = owner.only_run()
    log_of(owner, run).write_text("a line of a log that is long\n" * 100_000)
    page = opened(browser, serve(owner), run)
    for part in ("#machine", "#logs", "#launched"):
        to(page, part)
    page.until("document.getElementById('log').textContent.length > 1000")
    page.until("document.querySelector('#launched table')")
    loaded = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"
    assert page.run(loaded) <= MOST_LOADED_BYTES
