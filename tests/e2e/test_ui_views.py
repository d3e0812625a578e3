"""The views of ``trmcloud ui`` beside its runs, in a real browser: a month's spending, runs beside
each other, and a launch from a saved plan."""

from __future__ import annotations

import calendar
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.on_page import Serving, browser, findings_of, serve
from tests.e2e.runpod_user import LAUNCH as RENTED
from tests.e2e.runpod_user import RentedUser
from tests.e2e.serving import WITHIN_S
from tests.e2e.user import LAUNCH, SMALL, User, until
from tests.standins.browser import Browser, Page
from tests.unit.cli import told_home
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.errors import Outcome

__all__ = ["browser", "serve"]

pytest.importorskip("starlette", reason="the extra `ui`")
pytest.importorskip("uvicorn", reason="the extra `ui`")

pytestmark = pytest.mark.timeout(900)

HOSTILE = '<img src=x onerror="document.title=1">'
MOST_BYTES = 150_000
PLAN = ("plan", "--hardware", "local", *SMALL, "--phase", "fast", "--budget", "1")


def view(serving: Serving, path: str) -> str:
    return f"http://127.0.0.1:{serving.port}{path}#token={serving.token}"


def shown(page: Page, serving: Serving, path: str) -> Page:
    page.open(view(serving, path))
    page.until("document.documentElement.dataset.drawn")
    return page


def planned(user: User, *more: str) -> str:
    """The id of a plan that was saved."""
    return str(user.json(*PLAN, *more, "--json")["id"])


def ask_for(page: Page, plan: str = "") -> None:
    """Click on a plan's button, wherever a line that appears above moves it."""
    which = f"='{plan}'" if plan else ""
    page.run(f'document.querySelector("[data-plan{which}]").click()')


def has_loaded(page: Page) -> int:
    """Bytes of the page and of all that it has read."""
    return int(
        page.run("performance.getEntries().reduce((n, each) => n + (each.transferSize || 0), 0)")
    )


@pytest.fixture
def reader(new_user: Callable[[str], User]) -> User:
    """A user with a run of every end, one of them live, and two plans."""
    made = new_user("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRMCLOUD_HOME", str(made.home))
        told_home.write(made.home)
    return made


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_everyone_can_use_the_views(
    reader: User, serve: Callable[..., Serving], browser: Browser, width: int, dark: bool
) -> None:
    serving = serve(reader)
    page = browser.page(width, 900, dark=dark)
    runs = f"{told_home.LIVE_RUN},{told_home.RUNS[Outcome.FINISHED]}"
    for path in ("/spend", "/spend?by=person", f"/compare?runs={runs}", "/plans"):
        shown(page, serving, path)
        page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert page.run("document.documentElement.scrollWidth") <= width, path
        assert findings_of(page) == [], path
        assert has_loaded(page) <= MOST_BYTES, path
        assert page.run("document.querySelectorAll('nav [aria-current]').length") <= 1
    plans = page.run("[...document.querySelectorAll('[data-plan]')].map(it => it.dataset.plan)")
    assert len(plans) == 2, "one that can be launched, and one that is refused"
    for plan in plans:
        ask_for(page, plan)
        page.until("(document.querySelector('.printed')?.innerText.length || 0) > 99")
        page.until("document.querySelector('#launch-yes:enabled, #launch .why:not([hidden])')")
        assert findings_of(page) == []
        assert page.run("document.getElementById('launch').getBoundingClientRect().right") <= width
        assert page.run("document.documentElement.scrollWidth") <= width
        page.press("Escape")
        page.until("!document.getElementById('launch')")
        assert page.run("document.activeElement.dataset.plan") == plan
    page.open(serving.address)
    page.until("document.querySelector('.choose')")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert has_loaded(page) <= MOST_BYTES
    assert findings_of(page) == []
    assert page.errors == []


def test_hostile_names_are_text_in_every_view(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    user.environment["TRMCLOUD_PROJECT"] = HOSTILE
    for _ in range(2):
        user.run(*LAUNCH, "--steps", "20", "--budget", "1", "--tag", f"who={HOSTILE}")
    planned(user)
    serving, page = serve(user), browser.page()
    runs = ",".join(user.ledger().runs)
    for path in ("/spend", "/spend?by=tag:who", f"/compare?runs={runs}"):
        shown(page, serving, path)
        page.until(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
    shown(page, serving, "/plans")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert "trmcloud" in str(page.run("document.title"))
    assert page.errors == []


def test_an_empty_home(user: User, serve: Callable[..., Serving], browser: Browser) -> None:
    serving, page = serve(user), browser.page()
    shown(page, serving, "/spend")
    assert "Nothing was spent or reserved in it." in page.text()
    shown(page, serving, "/plans")
    assert "trmcloud plan makes one" in page.text()
    for path in ("/compare", "/compare?runs=r-nobody,r-none"):
        page.open(view(serving, path))
        page.until("document.body.innerText.includes('Choose other runs')")
    assert "no run 'r-nobody'" in page.text()


def test_no_view_without_the_token(user: User, serve: Callable[..., Serving]) -> None:
    serving = serve(user)
    plan = planned(user)
    for path in ("spend", "compare?runs=a,b", "plans", f"plans/{plan}/foreseen", "launches/x"):
        assert serving.ask(f"/api/{path}", token="wrong")[0] == 401
    wish, path = {"key": "k" * 32, "agreed": "1"}, f"/api/plans/{plan}/launch"
    assert serving.ask(path, wish, token="")[0] == 401
    assert serving.ask(path, wish, Origin="http://evil.example")[0] == 403
    assert serving.ask(path, wish, Sec_Fetch_Site="cross-site")[0] == 403
    assert serving.ask(path, wish, Content_Type="text/plain")[0] == 415
    assert serving.ask(path)[0] == 405
    assert user.ledger().runs == {}


# -- spending ------------------------------------------------------------------------------------


def test_the_page_shows_the_months_figures(
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
    page.run(
        "(() => { const by = document.getElementById('by'); by.value = 'provider';"
        " by.dispatchEvent(new Event('change')); })()"
    )
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
    assert page.errors == []


def test_a_month_before(reader: User, serve: Callable[..., Serving], browser: Browser) -> None:
    begun_at = time.time() - 40 * 86_400
    month = time.strftime("%Y-%m", time.gmtime(begun_at))
    plan = reader.ledger().runs[told_home.LIVE_RUN].plan
    ledger = SqliteLedger(reader.ledger_path)
    told_home._closed(ledger, plan, "r-0000aa", Outcome.FINISHED, begun_at)
    serving, page = serve(reader), browser.page()
    shown(page, serving, "/spend")
    assert "Forecast of the month's end" in page.text()
    page.run(
        f"(() => {{ const it = document.getElementById('month'); it.value = '{month}';"
        " it.dispatchEvent(new Event('change')); })()"
    )
    page.until(f"document.documentElement.dataset.drawn === '{month}'")
    text = page.text()
    assert "Forecast of the month's end" not in text
    assert "$13.72 settled" in text
    told = reader.json("report", "--month", month, "--json")["budget"]
    assert told["spent_usd"] == "13.72"
    page.run("document.querySelector('details').open = true")
    days = page.run("document.querySelector('details tbody').rows.length")
    assert days == calendar.monthrange(int(month[:4]), int(month[5:]))[1]
    page.run("document.querySelector('.plot').focus()")
    page.press("End")
    assert "$13.72" in str(page.run("document.querySelector('.chart output').innerText"))
    assert page.errors == []


# -- runs beside each other ----------------------------------------------------------------------


def test_two_runs_are_chosen_in_the_list_and_compared(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    often = ("--set", "log_every=2", "--steps", "40", "--budget", "1")
    user.run(*LAUNCH, *often, "--name", "first-try", "--tag", "team=a")
    user.run(*LAUNCH, *often, "--set", "batch=2", "--name", "smaller")
    serving, page = serve(user), browser.page()
    page.open(serving.address)
    page.until("document.querySelectorAll('.choose').length === 2")
    assert page.run("document.querySelector('#compare a').hidden")
    page.click("tr:nth-child(1) .choose")
    page.click("tr:nth-child(2) .choose")
    page.until("!document.querySelector('#compare a').hidden")
    page.click("#compare a")
    page.until("document.documentElement.dataset.drawn === 'usd'")
    assert page.run("document.querySelectorAll('.chart:not([hidden]) canvas').length") == 2
    text = page.text()
    for word in ("first-try", "smaller", "team=a", "fast: batch"):
        assert word in text
    assert "fast: width" not in text
    legend = page.run(
        "[...document.querySelectorAll('.chart ul')[0].children].map(e => e.innerText)"
    )
    assert sorted(legend) == ["first-try", "smaller"]
    page.click("#same")
    page.until("document.body.innerText.includes('fast: width')")
    page.run("document.querySelector('input[value=step]').click()")
    page.until("document.documentElement.dataset.drawn === 'step'")
    said = str(page.run("document.querySelector('.chart output').innerText"))
    assert said.startswith("step 40: ")
    assert "first-try " in said
    assert "smaller " in said
    for width in (360, 768, 1280):
        page.resize(width, 900)
        page.until(f"document.documentElement.scrollWidth <= {width}")
        assert findings_of(page) == []
    assert page.errors == []


def test_four_runs_at_most(reader: User, serve: Callable[..., Serving], browser: Browser) -> None:
    page = browser.page()
    page.open(serve(reader).address)
    page.until("document.querySelectorAll('.choose').length > 5")
    for row in range(1, 6):
        page.run(f"document.querySelector('tr:nth-child({row}) .choose').click()")
    assert page.run("document.querySelectorAll('.choose:checked').length") == 4
    assert "4 of 4 runs chosen" in page.text()


# -- a launch ------------------------------------------------------------------------------------


def test_a_double_click_launches_one_run_that_outlives_the_page(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    user.hold()
    plan = planned(user, "--steps", "60")
    serving, page = serve(user), browser.page()
    shown(page, serving, "/plans")
    ask_for(page, plan)
    page.until("!document.getElementById('launch-yes').disabled")
    assert page.focused() == "launch-no", "what does nothing is what Enter does"
    lines = "[...document.querySelectorAll('.printed span')].map(each => each.textContent)"
    printed = "\n".join(page.run(lines))
    typed = user.run("launch", plan, "--dry-run")
    assert typed.startswith(printed), "the command's own words"
    for word in ("hardware", "cap", "reserves $1.00", "stops", "killed at"):
        assert word in printed
    assert "Kill layers" in page.text()
    page.run(
        "(() => { const yes = document.getElementById('launch-yes'); yes.click(); yes.click(); })()"
    )
    page.until("location.pathname.startsWith('/run/')", WITHIN_S)
    run = user.only_run()
    assert page.run("location.pathname") == f"/run/{run.run_id}"
    page.until(f"document.querySelector('h1')?.innerText.includes('{run.run_id}')")
    assert (run.plan.id, run.detached, run.cap.plain()) == (plan, True, "1")
    wish = {"key": run.key, "agreed": "1"}
    assert serving.ask(f"/api/plans/{plan}/launch", wish)[0] == 202
    until(lambda: user.only_run().state.value == "running", what="it trains")
    assert page.errors == []
    serving.kill()
    again = serve(user)
    status, _ = again.ask(f"/api/plans/{plan}/launch", wish)  # another server, the same click
    assert status == 202
    until(
        lambda: again.ask(f"/api/launches/{run.key}")[1]["state"] == "done", what="it is answered"
    )
    assert again.ask(f"/api/launches/{run.key}")[1]["run"] == run.run_id
    assert user.only_run().live
    (user.folder / "hold").unlink()
    until(lambda: over(user) is Outcome.FINISHED, what="it has trained to its end")


def over(user: User) -> Outcome | None:
    """The outcome of the only run, once a command has seen to it."""
    user.run("status")
    return user.only_run().outcome


def test_a_server_that_is_killed_while_it_launches_ends_no_launch(
    user: User, serve: Callable[..., Serving]
) -> None:
    plan, key = planned(user, "--steps", "40"), "k" * 32
    serving = serve(user)
    assert serving.ask(f"/api/plans/{plan}/launch", {"key": key, "agreed": "1"})[0] == 202
    serving.kill()
    until(lambda: user.ledger_path.exists() and bool(user.ledger().runs), what="it is on record")
    run = user.only_run()
    assert run.key == key
    until(lambda: over(user) is Outcome.FINISHED, what="it has trained to its end")


def test_a_refusal_is_shown_with_what_to_type(
    reader: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    serving, page = serve(reader), browser.page()
    plans = serving.ask("/api/plans")[1]["plans"]
    rented = next(plan["id"] for plan in plans if "runpod" in plan["hardware"])
    shown(page, serving, "/plans")
    ask_for(page, rented)
    page.until("document.querySelector('#launch .why:not([hidden])')")
    text = str(page.run("document.getElementById('launch').innerText"))
    err = reader.fails("launch", rented, "-d", "-y", code=15)
    what = err.splitlines()[0].removeprefix("error: ")
    assert what in text
    assert f"trmcloud launch {rented}" in text
    assert page.run("document.getElementById('launch-yes').disabled")
    before = len(reader.ledger().runs)
    status, _ = serving.ask(f"/api/plans/{rented}/launch", {"key": "k" * 32, "agreed": "1000"})
    assert status == 202, "the command is asked, and refuses itself"
    until(lambda: serving.ask(f"/api/launches/{'k' * 32}")[1]["state"] == "failed", what="it has")
    assert serving.ask(f"/api/launches/{'k' * 32}")[1]["error"] == what
    assert len(reader.ledger().runs) == before


@pytest.mark.parametrize(
    ("more", "code", "said", "option"),
    [
        pytest.param((), 2, "checkpoints", "--accept-loss", id="checkpoints"),
        pytest.param(("--volume",), 4, "kill layers", "--accept-exposure", id="kill-layers"),
    ],
)
def test_what_the_command_wants_a_word_for_is_typed_there(
    renter: RentedUser, serve: Callable[..., Serving], browser: Browser,
    more: tuple[str, ...], code: int, said: str, option: str,
) -> None:  # fmt: skip
    """The page has no button for it: a refusal that an option of the command accepts."""
    wish = ("--steps", "60", "--budget", "2", *renter.data, *more)
    plan = renter.json(*RENTED, *wish, "--dry-run", "--json")["id"]
    err = renter.refused("launch", plan, "-d", "-y", code=code)
    what, after = (line.partition(": ")[2] for line in err.splitlines())
    assert said in what
    assert option in after
    serving, page = serve(renter), browser.page()
    told = serving.ask(f"/api/plans/{plan}/foreseen")[1]
    assert (told["refused"], told["next"]) == (what, after)
    shown(page, serving, "/plans")
    ask_for(page, plan)
    page.until("document.querySelector('#launch .why:not([hidden])')")
    assert after in str(page.run("document.getElementById('launch').innerText"))
    assert page.run("document.getElementById('launch-yes').disabled")
    key = "k" * 32
    assert serving.ask(f"/api/plans/{plan}/launch", {"key": key, "agreed": "9"})[0] == 202
    until(lambda: serving.ask(f"/api/launches/{key}")[1]["state"] == "failed", what="it is refused")
    answer = serving.ask(f"/api/launches/{key}")[1]
    assert (answer["error"], answer["next"], answer["run"]) == (what, after, None)
    assert renter.standin.control.world.all_pods() == []
    assert renter.ledger().runs == {}


def test_a_plan_that_no_budget_has_room_for(
    user: User, serve: Callable[..., Serving], browser: Browser
) -> None:
    plan = planned(user)
    user.run("budget", "set", "month", "0.50")
    serving, page = serve(user), browser.page()
    shown(page, serving, "/plans")
    assert "Cannot be launched: $1.00 does not fit the month" in page.text()
    ask_for(page, plan)
    page.until("document.querySelector('#launch .why:not([hidden])')")
    assert "trmcloud budget raise month 1" in str(
        page.run("document.getElementById('launch').innerText")
    )
    assert user.ledger().runs == {}


def test_an_expired_plan_is_not_listed_and_not_launched(
    user: User, serve: Callable[..., Serving]
) -> None:
    plan = planned(user)
    path = user.home / "plans" / f"{plan}.json"
    made = json.loads(path.read_text())
    path.write_text(json.dumps({**made, "expires_at": time.time() - 60}))
    shutil.copy(path, Path(path.parent, "p-0000.json.bak"))
    serving = serve(user)
    assert serving.ask("/api/plans")[1]["plans"] == []
    for path_of in (f"/api/plans/{plan}/foreseen", f"/api/plans/{plan}/launch"):
        wish = {"key": "k" * 32, "agreed": "1"} if path_of.endswith("launch") else None
        status, told = serving.ask(path_of, wish)
        assert (status, "expired" in told["error"]) == (422, True)
    assert serving.ask("/api/plans/p-9999/foreseen")[0] == 404
