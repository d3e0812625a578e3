"""Quarantine, as both ledgers keep it: in the file, and in the memory of simulated worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, begun, edit
from tests.plans import plan_json
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.errors import RunQuarantined
from trmcloud.core.money import Usd
from trmcloud.sim.world.ledger_memory import MemoryLedger


class InMemory:
    def __init__(self) -> None:
        self.ledger = MemoryLedger()

    def flip(self, seq: int) -> None:
        self.ledger.flip(seq)

    def read(self) -> LedgerState:
        return self.ledger.seen()


class InFile:
    def __init__(self, path: Path) -> None:
        self.ledger = SqliteLedger(path)
        self._path = path

    def flip(self, seq: int) -> None:
        edit(self._path, f"UPDATE events SET body = body || ' ' WHERE seq = {seq}")
        self.ledger = SqliteLedger(self._path)

    def read(self) -> LedgerState:
        return self.ledger.read()


@pytest.fixture(params=["memory", "file"])
def ground(request: pytest.FixtureRequest, path: Path) -> InMemory | InFile:
    return InMemory() if request.param == "memory" else InFile(path)


@pytest.mark.parametrize(("seq", "most"), [(1, Usd(3)), (2, Usd(10)), (3, Usd(3))])
def test_a_damaged_record_costs_its_run_alone(
    ground: InMemory | InFile, seq: int, most: Usd
) -> None:
    planned = ev.RunPlanned(plan_json(), Usd(10), "thesis")
    first = ground.ledger.open_run("r1", planned, Usd(3), WHO, AT)
    ground.ledger.append("r1", first, [begun("a")], AT)
    second = ground.ledger.open_run("r2", planned, Usd(1), WHO, AT)
    before = ground.read().runs["r2"]
    ground.flip(seq)
    state = ground.read()
    assert dict(state.runs) == {"r2": before}
    hurt = state.quarantined["r1"]
    assert (hurt.lost, hurt.read, hurt.most) == ((seq,), 2, most)
    assert state.line("account", "").reserved == most + Usd(1)
    with pytest.raises(RunQuarantined):
        ground.ledger.append("r1", first, [begun("b")], AT)
    with pytest.raises(RunQuarantined):
        ground.ledger.take_over("r1", WHO, AT)
    ground.ledger.append("r2", second, [begun_of_r2()], AT)
    ground.ledger.note(ev.DamageSettled("r1", Usd(2), "me"), AT + 1)
    line = ground.read().line("account", "")
    assert (line.settled, line.reserved) == (Usd(2), Usd(1))
    ground.ledger.open_run("r3", planned, Usd(1), WHO, AT)


def begun_of_r2() -> ev.ActionStarted:
    return ev.ActionStarted(str(ActionKey("r2", 1, "pull", 1, "a")), "pull")
