"""The simulator's ledger held to the real ones: the same script of writes leaves the same answers,
records and drivers, also where the connection to the database is cut at commits.

So what the simulator shows of a ledger holds of PostgreSQL's: a cut is no case of its own there.
"""

from __future__ import annotations

import os
import pwd
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, begun
from tests.plans import plan_json
from tests.postgres import PostgresServer, Proxy
from tests.reasons import quoted
from trmcloud.adapters.ledger.postgres import PostgresLedger
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import IllegalTransition
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId, Ledger
from trmcloud.sim.world.ledger_memory import MemoryLedger

LAPTOP, SERVER = WHO, ControllerId("server", 202, "boot-2")
RUNS = ("r1", "r2", "r3")
_PATIENCE_S = 150.0
Step = Callable[[Ledger], object]


def a_script(rng: random.Random, length: int, user: str) -> list[Step]:
    """Writes of all kinds, half of which are refused: by caps, epochs or what has happened."""
    return [_a_step(rng, AT + number, user) for number in range(length)]


def user_of(ledger: Ledger) -> str:
    """The user that a real ledger puts on record for a cap, whatever the event says."""
    return "ada" if isinstance(ledger, PostgresLedger) else pwd.getpwuid(os.getuid()).pw_name


def _a_step(rng: random.Random, at: float, user: str) -> Step:
    run_id, who = rng.choice(RUNS), rng.choice((LAPTOP, SERVER))
    epoch, amount = rng.choice((1, 1, 2, 3)), Usd(rng.randint(1, 4))
    planned = ev.RunPlanned(plan_json(), Usd(8), rng.choice("pq"))
    key, cap = str(rng.randrange(10**6)), Usd(rng.randint(3, 12))
    events: list[list[ev.RunEvent]] = [
        [begun(key)],
        [ev.PodIntended(1, "pod-1", "local", "c1", Usd(1), AT, AT), ev.PodUp(1, "id-1", Usd(1))],
        [ev.PodGone(1, at), ev.Settled(1, Usd(1), Usd(1))],
        [ev.Closed("stopped")],
        [ev.Reserved(amount)],
        [],
    ]
    some = rng.choice(events)
    level = rng.choice([("account", ""), ("project", "p"), ("month", "")])
    steps: list[Step] = [
        lambda ledger: ledger.open_run(run_id, planned, amount, who, at),
        lambda ledger: ledger.reopen_run(run_id, ev.Reopened(Usd(9)), amount, who, at),
        lambda ledger: ledger.take_over(run_id, who, at),
        lambda ledger: ledger.release(run_id, epoch),
        lambda ledger: ledger.beat(run_id, epoch, at),
        lambda ledger: ledger.request(run_id, ev.StopRequested("user", quoted("x")), at),
        lambda ledger: ledger.set_cap(ev.CapSet(*level, cap, by=user), at),
        *[lambda ledger: ledger.append(run_id, epoch, some, at)] * 4,
    ]
    return rng.choice(steps)


def answer(step: Step, ledger: Ledger) -> object:
    try:
        return step(ledger)
    except (TrmcloudError, IllegalTransition) as error:
        return type(error)


@pytest.fixture(params=["sqlite", "postgres"])
def real(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Ledger, Callable[[str], None]]]:
    """(a ledger, what has its connection cut at the next commit)"""
    if request.param == "sqlite":
        yield SqliteLedger(tmp_path / "home" / "ledger.db"), lambda how: None
        return
    url = request.getfixturevalue("postgres_url")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    proxy = Proxy(server)

    def cut(how: str) -> None:
        proxy.cut_at_commit = how

    through = proxy.url(url.partition("@/")[2].partition("?")[0])
    yield PostgresLedger(through, tmp_path / "home", patience_s=_PATIENCE_S), cut
    proxy.close()


@pytest.mark.parametrize("seed", range(4))
def test_the_simulators_ledger_and_a_real_one_are_told_apart_by_nothing(
    real: tuple[Ledger, Callable[[str], None]], seed: int
) -> None:
    ledger, cut = real
    model, rng = MemoryLedger(ledger.ledger_id), random.Random(seed)
    written = 0
    for number, step in enumerate(a_script(rng, 60, user_of(ledger))):
        before = len(model.records())
        expected = answer(step, model)
        cut(rng.choice(["", "", "before", "after"]))
        assert answer(step, ledger) == expected, f"step {number}"
        written += len(model.records()) > before
        for run_id in RUNS:
            assert ledger.driver(run_id) == model.driver(run_id), f"step {number}"
    cut("")
    assert written > 4
    assert ledger.records() == model.records()
    assert ledger.read() == model.read()
