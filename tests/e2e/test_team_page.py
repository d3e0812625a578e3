"""The page of a team's server in a real browser: spending at ``/``, the audit log, who sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.on_page import browser, findings_of
from tests.e2e.test_server import PASSWORD, Team, team, token_of
from tests.e2e.user import LAUNCH, User
from tests.standins.browser import Browser, Page
from tests.unit.cli import told_home
from trmcloud.api import Home

__all__ = ["browser", "team"]

pytestmark = pytest.mark.timeout(900)


class Office(Team):
    """A team with a live run of bob's, a request of his for more, and a cap that waits for a
    second lead; and runs of every end that the server's owner began."""

    def open(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRMCLOUD_HOME", str(self.host.home))
            told_home.write(self.host.home)
        self.host.hold()
        self.add("lea", "lead", "5")
        self.add("bob", "member", "5")
        self.add("vic", "viewer")
        self.add("sol", "member", "5", "--project", "vision")
        self.server = self.serve("--four-eyes", "600")
        self.lea, self.bob, self.vic, self.sol = (
            self.log_in(name, self.server) for name in ("lea", "bob", "vic", "sol")
        )
        launched = self.bob.run(
            *LAUNCH, "--budget", "0.30", "--steps", "60", "--tag", "paper=a", "-d", "--json"
        )
        self.of_bob = str(json.loads(launched)["run"])
        launched = self.sol.run(*LAUNCH, "--budget", "0.20", "--steps", "60", "-d", "--json")
        self.of_sol = str(json.loads(launched)["run"])
        self.lea.fails("budget", "raise", "account", "900", code=4)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.host.env().items():
                patch.setenv(name, value)
            asked = Home(self.host.home, principal="bob")
            asked.ask_approval("the ablation needs it", more="3")

    def at(self, user: User, path: str) -> str:
        return f"{self.server.url}{path}#token={token_of(user)}"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.end()


def shown(page: Page, address: str) -> Page:
    # Another fragment of the same page loads nothing.
    page.open("about:blank")
    page.open(address)
    page.until("document.documentElement.dataset.drawn")
    return page


def test_spending_is_the_home_page_and_each_figure_leads_to_its_runs(
    office: Office, browser: Browser
) -> None:
    page = browser.page(1280, 900)
    for width in (360, 768, 1280):
        for dark in (False, True):
            page.resize(width, 900)
            page.dark(dark)
            for path in ("/", "/?by=person", "/audit"):
                shown(page, office.at(office.lea, path))
                page.run("document.querySelectorAll('details').forEach(it => { it.open = true; })")
                assert page.run("document.documentElement.scrollWidth") <= width, path
                assert findings_of(page) == [], (path, width, dark)
            page.open("about:blank")
            page.open(office.at(office.lea, "/runs"))
            page.until("document.querySelector('.choose')")
            assert page.run("document.documentElement.scrollWidth") <= width
            assert findings_of(page) == [], (width, dark)

    shown(page, office.at(office.lea, "/?by=person"))
    assert page.run("document.querySelector('h1').textContent") == "Spending"
    assert page.run("document.querySelector('nav [aria-current]').textContent") == "Spending"
    assert page.run("document.getElementById('me').textContent") == "lea (lead)"
    text = page.text()
    for words in (
        "Who waits", "a second lead", "budget raise account 900", "the ablation needs it",
        "an answer to a request for more", "Reserved now, and until when", office.of_bob,
        "grant, all months", "Forecast of the month's end",
    ):  # fmt: skip
        assert words in text, words

    # Each figure of bob's row leads to his one run, by the keyboard alone.
    page.run("document.querySelector('td a[aria-label$=\"runs of bob\"]').focus()")
    page.press("Enter")
    page.until("location.pathname === '/runs' && document.querySelector('.choose')")
    runs = "[...document.querySelectorAll('[data-run]')].map(row => row.dataset.run)"
    assert page.run(runs) == [office.of_bob]
    assert "Runs: person bob" in page.text()
    page.click("main p a")
    page.until(f"document.querySelector('[data-run=\"{office.of_sol}\"]')")
    page.click("#brand")
    page.until("document.querySelector('h1').textContent === 'Spending'")
    assert page.errors == []


def test_the_audit_log_is_for_leads(office: Office, browser: Browser) -> None:
    page = browser.page(1280, 900)
    shown(page, office.at(office.lea, "/audit"))
    text = page.text()
    for word in ("launch local", office.of_bob, "budget raise account 900", "bob (member)"):
        assert word in text, word
    page.run(
        "(() => { const it = document.getElementById('person'); it.value = 'lea';"
        " it.dispatchEvent(new Event('change')); })()"
    )
    page.until("!document.querySelector('tbody').innerText.includes('bob (member)')")
    assert "budget raise account 900" in page.text()
    assert "hashes are whole" in page.text()
    for user in (office.bob, office.vic, office.sol):
        status, told = office.server.asked("GET", "/api/audit", token_of(user))
        assert (status, "role lead" in told["error"]) == (403, True)
        shown(page, office.at(user, "/"))
        assert "Audit" not in page.run("document.querySelector('nav').textContent")
    assert office.server.asked("GET", "/api/audit")[0] == 401


def test_a_person_with_projects_sees_these_alone(office: Office, browser: Browser) -> None:
    server, token = office.server, token_of(office.sol)
    page = browser.page(1280, 900)
    shown(page, office.at(office.sol, "/"))
    text = page.text()
    assert office.of_sol in text
    for hidden in (office.of_bob, told_home.LIVE_RUN, "the ablation needs it", "budget raise"):
        assert hidden not in text, hidden
    page.until("document.getElementById('link').textContent === 'read once a minute'")
    status, told = server.asked("GET", "/api/spend", token)
    assert (status, [group["name"] for group in told["groups"]]) == (200, ["vision"])
    assert told["cap"] is None, "what is left of it says what the others have spent"
    status, told = server.asked("GET", "/api/runs", token)
    assert [run["id"] for run in told["runs"]] == [office.of_sol]
    assert (told["budgets"], told["approvals"], told["jobs"]) == ([], [], [])
    assert server.asked("GET", f"/api/runs/{office.of_sol}", token)[0] == 200
    guesses = []
    for run in (office.of_bob, told_home.LIVE_RUN, "r-ffffff"):
        for part in ("", "/log", "/curves", "/machine", "/launched", "/foreseen?verb=stop"):
            status, told = server.asked("GET", f"/api/runs/{run}{part}", token)
            guesses.append((status, told["error"].replace(run, "RUN")))
    assert len(set(guesses)) == 1, "an id that is guessed gives nothing away"
    assert guesses[0][0] == 404
    for path in ("compare?runs=a,b", "plans", "stream"):
        assert server.asked("GET", f"/api/{path}", token)[0] == 403


def test_its_figures_are_a_document_of_the_contract(office: Office) -> None:
    server = office.server

    def asked(user: User, query: str = "") -> Any:
        status, told = server.asked("GET", f"/api/v1/spend{query}", token_of(user))
        assert status == 200, told
        return document_in(json.dumps(told))

    told = asked(office.lea, "?by=person")
    month = office.lea.json("report", "--month", "--json")["budget"]
    assert told["schema"] == "spending/1"
    assert told["total"]["spent_usd"] == month["spent_usd"]
    assert told["total"]["reserved_usd"] == month["reserved_usd"]
    assert told["cap_usd"] == month["cap_usd"]
    (bob,) = [group for group in told["groups"] if group["name"] == "bob"]
    assert (bob["runs"], bob["limit_usd"]) == ([office.of_bob], "5")
    assert {row["code"] for row in told["waits"]} >= {"answer", "second_person"}
    assert "second_person" not in {row["code"] for row in asked(office.vic)["waits"]}
    assert [group["name"] for group in asked(office.sol)["groups"]] == ["vision"]
    assert server.asked("GET", "/api/v1/spend?by=nonsense", token_of(office.vic))[0] == 422
    assert server.asked("GET", "/api/v1/spend?month=1999-01", token_of(office.vic))[0] == 422
    assert server.asked("GET", "/api/v1/spend")[0] == 401


def test_a_password_opens_the_page(office: Office, browser: Browser) -> None:
    page = browser.page(360, 700)
    page.open(office.server.url)
    page.until("document.getElementById('password')")
    assert page.focused() == "name"
    assert findings_of(page) == []
    page.type("vic")
    page.press("Tab")
    page.type("not the password")
    page.press("Enter")
    page.until("document.querySelector('.why:not([hidden])')")
    assert "wrong name or password" in page.text()
    page.type(PASSWORD)
    page.press("Enter")
    page.until("document.documentElement.dataset.drawn")
    assert page.run("document.getElementById('me').textContent") == "vic (viewer)"
    assert page.run("location.search") == "", "a password is in no address"
    # A token that was revoked asks for the password again.
    office.host.run("server", "revoke", "vic")
    page.run("location.reload()")
    page.until("document.getElementById('password')")
