"""Ledgers, plans and exports over versions: old ones open, new ones are called new, and nobody
changes what is written without raising its number."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.formats.schema import SCHEMA, schema
from tests.contract.ledger_file import AT, edit, ledger_at
from tests.documents import document_in
from trmcloud.adapters.ledger.records import VERSION
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import UnknownEvent, event_from_json
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import PLAN_VERSION, plan_from_json, plan_to_json
from trmcloud.io.installation import update_command
from trmcloud.operations.plans import planning
from trmcloud.operations.plans.planning import load_plan
from trmcloud.operations.reasons import sentence

FORMATS = Path(__file__).with_name("formats")
OLD = sorted((path.name for path in FORMATS.iterdir() if path.name.isdigit()), key=int)


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as conn:
        (version,) = conn.execute("SELECT version FROM meta").fetchone()
    conn.close()
    return int(version)


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a version before left: ``home`` and ``export``."""
    shutil.copytree(FORMATS / request.param, tmp_path / "old")
    return tmp_path / "old"


def test_what_is_written_for_good_is_what_its_number_says() -> None:
    frozen = json.loads(SCHEMA.read_text(encoding="utf-8"))
    now = schema()
    for room, said in frozen.items():
        # A pod and its controller pass over what they do not know, so that they may be of two
        # versions: there a field may be added that is not asked for.
        if now[room] != said and not (room in ("pod", "manifest") and only_more(said, now[room])):
            assert now[room]["version"] > said["version"], (
                f"{room}: what is written has changed, and its version has not: raise it, then "
                "python -m tests.contract.formats"
            )
    assert now == frozen, "python -m tests.contract.formats writes schema.json anew"


def only_more(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether nothing but fields with a default was added."""
    for kind, known in after["records"].items():
        old = before["records"].get(kind, {})
        if any(known.get(name) != declared for name, declared in old.items()):
            return False
        if old and not all(known[name].endswith("= …") for name in set(known) - set(old)):
            return False
    return set(before["records"]) <= set(after["records"])


def test_there_is_an_old_one_of_every_format_before() -> None:
    assert [str(number) for number in range(1, VERSION)] == OLD


def test_an_old_ledger_opens_and_is_left_as_it_is_until_it_is_written_to(old: Path) -> None:
    path = old / "home" / "ledger.db"
    before = path.read_bytes()
    ledger = SqliteLedger(path)
    state = ledger.read()
    assert [run.state for run in state.runs.values()] == [State.CLOSED]
    assert all(planning.is_plan_id(run.plan.id) for run in state.runs.values())
    assert path.read_bytes() == before
    ledger.set_cap(ev.CapSet("project", "thesis", Usd(7)), AT)
    assert version_of(path) == VERSION
    assert SqliteLedger(path).read().runs == state.runs


def test_what_was_called_unheard_is_read_as_unreported(tmp_path: Path) -> None:
    """Of two machines that ended while nobody was there, one's report was found later."""
    home = tmp_path / "home"
    shutil.copytree(FORMATS / "2" / "unheard", home)
    with sqlite3.connect(home / "ledger.db") as conn:
        kinds = {kind for (kind,) in conn.execute("SELECT kind FROM events")}
    conn.close()
    assert "Heard" in kinds, "what the version before wrote"
    runs = SqliteLedger(home / "ledger.db").read().runs
    assert runs["r-aaaaaa"].outcome is Outcome.UNREPORTED
    found = runs["r-bbbbbb"]
    assert found.outcome is Outcome.LANDED
    assert sentence(found.reason) == "the budget's soft stop came"
    written = {type(record.event) for record in SqliteLedger(home / "ledger.db").records()}
    assert ev.LateReport in written


def test_a_sentence_of_the_version_before_is_told_as_it_was(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / "3" / "home", tmp_path / "home")
    (run,) = SqliteLedger(tmp_path / "home" / "ledger.db").read().runs.values()
    assert run.stop is not None
    assert run.reason == run.stop.reason == make_reason(ReasonKind.SAID, text="trmcloud stop")
    assert sentence(run.reason) == "trmcloud stop"


def test_a_plan_newer_than_this_makes_its_ledger_newer(old: Path) -> None:
    (run,) = SqliteLedger(old / "home" / "ledger.db").read().runs.values()
    newer = {**plan_to_json(run.plan), "version": PLAN_VERSION + 1}
    with pytest.raises(UnknownEvent, match="of a plan"):
        event_from_json("RunPlanned", {"plan": newer, "cap": "1", "project": "default"})


def test_an_old_plan_opens(old: Path) -> None:
    for path in (old / "home" / "plans").glob("p-*.json"):
        data = json.loads(path.read_text())
        assert load_plan(old / "home", path.stem, data["created_at"] + 1).id == path.stem


def test_an_old_export_is_adopted(old: Path, tmp_path: Path) -> None:
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "trmcloud", "fetch-best", str(old / "export"), "--json"),
            *("--into", str(tmp_path / "best")),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=FORMATS.parents[2],
        env={"PATH": "/usr/bin:/bin", "TRMCLOUD_HOME": str(tmp_path / "home")},
    )
    assert answer.returncode == 0, answer.stderr
    assert document_in(answer.stdout)["outcome"] in ("landed", "finished")


def test_a_newer_plan_is_called_newer(old: Path) -> None:
    path = next((old / "home" / "plans").glob("p-*.json"))
    data = json.loads(path.read_text()) | {"version": PLAN_VERSION + 1}
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="newer version") as caught:
        load_plan(old / "home", path.stem, data["created_at"])
    assert caught.value.next_step == f"{update_command()}, or make a new plan: trmcloud plan"


@pytest.mark.parametrize("version", [0, -1, None, "1", True, 1.0])
def test_a_version_that_never_was_is_damage(tmp_path: Path, version: object) -> None:
    with pytest.raises(ValueError, match="version"):
        plan_from_json({"version": version})


def test_a_ledger_of_version_zero_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "home" / "ledger.db"
    ledger_at(path).read()
    edit(path, "UPDATE meta SET version = 0")
    with pytest.raises(Exception, match="first page"):
        ledger_at(path).read()
