"""``trmcloud ui`` in a real browser: every button, both themes, narrow and wide, the keyboard
alone; and what is wrong in the address, the run, the ledger, or another tab."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving, agreed, browser, done, findings_of, opened, serve
from tests.e2e.serving import WITHIN_S
from tests.e2e.user import LAUNCH, User, until
from tests.standins.browser import Browser, BrowserError, Page
from trmcloud.api import Home
from trmcloud.core.errors import Outcome

__all__ = ["browser", "serve"]

pytest.importorskip("starlette", reason="the extra `ui`")
pytest.importorskip("uvicorn", reason="the extra `ui`")

pytestmark = pytest.mark.timeout(900)

PICTURES = os.environ.get("TRMCLOUD_PICTURES", "")
"""A folder for pictures of the page, where they are to be kept: docs/guide/pictures."""
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def trained(user: User) -> User:
    """A user with a run that trains, and gets no further than its 40th step."""
    user.hold()
    rarely = ("--set", "save_every=20", "--set", "eval_every=10", "--set", "log_every=2")
    user.run(*LAUNCH, *rarely, "--steps", "4000", "--budget", "1", "-d")
    beat = user.home / "runs" / user.only_run().run_id / "fast" / "heartbeat.json"
    until(lambda: beat.exists() and json.loads(beat.read_text())["step"] >= 40, what="step 40")
    return user


# -- the whole of it -----------------------------------------------------------------------------


def test_a_run_is_saved_landed_fetched_raised_and_stopped_by_clicks(
    trained: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, run = serve(trained), trained.only_run()
    page = opened(browser, serving, run)
    assert "Supervision steps" in page.text()
    assert page.run("document.querySelectorAll('.chart:not([hidden]) canvas').length") == 4

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


def test_what_trains_is_seen_to(
    trained: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    """Heartbeats, new points, and the end, without a click or a reload."""
    serving, run = serve(trained), trained.only_run()
    page, table = opened(browser, serving, run), browser.page()
    table.open(serving.address)
    table.until(f"document.querySelector('tr[data-run=\"{run.run_id}\"] progress')")
    table.until("document.body.innerText.includes('watchdog')")
    before = page.run("document.documentElement.dataset.points || '0'")
    (trained.folder / "hold").unlink()
    page.until(f"Number(document.documentElement.dataset.points) > {before}")
    page.until("/step 1,[0-9]{3}|1,[0-9]{3} of 4,000/.test(document.body.innerText)", WITHIN_S)
    trained.stop("-d")
    for each in (page, table):
        each.until("document.body.innerText.includes('stopped')", WITHIN_S)
        assert each.errors == []


# -- everybody, everywhere -----------------------------------------------------------------------

LOOKS = [
    pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
    for width in (360, 768, 1280)
    for dark in (False, True)
]


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_everybody_can_use_it(
    ended_home: Path, new_user: Callable[[str], User], serve: Callable[..., Serving],
    browser: Browser, width: int, dark: bool,
) -> None:  # fmt: skip
    user = new_user("reader")
    shutil.copytree(ended_home, user.home)
    user.run("budget", "set", "month", "50")
    serving, run = serve(user), user.only_run()
    page = browser.page(width, 900, dark=dark)
    for address in (serving.address, serving.of(run.run_id)):
        page.open(address)
        page.until("document.querySelector('h1') && document.querySelector('table')")
        if "/run/" in address:
            page.until("document.documentElement.dataset.drawn")
            page.until("document.body.innerText.includes('No problems found')")
        assert page.run("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        assert findings_of(page) == []
    page.click("#do-fetch")
    page.until("!document.getElementById('ask-yes').disabled")
    assert findings_of(page) == []
    assert page.run("document.getElementById('ask').getBoundingClientRect().right") <= width
    assert page.errors == []


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


def test_the_theme_is_chosen_and_kept(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    page = opened(browser, serve(owner), owner.only_run())
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.run(ground)
    for wanted in ("light", "dark"):
        page.click("#theme")
        page.until(f"document.documentElement.dataset.theme === '{wanted}'")
    assert page.run(ground) != light
    page.run("globalThis.before = true; location.reload()")
    page.until("!globalThis.before && document.documentElement.dataset.theme === 'dark'")
    page.until("document.readyState === 'complete'")
    page.click("#theme")
    page.until("!document.documentElement.dataset.theme")


# -- bad input -----------------------------------------------------------------------------------


def test_who_lacks_the_token_sees_nothing(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, run = serve(owner), owner.only_run()
    for token in ("wrong", "", serving.token[:-1], f"{serving.token}x", "ä"):
        status, told = serving.ask("/api/runs", token=token)
        assert (status, set(told)) == (401, {"error"})
    page = browser.page()
    page.open(serving.of(run.run_id).replace(serving.token, "wrong"))
    page.until("document.body.innerText.includes('wrong token')")
    assert run.run_id not in page.text().replace(f"/run/{run.run_id}", "")
    page.open(serving.of(run.run_id).partition("#")[0])
    page.until("document.body.innerText.includes('lacks its token')")


def test_other_sites_and_other_names_are_refused(
    trained: User, serve: Callable[..., Serving]
) -> None:
    serving, run = serve(trained), trained.only_run()
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
    assert trained.only_run().stop is None, "and nothing of it was done"
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
    trained: User, serve: Callable[..., Serving]
) -> None:
    owner = Home(trained.home)
    owner.give_grant("agent", "2")
    agent = Home(trained.home, principal="agent")
    first, second = agent.ask_approval("more", more="1"), agent.ask_approval(per_run="3", more="2")
    serving = serve(trained)
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


def test_a_run_that_is_gone(owner: User, serve: Callable[..., Serving], browser: Browser) -> None:
    serving = serve(owner)
    page = browser.page()
    page.open(serving.of("r-nobody"))
    page.until("document.body.innerText.includes(\"no run 'r-nobody'\")")
    page.click("main a")
    page.until("document.body.innerText.includes('project default')")
    assert owner.fails("ui", "r-nobody", code=3).startswith("error: no run 'r-nobody'")


def test_only_the_ledger_is_left_of_a_run(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    run = owner.only_run()
    shutil.rmtree(owner.home / "runs" / run.run_id)
    page = opened(browser, serve(owner), run)
    text = page.text()
    assert "from the ledger: the metrics themselves are not here" in text
    assert "fast: finished at step 40" in text
    assert page.errors == []


def test_a_hostile_name_is_text(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    user.environment["TRMCLOUD_PROJECT"] = HOSTILE
    user.run(*LAUNCH, "--steps", "20", "--budget", "1")
    run = user.only_run()
    (user.home / "runs" / run.run_id / "fast" / "metrics.jsonl").open("a").write(
        json.dumps({"kind": "train", "step": HOSTILE, "at": HOSTILE, "loss": HOSTILE}) + "\n"
        + json.dumps({"kind": "eval", "step": 20, "at": 1e308, "val_bpb": 1e308}) + "\n{"
    )  # fmt: skip
    serving = serve(user)
    page = opened(browser, serving, run)
    for address in (serving.of(run.run_id), serving.address):
        page.open(address)
        page.until(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert page.run("document.querySelectorAll('img').length") == 0
        assert "trmcloud" in str(page.run("document.title"))
    assert page.errors == []


def test_two_tabs(trained: User, serve: Callable[..., Serving], browser: Browser) -> None:
    serving, run = serve(trained), trained.only_run()
    one, other = opened(browser, serving, run), opened(browser, serving, run)
    for page in (one, other):
        page.click("#do-land")
        page.until("!document.getElementById('ask-yes').disabled")
    one.click("#ask-yes")
    assert "soft stop requested" in done(one, "land")
    other.click("#ask-yes")
    other.until("/already asked|has ended/.test(document.getElementById('ask-why').innerText)")
    wishes = [r for r in ledger_kinds(trained) if r == "StopRequested"]
    assert wishes == ["StopRequested"], "it was told once"


def ledger_kinds(user: User) -> list[str]:
    with sqlite3.connect(user.ledger_path) as connection:
        found = [kind for (kind,) in connection.execute("SELECT kind FROM events ORDER BY seq")]
    connection.close()
    return found


def test_a_ledger_that_is_being_written(
    trained: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, run = serve(trained), trained.only_run()
    page = opened(browser, serving, run)
    holder = sqlite3.connect(trained.ledger_path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        page.until("document.getElementById('trouble').innerText.length > 5", WITHIN_S)
        page.click("#do-land")
        page.until("document.getElementById('ask-why').innerText.length > 5", WITHIN_S)
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    page.until("document.getElementById('trouble').hidden", WITHIN_S)
    page.press("Escape")
    assert "soft stop requested" in (agreed(page, "land"), done(page, "land"))[1]


def test_a_port_that_is_taken(owner: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        err = owner.fails("ui", "--port", str(port), code=2)
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "--port" in err


def test_a_cap_of_the_month_is_raised(
    owner: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    owner.run("budget", "set", "month", "50")
    serving = serve(owner)
    page = browser.page()
    page.open(serving.address)
    page.click("[data-level=month] button")
    page.until("document.getElementById('ask-yes').innerText === 'Raise it by $25.00'")
    page.click("#ask-yes")
    page.until("document.body.innerText.includes('left of $75.00')")
    assert "$75.00" in owner.run("budget", "history")
    assert page.errors == []


# -- the pictures of the guide -------------------------------------------------------------------


def test_pictures(trained: User, serve: Callable[..., Serving], browser: Browser) -> None:
    """What docs/guide/watch.md shows; kept only where a folder for it is named."""
    folder = Path(PICTURES) if PICTURES else trained.folder / "pictures"
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
