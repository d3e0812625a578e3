"""What a launch asks, makes and checks before anything is rented: each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.app import launching, planning, preparing
from trmcloud.app.context import Context
from trmcloud.app.data import prepare as data_files
from trmcloud.app.planning import Planner
from trmcloud.app.preparing import Prepared
from trmcloud.app.staging.bundle import bundle_root
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.control import events as ev
from trmcloud.core.errors import BudgetRefused, DataError, NotSupported, UsageError
from trmcloud.core.spec.plan import Plan
from trmcloud.export import writing
from trmcloud.export.task import SkyNames
from trmcloud.options import LaunchRequest
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import Inputs

REQUEST = LaunchRequest(
    "8xH100", "trm", "fast", budget="400", steps=200, accept_exposure="1000",
    typed=("hardware", "recipe", "phase", "budget", "steps", "accept_exposure"),
)  # fmt: skip
TEXT = "word " * 50_000

EDU = "/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main/"


class Counted(Inputs):
    """The real inputs, counted, but for RunPod's live list, which is the dated one's."""

    def __init__(self, home: Path, count: Counter[str]) -> None:
        super().__init__(home)
        self._count = count

    def live_prices(self, now: float) -> tuple[Sequence[Offer], str]:
        self._count["prices"] += 1
        dated = [offer for offer in super().offers(now, ()) if offer.provider == "runpod"]
        return [offer._replace(priced_at=now) for offer in dated], ""

    def offers(self, now: float, live: Sequence[Offer]) -> list[Offer]:
        self._count["tables"] += 1
        return super().offers(now, live)


class Launch:
    """One launch of RunPod's machines, up to the reservation: no account, no pod."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRMCLOUD_HOME", str(home))
        unasked: Any = SimpleNamespace(require_account=lambda rate: None, lapsing=lambda until: {})
        self.context: Context = replace(
            build_context(), computes={"runpod": unasked}, needs=lambda provider: (),
            was_used=lambda provider: False,
        )  # fmt: skip
        self.count: Counter[str] = Counter()
        self._counted(monkeypatch, planning, "make_plan", "plans")
        self._counted(monkeypatch, preparing, "check_launchable", "checks")
        self.planner = Planner(Counted(home, self.count), home, self.context.wall)

    def _counted(self, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, what: str) -> None:
        real = getattr(where, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count[what] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(where, name, counted)

    def prepare(self, request: LaunchRequest) -> Prepared:
        return preparing.prepare(self.context, self.planner, request, lambda *told: None)


@pytest.fixture
def host() -> Iterator[DataHost]:
    with serving(DataHost({f"{EDU}shard_00000.parquet": b"rows"})) as made:
        yield made


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: DataHost) -> Launch:
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    return Launch(tmp_path / "home", monkeypatch)


def test_a_named_set_is_pinned_to_a_commit_which_goes_on_record(
    launch: Launch, host: DataHost
) -> None:
    def address() -> tuple[str, str]:
        source = launch.prepare(replace(REQUEST, data="fineweb-edu")).data.source
        assert source is not None
        assert source.data_set is not None
        return source.data_set.base_url, source.data_set.listing

    def recorded() -> list[ev.DataPinned]:
        records = launch.context.ledger.records()
        return [each.event for each in records if isinstance(each.event, ev.DataPinned)]

    first = address()
    assert first[0] == f"https://huggingface.co{EDU}".replace("/main/", f"/{host.commit}/")
    assert address() == first
    (pin,) = recorded()
    repository = "karpathy/fineweb-edu-100b-shuffle"
    assert pin == ev.DataPinned("fineweb-edu", repository, "main", host.commit, first[1])
    host.commit = "f" * 40  # somebody changed the set
    assert address()[0] == first[0].replace(pin.revision, host.commit)
    assert [each.revision for each in recorded()] == [pin.revision, host.commit]
    host.faults[f"/api/datasets/{repository}/revision/main"] = Fault(status=503)
    assert address()[0].endswith(f"/resolve/{host.commit}/"), "what is on record"
    with pytest.raises(DataError, match="climbmix cannot be pinned to a commit"):
        launch.prepare(replace(REQUEST, data="climbmix"))


def test_a_changed_data_set_is_one_line_that_names_the_run_before(
    launch: Launch, host: DataHost
) -> None:
    def lines() -> list[str]:
        said: list[str] = []
        preparing.pinned_source(
            launch.context, launch.planner.inputs, launch.planner.inputs.data_source("fineweb-edu"),
            lambda stage, done, total: said.append(stage),
        )  # fmt: skip
        return said

    ready = launch.prepare(replace(REQUEST, data="fineweb-edu"))
    assert lines() == []
    run = launching.start(launch.context, ready.plan, data=ready.data).run()
    old, host.commit = host.commit, "f" * 40
    assert lines() == [
        f"fineweb-edu changed since {run.run_id}: main of karpathy/fineweb-edu-100b-shuffle was at "
        f"commit {old[:12]}, now {'f' * 12}"
    ]
    assert lines() == [], "it is on record"


def test_an_export_names_the_commit_or_says_that_there_is_none(
    launch: Launch, host: DataHost, tmp_path: Path
) -> None:
    names = SkyNames({"runpod": "runpod"}, lambda provider, sku: sku, 10)
    model = bundle_root() / "model"

    def exported(form: str = "bash") -> tuple[str, str, str]:
        wished = replace(REQUEST, data="fineweb-edu")
        at = str(tmp_path / ("t.yaml" if form == "sky" else "t.sh"))
        made = writing.write(
            writing.ExportRequest(wished, form, output=at, force=True), launch.planner, model, names
        )
        return made.data_words, made.carrier.read_text(), made.path.read_text()

    words, carried, _ = exported()
    assert f"pinned to commit {host.commit} of karpathy/fineweb-edu-100b-shuffle" in words
    assert f"/resolve/{host.commit}/" in carried
    assert "/resolve/main/" not in carried
    head = carried.partition("DEFAULT_DATA=")[0]
    assert f"# {' ' * 12}{words}"[:60] in head
    words, carried, task = exported("sky")
    assert host.commit in task.partition("\nname:")[0]
    host.faults["/api/datasets/karpathy/fineweb-edu-100b-shuffle/revision/main"] = Fault(status=503)
    words, carried, _ = exported()
    assert words.startswith("NOT pinned: it fetches the branch as it is when it runs")
    assert "NOT pinned" in carried.partition("DEFAULT_DATA=")[0]
    assert "write_data_set() {" not in carried


def test_prices_are_asked_once_one_plan_is_made_and_it_is_checked_once(launch: Launch) -> None:
    ready = launch.prepare(replace(REQUEST, data="fineweb-edu"))
    driver = launching.start(launch.context, ready.plan, data=ready.data)
    assert launch.count == {"prices": 1, "tables": 1, "plans": 1, "checks": 1}
    assert driver.run().plan.id == ready.plan.id
    assert ready.plan.limits["live prices"] == "runpod's"


def test_a_text_of_ones_own_is_planned_anew_by_its_tokens_and_of_the_same_prices(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    meta = {"train_tokens": 777_777, "validation_tokens": 999}
    monkeypatch.setattr(data_files, "prepare", lambda *a, **k: (tmp_path / "made", meta))
    ready = launch.prepare(replace(REQUEST, data=str(tmp_path / "text.txt")))
    launching.start(launch.context, ready.plan, data=ready.data)
    assert launch.count == {"prices": 1, "tables": 1, "plans": 2, "checks": 1}
    assert ready.plan.recommended is not None
    assert any("777,777 tokens" in reason for _, reason in ready.plan.recommended.reasons)
    assert ready.data.folder == str(tmp_path / "made")


def test_other_machines_than_those_that_were_checked_are_checked_too(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where so many tokens are to be sent that another machine is the cheapest: here, none."""
    (tmp_path / "text.txt").write_text(TEXT)
    meta = {"train_tokens": 777_777, "validation_tokens": 999}
    monkeypatch.setattr(data_files, "prepare", lambda *a, **k: (tmp_path / "made", meta))
    real = launch.planner.plan

    def fewer(spec: Any, *, tokens_available: int | None = None) -> Plan:
        plan = real(spec, tokens_available=tokens_available)
        return plan if tokens_available is None else replace(plan, launchable=())

    monkeypatch.setattr(launch.planner, "plan", fewer)
    with pytest.raises(NotSupported):
        launch.prepare(replace(REQUEST, data=str(tmp_path / "text.txt")))
    assert launch.count["checks"] == 2


def test_what_cannot_be_launched_is_said_before_any_data_is_touched(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)

    def touched(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the data was touched")

    monkeypatch.setattr(data_files, "prepare", touched)
    request = replace(REQUEST, data=str(tmp_path / "text.txt"), accept_exposure=None)
    with pytest.raises(BudgetRefused, match="kill layer"):
        launch.prepare(request)


def test_a_saved_plan_is_launched_as_it_was_made(launch: Launch) -> None:
    plan = preparing.dry_run(launch.context, launch.planner, replace(REQUEST, data="fineweb-edu"))
    assert launch.count == {"prices": 1, "tables": 1, "plans": 1}, "a dry run checks nothing"
    again = LaunchRequest(plan.id, accept_exposure="1000", typed=("hardware", "accept_exposure"))
    assert launch.prepare(again).plan == plan
    assert launch.count == {"prices": 1, "tables": 1, "plans": 1, "checks": 1}
    with pytest.raises(UsageError, match=r"--volume-days would change plan p-"):
        launch.prepare(replace(again, typed=("hardware", "accept_loss", "volume_days")))
