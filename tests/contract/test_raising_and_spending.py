"""People who raise and people who spend at once, by clocks that are minutes apart around a month's
end, on both ledgers: a checker that reads the history alone finds no moment at which more was held
than was allowed then."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.ledger_file import WHO
from tests.plans import plan_json
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.budget import PROJECT_MONTH
from trmcloud.core.errors import BudgetRefused, UsageError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import Ledger

Open = Callable[[], Ledger]
MOST = 24
AT = dt.datetime(2026, 12, 1, tzinfo=dt.timezone.utc).timestamp()
CLOCKS_APART_S = {"a": -300.0, "b": -60.0, "c": 60.0, "d": 300.0, "lea": -300.0, "leo": 300.0}


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "sqlite":
        return lambda: SqliteLedger(tmp_path / "home" / "ledger.db", busy_timeout_s=300.0)
    url = request.getfixturevalue("postgres_url")
    return lambda: PostgresLedger(url, tmp_path / "home")


def terms(dollars: int) -> ev.GrantTerms:
    return ev.GrantTerms(Usd(3 * dollars), per_month=Usd(dollars))


def spend(ledger: Ledger, name: str) -> None:
    rng, at = random.Random(name), AT + CLOCKS_APART_S[name]
    for number in range(12):
        run_id, principal = f"r-{name}{number}", rng.choice(["", "bob"])
        planned = ev.RunPlanned(plan_json(), Usd(100), "vision", principal=principal)
        try:
            epoch = ledger.open_run(run_id, planned, Usd(rng.randint(1, 4)), WHO, at)
        except BudgetRefused:
            continue
        if rng.random() < 0.5:
            ledger.append(run_id, epoch, [ev.Closed("stopped")], at)


def raise_caps(ledger: Ledger, who: str) -> None:
    at = AT + CLOCKS_APART_S[who]
    for dollars in range(4, MOST + 1, 2):
        ledger.set_cap(ev.CapSet(PROJECT_MONTH, "vision", Usd(dollars), by=who), at)
        ledger.set_cap(ev.CapSet("account", "", Usd(2 * dollars), by=who), at)
        with contextlib.suppress(UsageError):  # the other lead has allowed more meanwhile
            ledger.set_grant(ev.GrantRaised("bob", terms(dollars // 2), who), at)


def check(records: list[ev.Record]) -> int:
    """How many reservations there were; each fitted what stood before it."""
    caps: dict[str, int] = {}
    granted = total_granted = reserved = 0
    payer: dict[str, str] = {}
    held: dict[str, tuple[int, bool]] = {}
    for record in records:
        event = record.event
        if isinstance(event, ev.CapSet):
            assert event.cap is not None
            caps[event.level] = event.cap.micros
        elif isinstance(event, ev.GrantGiven | ev.GrantRaised):
            assert event.terms.per_month is not None
            granted, total_granted = event.terms.per_month.micros, event.terms.total.micros
        elif isinstance(event, ev.RunPlanned):
            payer[record.run_id] = event.principal
        elif isinstance(event, ev.Closed):
            held.pop(record.run_id, None)
        elif isinstance(event, ev.Reserved):
            reserved += 1
            in_december = record.at >= AT
            held[record.run_id] = event.amount.micros, in_december
            whole = sum(amount for amount, _ in held.values())
            month = sum(amount for amount, later in held.values() if later == in_december)
            assert whole <= caps["account"], (record.seq, whole, caps)
            assert month <= caps[PROJECT_MONTH], (record.seq, month, caps)
            bobs = [held[run_id] for run_id in held if payer[run_id] == "bob"]
            # What was reserved in November, and is still, may be spent in December, too.
            then = sum(amount for amount, later in bobs if in_december or not later)
            if payer[record.run_id]:
                assert then <= granted, (record.seq, then, granted)
                assert sum(amount for amount, _ in bobs) <= total_granted, record.seq
    return reserved


def test_nothing_is_held_beyond_what_stood_at_that_moment(opened: Open) -> None:
    first = opened()
    raise_first = (ev.CapSet(PROJECT_MONTH, "vision", Usd(4)), ev.CapSet("account", "", Usd(8)))
    for cap in raise_first:
        first.set_cap(cap, AT)
    first.set_grant(ev.GrantGiven("bob", terms(2)), AT)
    planned = ev.RunPlanned(plan_json(), Usd(100), "vision")
    with pytest.raises(BudgetRefused, match="project-month vision"):
        first.open_run("r-early", planned, Usd(5), WHO, AT)
    failed: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # a thread's failure is the test's
            failed.append(error)

    acts: list[Callable[[], None]] = [
        *(lambda name=name: spend(opened(), name) for name in "abcd"),
        *(lambda who=who: raise_caps(opened(), who) for who in ("lea", "leo")),
    ]
    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    records = list(first.records())
    assert 4 <= check(records) < 48, "some were refused"
