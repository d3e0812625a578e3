"""What the reaper ends and deletes, and what a record of a pod or script is believed of its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.core.test_strays import AT, ENDED, LATENCY_S, NAME, RATE, Book, ledger, pod, run
from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract.pod_contract import PodName, parse_pod_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.bookkeeping import AHEAD_S, add_note
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.ledger_facts import Quarantine
from trmcloud.core.errors import ConflictError, NotFoundError, ProviderError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.spec import DELETE, KEEP, RunSpec
from trmcloud.export.adopt import find_folder
from trmcloud.export.adopt import read_adopted_run as look_adopt
from trmcloud.export.script import spec_text
from trmcloud.operations.checks.smoke_watch import last_way
from trmcloud.operations.driving.ending import NamedPod, PodListing, end_all
from trmcloud.operations.driving.reap import EndedOrphan, end, end_volumes, look
from trmcloud.operations.machines import Machines
from trmcloud.pod.agent.attempts import StandaloneAttempt, StandaloneAttempts, write_lives
from trmcloud.ports.compute import VolumeSeen

# -- What the reaper puts on record before it ends a pod of nobody's ----------------------------


FOUND_AT = AT + 100.0


class Case:
    """One run, its pod, and a second one that was made by the same create."""

    def __init__(self) -> None:
        self.now, self.book, self.ended = FOUND_AT, ledger(run()), list[str]()
        listed = (pod("id-1", made_at=AT), pod("id-2", made_at=AT))
        compute = SimpleNamespace(list_pods=lambda: listed, terminate=self.ended.append)
        self.slept_s = 0.0
        self.context: Any = SimpleNamespace(
            ledger=SimpleNamespace(read=lambda: self.book, note=self.note, ledger_id="abcd1234"),
            wall=lambda: self.now, machines=Machines({"runpod": compute}, {}),  # type: ignore[dict-item]
        )  # fmt: skip

    def note(self, event: ev.Note, at: float) -> None:
        self.book, _ = add_note(self.book, 0, event, at)


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(
        "trmcloud.operations.driving.reap.providers_in_use", lambda context: ("runpod",)
    )
    monkeypatch.setattr("trmcloud.operations.driving.ending.hurried", lambda context: context)
    return Case()


def on_record(case: Case) -> Any:
    return case.book.strays[("runpod", "id-2")].amount


def test_it_is_charged_a_little_ahead_and_ended(case: Case) -> None:
    found = look(case.context, own_only=True)
    [did] = end(case.context, found)
    assert isinstance(did, EndedOrphan)
    assert case.ended == ["id-2"]
    assert on_record(case) == cost(RATE, 100.0 + LATENCY_S + AHEAD_S)


def test_who_slept_since_the_look_charges_what_it_may_have_cost_by_now(case: Case) -> None:
    found = look(case.context, own_only=True)
    case.now += 7200.0
    end(case.context, found)
    assert case.ended == ["id-2"]
    assert on_record(case) == cost(RATE, 7300.0 + LATENCY_S + AHEAD_S)


def test_what_is_ended_by_its_name_is_charged_before(case: Case) -> None:
    case.now = AT + 50.0
    hurt = Quarantine("r-1", 3, (4,), Usd(80), created_at=AT, pods=("id-1",))
    case.book = LedgerState(case.book.ledger_id, quarantined={"r-1": hurt})
    name = parse_pod_name(NAME)
    assert name is not None
    listed = tuple(NamedPod("runpod", pod(each), name) for each in ("id-1", "id-2"))
    end_all(case.context, PodListing(listed))
    assert case.ended == ["id-1", "id-2"]
    assert [pod_id for _, pod_id in case.book.strays] == ["id-2"]
    assert on_record(case) == cost(RATE, 50.0 + LATENCY_S + AHEAD_S)


# -- end volumes --------------------------------------------------------------------------------
# What the reaper does with volumes whose day has come: asked, listed, told, put on record.


class Provider:
    """One volume of this ledger in each of two data centres."""

    def __init__(self) -> None:
        self.there = [VolumeSeen("here", "EU-RO-1", 52), VolumeSeen("elsewhere", "US-KS-2", 52)]
        self.listing: Callable[[], None] = lambda: None
        self.refuses = ""

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        self.listing()
        return tuple(self.there)

    def delete_volume(self, volume_id: str) -> None:
        if self.refuses:
            raise ProviderError(self.refuses)
        self.there = [volume for volume in self.there if volume.volume_id != volume_id]


class CaseVolumes:
    def __init__(self, then: str = DELETE) -> None:
        self.book, self.provider = Book(), Provider()
        self.book.run("r1", volume_then=then)
        self.now = ENDED + 7 * DAY_S
        ledger = SimpleNamespace(read=lambda: self.book.ledger, note=self.note)
        self.world: Any = SimpleNamespace(
            ledger=ledger, wall=lambda: self.now,
            machines=Machines({"runpod": self.provider}, {}),  # type: ignore[dict-item]
        )  # fmt: skip

    def note(self, event: ev.Note, at: float) -> None:
        self.book.add("", at, event)

    def left(self) -> list[str]:
        return [volume.volume_id for volume in self.provider.there]


def test_it_deletes_the_one_that_is_due_and_writes_that_down() -> None:
    case = CaseVolumes()
    case.now -= 1.0
    assert end_volumes(case.world) == []
    case.now += 1.0
    (said,) = end_volumes(case.world)
    assert said == "deleted the network volume in EU-RO-1 (here): saves $0.12 a day"
    assert case.left() == ["elsewhere"]
    assert case.book.ledger.deleted_volumes == {("runpod", "EU-RO-1"): (case.now,)}
    assert end_volumes(case.world) == []


def test_nothing_is_asked_where_nobody_agreed() -> None:
    case = CaseVolumes(KEEP)
    case.provider.listing = lambda: 1 / 0  # type: ignore[assignment]
    assert end_volumes(case.world) == []


def test_one_that_is_refused_is_told_and_tried_again() -> None:
    case = CaseVolumes()
    case.provider.refuses = "network volume is in use by a pod"
    (said,) = end_volumes(case.world)
    assert said == "could not delete the network volume in EU-RO-1: " + case.provider.refuses
    assert case.book.ledger.deleted_volumes == {}
    case.provider.refuses = ""
    assert end_volumes(case.world)
    assert case.left() == ["elsewhere"]


def test_a_run_that_is_launched_while_they_are_listed_keeps_it() -> None:
    case = CaseVolumes()
    case.provider.listing = lambda: case.book.begin("r2", case.now)
    (said,) = end_volumes(case.world)
    assert said == "the network volume in EU-RO-1 is needed again"
    assert case.left() == ["here", "elsewhere"]


def test_one_that_somebody_deleted_in_the_console_is_put_on_record() -> None:
    case = CaseVolumes()
    case.provider.there = []
    (said,) = end_volumes(case.world)
    assert "it did not exist any more" in said
    assert case.book.ledger.deleted_volumes


# -- What a script's own record says of its time, and what of it is not believed ----------------


NOW = 1_795_000_000.0


def folder_of(tmp_path: Path, *, run_id: str = "r-0a1b2c", pod: str = "") -> Path:
    root = tmp_path / "trmcloud-run"
    root.mkdir()
    pod = pod or str(PodName("0a1b2c3d", "r-0a1b2c", 1, int(NOW) + 100))
    write_lives(
        root, StandaloneAttempts(run_id, "0a1b2c3d", "trm", (StandaloneAttempt(1, pod, NOW),))
    )
    plan = make_plan(
        RunSpec("trm", ("fast",), "8xH100"), load_recipe("trm"), load_offers(NOW), NOW, "p-0000"
    )
    assert plan.recommended is not None
    (root / "spec.json").write_text(spec_text(plan, plan.recommended))
    return root


def test_the_folder_is_found_by_its_record(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"standalone\.json"):
        find_folder(tmp_path)
    root = folder_of(tmp_path)
    assert find_folder(tmp_path) == find_folder(root) == root


@pytest.mark.parametrize("names", [{"run_id": "../../etc"}, {"pod": "../../etc"}])
def test_names_that_could_lead_elsewhere_are_refused(names: dict[str, str], tmp_path: Path) -> None:
    root = folder_of(tmp_path, **names)
    with pytest.raises(ConflictError, match="not a record"):
        look_adopt(root, LocalRunFiles(root))


def test_a_run_that_saved_nothing_says_so(tmp_path: Path) -> None:
    root = folder_of(tmp_path)
    with pytest.raises(NotFoundError, match="saved no checkpoint"):
        look_adopt(root, LocalRunFiles(root))
    record = json.loads((root / "standalone.json").read_text())
    (root / "standalone.json").write_text(json.dumps({**record, "version": 9}))
    with pytest.raises(ConflictError, match="version 9"):
        look_adopt(root, LocalRunFiles(root))


# -- What a pod's own record of its end is told as: the pod may be anybody's --------------------


def told(*attempts: Any) -> tuple[str, str]:
    return last_way(json.dumps({"attempts": attempts}))


def way(name: Any, ok: Any = None, code: Any = None) -> dict[str, Any]:
    return {"way": name, "ok": ok, "code": code}


def test_the_last_way_and_what_those_before_it_came_to() -> None:
    assert told(way("api", True, 200)) == ("api", "")
    assert told(way("api", False, 403), way("ctl", True, 0)) == ("ctl", "api refused (403)")
    assert told(way("api"), way("ctl", True), way("poweroff")) == (
        "poweroff", "api refused, ctl accepted",
    )  # fmt: skip


def test_after_one_that_was_refused_came_what_nobody_read() -> None:
    assert told(way("api", True, 200), way("ctl", False, 1)) == (
        "the events after ctl", "api accepted (200), ctl refused (1)",
    )  # fmt: skip


def test_rounds_repeat_and_the_first_says_enough() -> None:
    rounds = [way("api", False, 403), way("ctl", True, 0), way("api", True, 200), way("ctl")]
    assert told(*rounds) == ("ctl", "api refused (403), ctl accepted (0)")


def test_ways_are_cut_and_clean() -> None:
    assert told(way("x" * 61))[0] == "x" * 60
    assert told(way("a\x1b[2J\nb"))[0] == "a b"
    assert told(way(7))[0] == "7"
    many = [way(f"w{n}", True) for n in range(10)]
    assert told(*many)[1] == ", ".join(f"w{n} accepted" for n in range(8))


def test_only_a_plain_yes_is_one_and_only_a_number_a_code() -> None:
    assert told(way("a", "yes", "200"), way("b", True)) == ("b", "a refused")
    for code in (True, 1 << 31, -(1 << 31), 10**4000):
        assert told(way("a", True, code), way("b", True)) == ("b", "a accepted")
    assert told(way("a", True, (1 << 31) - 1), way("b")) == ("b", f"a accepted ({(1 << 31) - 1})")


@pytest.mark.parametrize(
    "text",
    ["", "x", "null", "[]", "{}", '{"attempts": []}', '{"attempts": null}', '{"attempts": [1]}',
     '{"attempts": [{}]}', '{"attempts": ["x"]}', '{"attempts": 5}', "[" * 100_000, "9" * 5000],
)  # fmt: skip
def test_what_cannot_be_understood_says_nothing(text: str) -> None:
    assert last_way(text) == ("", "")
