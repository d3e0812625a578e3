"""``trmcloud ui``: its pages in a real browser (five tests), and what its server answers."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.on_page import AXE, Serving, agreed, browser, done, findings_of, opened, serve
from tests.e2e.serving import WITHIN_S
from tests.e2e.user import LAUNCH, User, until
from tests.standins.browser import Browser, BrowserError, Page
from tests.unit.cli import told_home
from trmcloud.api import Home
from trmcloud.core.errors import Outcome

__all__ = ["browser", "serve"]

pytest.importorskip("starlette", reason="the extra `ui`")
pytest.importorskip("uvicorn", reason="the extra `ui`")

pytestmark = pytest.mark.timeout(900)

PICTURES = os.environ.get("TRMCLOUD_PICTURES", "")
"""A folder for pictures of the page, where they are to be kept: docs/guide/pictures."""
HOSTILE = '<img src=x onerror="document.title=1">'
MOST_BYTES = 150_000
RUNS = f"{told_home.LIVE_RUN},{told_home.RUNS[Outcome.FINISHED]}"
WIDTHS = (360, 1280, 768)
VIEWS = ("/", f"/run/{told_home.RUNS[Outcome.LANDED]}", "/spend", "/spend?by=person",
         f"/compare?runs={RUNS}")  # fmt: skip


@pytest.fixture
def trained(user: User) -> User:
    """A user with a run that trains, and gets no further than its 40th step."""
    user.hold()
    rarely = ("--set", "save_every=20", "--set", "eval_every=10", "--set", "log_every=2")
    user.run(*LAUNCH, *rarely, "--steps", "4000", "--budget", "1", "-d")
    beat = user.home / "runs" / user.only_run().run_id / "fast" / "heartbeat.json"
    until(lambda: beat.exists() and json.loads(beat.read_text())["step"] >= 40, what="step 40")
    return user


@pytest.fixture
def reader(new_user: Callable[[str], User]) -> User:
    """A user with a run of every end, one of them live."""
    made = new_user("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRMCLOUD_HOME", str(made.home))
        told_home.write(made.home)
    return made


def view(serving: Serving, path: str) -> str:
    return f"http://127.0.0.1:{serving.port}{path}#token={serving.token}"


def shown(page: Page, serving: Serving, path: str) -> Page:
    page.open(view(serving, path))
    ready = (
        "document.querySelector('.choose')"
        if path == "/"
        else ("document.documentElement.dataset.drawn")
    )
    page.until(ready)
    return page


def scroll_to(page: Page, part: str) -> None:
    """Scroll until it is seen: what it shows is asked for then."""
    page.run(f"document.querySelector({json.dumps(part)}).scrollIntoView()")


def chosen(page: Page, which: str, value: str) -> None:
    page.run(
        f"(() => {{ const it = document.getElementById({json.dumps(which)});"
        f" it.value = {json.dumps(value)}; it.dispatchEvent(new Event('change')); }})()"
    )


# -- in a browser --------------------------------------------------------------------------------


def test_a_run_is_followed_saved_landed_fetched_raised_and_stopped_by_clicks(
    trained: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, run = serve(trained), trained.only_run()
    page = opened(browser, serving, run)
    assert "Supervision steps" in page.text()
    assert page.run("document.querySelectorAll('.chart:not([hidden]) canvas').length") == 4
    _follow_its_log(page, trained.home / "runs" / run.run_id / "fast" / "train.log")
    page.click("#do-raise")
    page.until("!document.getElementById('refused').hidden")
    refused = str(page.run("document.getElementById('refused').innerText"))
    assert "once it has landed" in refused
    assert not page.run("document.getElementById('ask').open"), "no form is opened"

    told = agreed(page, "save")
    assert re.search(r"costs \$0\.\d+ at most, of the run's \$1\.00", told), told
    assert "job done" in done(page, "save")
    page.until("document.body.innerText.includes('fast/step-00000040')")
    page.until("document.body.innerText.includes('training')")

    told = agreed(page, "land")
    assert re.search(r"spends at most \$0\.\d+ more of the run's \$1\.00", told), told
    assert re.search(r"Land it, \$0\.\d+ at most", told), told
    assert "soft stop requested" in done(page, "land")
    page.until("document.querySelector('h1').innerText.includes('stopped')", WITHIN_S)
    run = trained.only_run()
    assert (run.outcome, run.live) == (Outcome.STOPPED, False)

    told = agreed(page, "fetch")
    assert "It costs $0.00" in told
    assert str(trained.folder) in told
    assert "verified: sha256" in done(page, "fetch")
    [fetched] = trained.only_run().fetched
    assert (Path(fetched.path) / "weights.safetensors").exists()
    shown = fetched.path.replace(f"{trained.folder}/", "~/")
    assert page.until(f"document.body.innerText.includes('fetched to {shown}')")

    page.click("#do-raise")
    page.until("document.getElementById('ask-cap').value")
    page.run("document.getElementById('ask-cap').value = ''")
    page.click("#ask-cap")
    page.type("0.000001")
    page.until(
        "document.getElementById('ask-why').innerText.includes('is spent: give a larger budget')"
    )
    assert page.run("document.getElementById('ask-yes').disabled")
    page.run("document.getElementById('ask-cap').select()")
    page.type("2.50")
    page.until("document.getElementById('ask').innerText.includes('whole budget is $2.50 then')")
    page.until("!document.getElementById('ask-yes').disabled")
    page.click("#ask-yes")
    assert "trains again, within $2.50" in done(page, "raise")
    assert trained.only_run().cap.plain() == "2.5"
    page.until("document.querySelector('h1').innerText.includes('training')", WITHIN_S)

    told = agreed(page, "stop")
    assert "Its pod is ended at once, without a save." in told
    assert "pod is being ended" in done(page, "stop")
    until(lambda: not trained.live_pods(), what="its pod is ended")
    page.until("document.querySelector('h1').innerText.includes('stopped')", WITHIN_S)
    assert "stopped at once, without saving" in page.text()
    assert page.errors == []
    assert serving.end() == ""


def _follow_its_log(page: Page, path: Path) -> None:
    """It follows what is written, and holds still while it is read."""
    log = "document.getElementById('log')"
    gap = f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight"
    assert page.run(f"{log}.textContent") == "", "it is asked for once it is seen"
    with path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(100))
    scroll_to(page, "#logs")
    page.until(f"{log}.textContent.includes('line 99')")
    assert page.run(gap) < 24
    with path.open("a") as file:
        file.write("a new line\n10%\r20%\r")
    page.until(f"{log}.textContent.endsWith('a new line\\n20%')")
    assert page.run(gap) < 24, "it stays at its end"
    page.run(f"{log}.scrollTop = 0")
    with path.open("a") as file:
        file.write("30%\rdone\nlate\n")
    page.until(f"{log}.textContent.endsWith('done\\nlate\\n')")
    assert "20%" not in page.run(f"{log}.textContent"), "a progress bar is drawn over itself"
    assert page.run(f"{log}.scrollTop") == 0
    page.run("scrollTo(0, 0)")


def test_the_keyboard_is_enough(
    trained: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, run = serve(trained), trained.only_run()
    page = browser.page()
    page.open(serving.address)
    page.until(f"document.body.innerText.includes('{run.run_id}')")
    to(page, f"a {run.run_id}")
    beat = page.until("document.documentElement.dataset.beat")
    page.until(f"Number(document.documentElement.dataset.beat) > {beat}")
    assert page.focused() == f"a {run.run_id}", "news leave the keyboard where it is"
    page.press("Enter")
    page.until("document.documentElement.dataset.drawn")

    to(page, "do-save")
    page.press("Enter")
    page.until(
        "document.getElementById('ask').open && !document.getElementById('ask-yes').disabled"
    )
    assert page.focused() == "ask-no", "what does nothing is what Enter does"
    page.press("Escape")
    page.until("!document.getElementById('ask').open")
    assert page.focused() == "do-save"
    page.press(" ")
    page.until(
        "document.getElementById('ask').open && !document.getElementById('ask-yes').disabled"
    )
    page.press("Tab")
    assert page.focused() == "ask-yes"
    page.press("Enter")
    assert "has saved" in done(page, "save")

    to(page, "input usd")
    page.press("ArrowUp", 2)
    page.until("document.querySelector('input[name=axis]:checked').value === 'step'")
    page.press("Tab")
    assert page.run("document.activeElement.getAttribute('role')") == "slider"
    shown = str(page.run("document.activeElement.getAttribute('aria-valuetext')"))
    page.press("Home")
    first = str(page.run("document.activeElement.getAttribute('aria-valuetext')"))
    assert first.startswith("step ")
    assert first != shown
    page.press("ArrowRight")
    assert page.run("document.activeElement.getAttribute('aria-valuenow')") == "1"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def to(page: Page, wanted: str) -> None:
    """Tab until it has the keyboard."""
    for _ in range(60):
        page.press("Tab")
        if page.focused() == wanted:
            return
    raise BrowserError(f"the keyboard never comes to {wanted}: {page.focused()}")


def test_every_view_fits_every_screen_in_both_themes(
    reader: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, page = serve(reader), browser.page()
    for path in VIEWS:
        page.resize(WIDTHS[0], 900)
        shown(page, serving, path)
        _open_all(page)
        loaded = "performance.getEntries().reduce((n, each) => n + (each.transferSize || 0), 0)"
        assert page.run(loaded) <= MOST_BYTES, path
        assert page.run("document.querySelectorAll('nav [aria-current]').length") <= 1
        for width in WIDTHS:
            page.resize(width, 900)
            page.until(f"document.documentElement.scrollWidth <= {width}", 10)
        for dark in (False, True):
            page.dark(dark)
            assert not AXE.exists() or findings_of(page) == [], path
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark_ground = page.run(ground)
    page.dark(False)
    assert page.run(ground) != dark_ground
    for wanted in ("light", "dark"):
        page.click("#theme")
        page.until(f"document.documentElement.dataset.theme === '{wanted}'")
    page.run("globalThis.before = true; location.reload()")
    page.until("!globalThis.before && document.documentElement.dataset.theme === 'dark'")
    assert page.errors == []
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(serving.address)
    page.until("document.body && document.body.innerText.includes('trmcloud status')")
    assert "This page needs JavaScript." in page.text()


def _open_all(page: Page) -> None:
    """Open what is folded, and scroll to what is drawn only when it is seen."""
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    if page.run("!!document.querySelector('#launched')"):
        for part in ("#machine", "#logs"):
            scroll_to(page, part)
            page.until(f"!document.querySelector('{part}').innerText.includes('loading')")
        scroll_to(page, "#launched")
        page.until("document.querySelector('#launched table')")


def test_hostile_words_are_text_in_every_view(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    user.environment["TRMCLOUD_PROJECT"] = HOSTILE
    for name in ("first-try", "smaller"):
        user.run(
            *LAUNCH, "--steps", "20", "--budget", "1", "--name", name, "--tag", f"who={HOSTILE}"
        )
    [run] = [each for each in user.ledger().runs.values() if each.name == "first-try"]
    folder = user.home / "runs" / run.run_id / "fast"
    (folder / "metrics.jsonl").open("a").write(
        json.dumps({"kind": "train", "step": HOSTILE, "at": HOSTILE, "loss": HOSTILE}) + "\n"
        + json.dumps({"kind": "eval", "step": 20, "at": 1e308, "val_bpb": 1e308}) + "\n{"
    )  # fmt: skip
    (folder / "train.log").write_text(f"\x1b[31m{HOSTILE}\x1b[0m \u202egnp.exe end\n")
    serving, page = serve(user), browser.page()
    runs = ",".join(user.ledger().runs)
    for path in ("/", f"/run/{run.run_id}", "/spend", "/spend?by=tag:who", f"/compare?runs={runs}"):
        shown(page, serving, path)
        page.until(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert page.run("document.querySelectorAll('img').length") == 0
        assert "trmcloud" in str(page.run("document.title"))
    shown(page, serving, f"/run/{run.run_id}")
    assert page.run("document.title") == f"first-try · {run.run_id} · trmcloud"
    scroll_to(page, "#logs")
    page.until("document.getElementById('log').textContent.includes('exe end')")
    log = str(page.run("document.getElementById('log').textContent"))
    assert log.endswith(f"{HOSTILE} gnp.exe end\n")
    assert page.run("document.querySelectorAll('#log *').length") == 0
    assert page.errors == []
    page.open(view(serving, "/run/r-nobody"))
    page.until("document.body.innerText.includes(\"no run 'r-nobody'\")")
    page.open(view(serving, "/").replace(serving.token, "wrong"))
    page.until("document.body.innerText.includes('wrong token')")
    page.open(view(serving, "/").partition("#")[0])
    page.until("document.body.innerText.includes('lacks its token')")
    assert run.run_id not in page.text()


def test_a_months_figures_are_drawn_and_runs_are_compared(
    reader: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, page = serve(reader), browser.page()
    month = reader.json("report", "--month", "--json")
    status, told = serving.ask("/api/spend")
    assert status == 200
    assert told["total"]["spent"]["usd"] == pytest.approx(
        float(month["budget"]["spent_usd"]), abs=1e-9
    )
    assert told["total"]["reserved"]["usd"] == pytest.approx(
        float(month["budget"]["reserved_usd"]), abs=1e-9
    )
    shown(page, serving, "/spend")
    text = page.text()
    for figure in (told["total"]["spent"], told["total"]["reserved"], told["cap"], told["left"]):
        assert figure["text"] in text
    assert "mean day of the last 7 days" in text
    said = str(page.run("document.querySelector('.chart output').innerText"))
    assert said.startswith(f"Until now, {time.strftime('%b', time.gmtime())}")
    page.run("document.querySelector('.plot').focus()")
    page.press("ArrowRight")
    assert "forecast: $" in str(page.run("document.querySelector('.chart output').innerText"))
    page.press("Home")
    assert "before the first day: $0.00" in str(
        page.run("document.querySelector('.plot').getAttribute('aria-valuetext')")
    )
    chosen(page, "by", "provider")
    page.until("document.querySelector('caption').innerText.includes('by provider')")
    rows = page.run(
        "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(r => r.cells[0].innerText)"
    )
    assert sorted(rows) == sorted(share["name"] for share in month["providers"])
    assert page.run("location.search") == "?by=provider"
    # Each figure leads to its runs, and what is held says until when.
    named = page.run("[...document.querySelectorAll('td details a')].map(it => it.textContent)")
    assert sorted(named) == sorted(run for group in told["groups"] for run in group["run_ids"])
    assert told["held"], "one run is live"
    page.until("document.body.innerText.includes('Reserved now, and until when')")
    page.run("document.querySelector('td details').open = true")
    page.run("document.querySelector('td details a').click()")
    page.until("location.pathname.startsWith('/run/r-')")
    _compare(page, serving)
    assert page.errors == []


def _compare(page: Page, serving: Serving) -> None:
    """Runs are chosen in the list, at most four; the curves of two stand beside each other."""
    shown(page, serving, "/")
    for row in range(1, 6):
        page.run(f"document.querySelector('tr:nth-child({row}) .choose').click()")
    assert page.run("document.querySelectorAll('.choose:checked').length") == 4
    assert "4 of 4 runs chosen" in page.text()
    for row in (3, 4):
        page.click(f"tr:nth-child({row}) .choose")
    page.click("#compare a")
    page.until("document.documentElement.dataset.drawn === 'usd'")
    legend = page.run(
        "[...document.querySelectorAll('.chart ul')[0].children].map(e => e.innerText)"
    )
    assert len(legend) <= 2
    assert "fast: width" not in page.text()
    page.click("#same")
    page.until("document.body.innerText.includes('fast: width')")
    page.run("document.querySelector('input[value=step]').click()")
    page.until("document.documentElement.dataset.drawn === 'step'")


# -- the pictures of the guide -------------------------------------------------------------------


@pytest.mark.skipif(not PICTURES, reason="TRMCLOUD_PICTURES names no folder for them")
def test_pictures(trained: User, serve: Callable[..., Serving], browser: Browser) -> None:
    """What docs/guide/watch.md shows."""
    folder = Path(PICTURES)
    trained.run("budget", "set", "month", "50")
    (trained.folder / "hold").unlink()
    serving, run = serve(trained), trained.only_run()
    page = browser.page(1440, 560, dark=True)
    page.open(serving.address)
    page.until("document.body.innerText.includes('watchdog')")
    page.picture(folder / "runs-dark.png")
    page.dark(False)
    page.resize(1440, 1180)
    page.open(serving.of(run.run_id))
    page.until("document.documentElement.dataset.drawn")
    page.until("/[67][0-9]{2} of 4,000|[1-9],[0-9]{3} of 4,000/.test(document.body.innerText)", 120)
    (trained.folder / "hold").touch()
    page.until("document.body.innerText.includes('No problems found')")
    page.picture(folder / "run-light.png")
    page.resize(1440, 900)
    page.run(
        "[...document.querySelectorAll('h2')].find(h => h.innerText === 'Health').scrollIntoView()"
    )
    for part in ("machine", "logs"):
        page.until(f"!document.getElementById('{part}').innerText.includes('loading')")
    time.sleep(0.3)  # a chart is drawn a frame later
    page.picture(folder / "run-below.png")
    page.resize(1440, 1180)
    page.run("scrollTo(0, 0)")
    page.click("#do-land")
    page.until("!document.getElementById('ask-yes').disabled")
    time.sleep(0.3)  # the backdrop fades in
    page.picture(folder / "land.png")
    page.press("Escape")
    page.dark()
    page.resize(390, 844)
    page.open(serving.of(run.run_id))  # as a telephone does, which was never any wider
    page.until("document.documentElement.dataset.drawn")
    page.until("document.body.innerText.includes('No problems found')")
    page.run("document.querySelector('.charts').scrollIntoView()")
    time.sleep(0.3)
    page.picture(folder / "run-narrow-dark.png")
    assert all(path.stat().st_size > 10_000 for path in folder.glob("*.png"))


# -- what the server answers ---------------------------------------------------------------------


def test_other_sites_and_other_names_are_refused(
    owner: User, serve: Callable[..., Serving]
) -> None:
    serving, run = serve(owner), owner.only_run()
    path, wish = f"/api/runs/{run.run_id}/do", {"verb": "land", "agreed": "1"}
    assert serving.ask("/api/runs", Host="evil.example")[0] == 421
    assert serving.ask("/", Host="evil.example:80")[0] == 421
    assert serving.ask(path, wish, Origin="http://evil.example")[0] == 403
    assert serving.ask(path, wish, Origin="null")[0] == 403
    assert serving.ask(path, wish, Origin="http://127.0.0.1:1")[0] == 403
    assert serving.ask(path, wish, Sec_Fetch_Site="cross-site")[0] == 403
    assert serving.ask(path, wish, Sec_Fetch_Site="same-site")[0] == 403
    assert serving.ask(path, wish, Content_Type="text/plain")[0] == 415
    assert serving.ask(path, wish, token="")[0] == 401
    files = serving.files()
    assert serving.ask(f"{files}/page.css")[0] == 200
    assert serving.ask(f"{files}/../../page/routes.py")[0] == 404
    assert serving.ask(f"{files}/%2e%2e/%2e%2e/main.py")[0] == 404
    assert serving.ask("/static/page.css")[0] == 404, "an older page's"
    assert owner.only_run().stop is None, "and nothing of it was done"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((_own_address(), serving.port), timeout=5).close()


def _own_address() -> str:
    """An address of this machine that is not loopback; 127.0.0.2 where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


def test_what_is_asked_for_in_vain(trained: User, serve: Callable[..., Serving]) -> None:
    serving, run = serve(trained), trained.only_run()
    path = f"/api/runs/{run.run_id}"
    for wish, status in (
        ({"verb": "explode"}, 422),
        ({"verb": "land", "agreed": "x"}, 422),
        ({"verb": "raise", "cap": "2"}, 409),
        ({"verb": "land", "agreed": "-5"}, 422),
        ([1], 422),
        ("x" * 20_000, 413),
    ):
        answered, told = serving.ask(f"{path}/do", wish)
        assert (answered, bool(told["error"])) == (status, True), told
    assert serving.ask("/api/runs/r-nobody/do", {"verb": "land"})[0] == 404
    assert serving.ask("/api/budgets/moon", {"cap": "5"})[0] == 422
    assert serving.ask("/api/budgets/month", {"cap": "5"})[0] == 422
    answered, told = serving.ask(f"{path}/foreseen?verb=raise")
    assert (answered, "once it has landed" in told["refused"]) == (200, True)
    assert trained.only_run().stop is None


def test_a_principals_request_is_answered_on_the_page(
    owner: User, serve: Callable[..., Serving]
) -> None:
    Home(owner.home).give_grant("agent", "2")
    agent = Home(owner.home, principal="agent")
    first, second = agent.ask_approval("more", more="1"), agent.ask_approval(per_run="3", more="2")
    serving = serve(owner)
    listed = serving.ask("/api/runs")[1]["approvals"]
    assert [(each["id"], each["wish"]) for each in listed] == [
        (first.id, "$1.00 more"),
        (second.id, "$2.00 more, $3.00 per run"),
    ]
    assert serving.ask(f"/api/approvals/{first.id}", {"answer": "maybe"})[0] == 422
    assert serving.ask("/api/approvals/a-none", {"answer": "approve"})[0] == 404
    answered, told = serving.ask(f"/api/approvals/{first.id}", {"answer": "approve"})
    assert (answered, told["state"]) == (200, "approved")
    assert serving.ask(f"/api/approvals/{second.id}", {"answer": "deny"})[1]["state"] == "denied"
    assert serving.ask(f"/api/approvals/{second.id}", {"answer": "approve"})[0] == 409
    assert str(agent.grant().total) == "$3.00"
    assert serving.ask("/api/runs")[1]["approvals"] == []


def test_fewer_dollars_than_it_costs_by_now_are_no_agreement(
    trained: User, serve: Callable[..., Serving]
) -> None:
    serving, run = serve(trained), trained.only_run()
    trained.stop("-d")
    until(lambda: not trained.live_pods(), what="its pod is ended")
    until(lambda: "stopped" in trained.run("status", run.run_id), what="it has ended")
    answered, told = serving.ask(
        f"/api/runs/{run.run_id}/do", {"verb": "raise", "cap": "5", "agreed": "0.10"}
    )
    assert answered == 409
    assert "$0.10 was agreed to" in told["error"]
    assert trained.only_run().cap.plain() == "1"


def test_a_port_that_is_taken(owner: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        err = owner.fails("ui", "--port", str(port), code=2)
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "--port" in err


def test_what_is_asked_for_below_the_curves_is_guarded(
    owner: User, serve: Callable[..., Serving]
) -> None:
    serving, run = serve(owner), owner.only_run()
    log = owner.home / "runs" / run.run_id / "fast" / "train.log"
    log.write_text("a secret\n")
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
    log.unlink()
    log.symlink_to(owner.folder / "outside")
    assert serving.ask(path)[1]["logs"] == []
    assert serving.ask(f"{path}?phase=fast")[0] == 404
