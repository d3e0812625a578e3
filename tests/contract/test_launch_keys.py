"""Names and idempotency keys of launches in a ledger: one run for a key, from any process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.ledger_file import AT, WHO, edit, ledger_at
from tests.plans import plan_json
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import KeyUsed, run_of_key
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, Outcome, RunQuarantined
from trmcloud.core.money import Usd


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


def launch(path: Path, run_id: str, *, name: str = "", key: str = "") -> int:
    planned = ev.RunPlanned(
        plan_json(), Usd(10), "thesis", name=name, tags=(("team", "a"),), key=key, request="0" * 64
    )
    return ledger_at(path).open_run(run_id, planned, Usd(1), WHO, AT)


def test_a_key_names_one_run_for_good(path: Path) -> None:
    epoch = launch(path, "r-aaaaaa", name="first", key="k1")
    with pytest.raises(KeyUsed) as refused:
        launch(path, "r-bbbbbb", name="second", key="k1")
    assert refused.value.run_id == "r-aaaaaa"
    closed = ev.Closed(Outcome.NOT_STARTED.value)
    ledger_at(path).append("r-aaaaaa", epoch, [closed], AT + 1)
    with pytest.raises(KeyUsed):
        launch(path, "r-cccccc", name="second", key="k1")
    (run,) = ledger_at(path).read().runs.values()
    said = (run.run_id, run.name, run.tags, run.key, run.keys)
    assert said == ("r-aaaaaa", "first", (("team", "a"),), "k1", {"k1": "0" * 64})


def test_a_run_is_reopened_once_for_a_key(path: Path) -> None:
    epoch = launch(path, "r-aaaaaa", key="k1")
    ledger = ledger_at(path)
    for _ in range(2):
        ledger.append("r-aaaaaa", epoch, [ev.Closed(Outcome.NOT_STARTED.value)], AT + 1)
        with pytest.raises(KeyUsed):
            ledger.reopen_run("r-aaaaaa", ev.Reopened(Usd(10), key="k1"), Usd(1), WHO, AT + 2)
        reopened = ev.Reopened(Usd(10), key="k2", request="1" * 64)
        if "k2" in ledger.read().runs["r-aaaaaa"].keys:
            with pytest.raises(KeyUsed):
                ledger.reopen_run("r-aaaaaa", reopened, Usd(1), WHO, AT + 2)
        else:
            epoch = ledger.reopen_run("r-aaaaaa", reopened, Usd(1), WHO, AT + 2)
    (run,) = ledger.read().runs.values()
    assert (run.key, set(run.keys)) == ("k1", {"k1", "k2"})


def test_a_name_is_one_live_runs(path: Path) -> None:
    epoch = launch(path, "r-aaaaaa", name="first")
    with pytest.raises(ConflictError, match="r-aaaaaa is live and has the name 'first'"):
        launch(path, "r-bbbbbb", name="first")
    ledger_at(path).append("r-aaaaaa", epoch, [ev.Closed(Outcome.NOT_STARTED.value)], AT + 1)
    launch(path, "r-bbbbbb", name="first")
    launch(path, "r-cccccc")
    launch(path, "r-dddddd")  # and runs without a name are as many as one likes


def test_damage_may_hide_a_key(path: Path) -> None:
    launch(path, "r-aaaaaa", key="k1")
    launch(path, "r-bbbbbb")
    edit(path, "UPDATE events SET body = body || ' ' WHERE seq = 1")
    state = ledger_at(path).read()
    assert set(state.quarantined) == {"r-aaaaaa"}
    assert run_of_key(state, "") is None
    with pytest.raises(RunQuarantined, match="'k1' may belong to r-aaaaaa"):
        launch(path, "r-cccccc", key="k1")


_RACER = """
import sys
from pathlib import Path
from tests.contract.test_launch_keys import launch
from trmcloud.core.control.bookkeeping import KeyUsed
sys.stdin.readline()
try:
    launch(Path(sys.argv[1]), sys.argv[2], key="k1")
    print("opened")
except KeyUsed as error:
    print(error.run_id)
"""


def test_of_processes_with_one_key_one_opens_its_run(path: Path) -> None:
    launch(path, "r-000000")
    names = ("r-aaaaaa", "r-bbbbbb", "r-cccccc")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for name in names
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    runs: list[RunState] = [run for run in ledger_at(path).read().runs.values() if run.key]
    assert len(runs) == 1
    won = names.index(runs[0].run_id)
    assert said[won] == "opened"
    assert all(told == runs[0].run_id for n, told in enumerate(said) if n != won)
