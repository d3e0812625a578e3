"""Before anything is rented: what a launch asks, makes, checks and tells a pod, each once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import plans
from tests.standins.data_host import DataHost, Fault, serving
from tests.unit.core.manifests import manifest
from tests.unit.skypilot.rig import Rig
from tests.unit.skypilot.test_homes import in_home
from trmcloud.adapters.files import load_data_set, load_recipe, source_of
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.catalog.providers import rentable
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import (
    AuthError,
    BudgetRefused,
    DataError,
    DoesNotFit,
    NotSupported,
    ProviderRefused,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import RunSpec, growing_key
from trmcloud.export import writing
from trmcloud.export.script import SkyNames, make_payload
from trmcloud.operations.context import Context
from trmcloud.operations.home import bundle_root
from trmcloud.operations.launch import launching
from trmcloud.operations.launch.run_notes import HomeNotes
from trmcloud.operations.machines import Machines, UnreachableProvider
from trmcloud.operations.plans import kill_layers, planning, preparing
from trmcloud.operations.plans.launch_checks import (
    check_account,
    check_account_key,
    check_exposure,
    keep_launchable,
)
from trmcloud.operations.plans.planning import Planner, rent_from
from trmcloud.operations.plans.preparing import PreparedLaunch
from trmcloud.operations.pod_request import (
    SEND_WITHIN_S,
    LaunchData,
    disk_gb,
    pod_request,
    tokens_of,
    write_launch_note,
)
from trmcloud.operations.sending import data as data_files
from trmcloud.operations.sending.staging import stage_items
from trmcloud.options import LaunchRequest
from trmcloud.ports.bucket import CacheRequest
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.local.compute import may_reach_pod
from trmcloud.providers.skypilot.compute import SkyPilotCompute
from trmcloud.providers.skypilot.homes import SkyHome
from trmcloud.sim.world.store import SimNotes
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import LocalPlanInputs

# -- What a launch asks, makes and checks before anything is rented: each once ------------------


REQUEST = LaunchRequest(
    "8xH100", "trm", "fast", budget="400", steps=200, accept_exposure="1000",
    typed=("hardware", "recipe", "phase", "budget", "steps", "accept_exposure"),
)  # fmt: skip
TEXT = "word " * 50_000

EDU = "/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main/"


class Counted(LocalPlanInputs):
    """The real inputs, counted, but for RunPod's live list, which is the dated one's."""

    def __init__(self, home: Path, count: Counter[str]) -> None:
        super().__init__(home)
        self._count = count

    def live_prices(self, now: float, providers: Sequence[str]) -> tuple[Sequence[Offer], str]:
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
        unasked: Any = SimpleNamespace(
            require_account=lambda rate: None, lapsing=lambda until: {}, balance=lambda: None
        )
        machines = Machines({"runpod": unasked}, {}, was_used=lambda provider: False)
        self.context: Context = replace(build_context(), machines=machines)
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

    def prepare(self, request: LaunchRequest) -> PreparedLaunch:
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


def test_a_named_set_is_pinned_to_a_recorded_commit(launch: Launch, host: DataHost) -> None:
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


def test_a_changed_data_set_is_one_line_that_names_the_run(launch: Launch, host: DataHost) -> None:
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


def test_an_export_names_the_commit_if_any(
    launch: Launch, host: DataHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "make_payload", cache(make_payload))
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
    assert words.startswith("NOT pinned: it fetches the newest commit of the branch at run time")
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
    monkeypatch.setattr(data_files, "prepare_data", lambda *a, **k: (tmp_path / "made", meta))
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
    monkeypatch.setattr(data_files, "prepare_data", lambda *a, **k: (tmp_path / "made", meta))
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

    monkeypatch.setattr(data_files, "prepare_data", touched)
    request = replace(REQUEST, data=str(tmp_path / "text.txt"), accept_exposure=None)
    with pytest.raises(BudgetRefused, match="kill layer"):
        launch.prepare(request)


def test_a_saved_plan_is_launched_as_it_was_made(launch: Launch) -> None:
    plan = preparing.dry_run(launch.context, launch.planner, replace(REQUEST, data="fineweb-edu"))
    assert launch.count == {"prices": 1, "tables": 1, "plans": 1}, "a dry run checks nothing"
    again = LaunchRequest(plan.id, accept_exposure="1000", typed=("hardware", "accept_exposure"))
    saved = planning.load_plan(launch.context.home, plan.id, launch.context.wall())
    assert launch.prepare(again).plan == saved
    assert [saved.candidate(name) for name in saved.launchable] == [
        plan.candidate(name) for name in plan.launchable
    ]
    assert launch.count == {"prices": 1, "tables": 1, "plans": 1, "checks": 1}
    with pytest.raises(UsageError, match=r"--volume-days cannot change plan p-"):
        launch.prepare(replace(again, typed=("hardware", "accept_loss", "volume_days")))


# -- launch data --------------------------------------------------------------------------------
# From a launch's data to what a pod is told: brought folders, and data that is made there.


NOW = 1_795_000_000.0
RUN = RunState("r-1", epoch=1)
MADE = LaunchData(source=source_of("fineweb-edu"), hosts="huggingface.co=http://127.0.0.1:1")


class Files:
    """The run's checkpoints on this machine."""

    def __init__(self, *manifests: CheckpointManifest) -> None:
        self._manifests = manifests

    def manifests(self, run_id: str) -> tuple[CheckpointManifest, ...]:
        return self._manifests

    def folder_of(self, manifest: CheckpointManifest) -> str:
        return f"/here/{manifest.label}"


def a_plan() -> tuple[Plan, Candidate]:
    spec = RunSpec("trm", PHASES, "8xA100", budget=Usd(1000), providers=("runpod",))
    plan = make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0")
    return plan, plan.candidate(plan.launchable[0])


AWAITED = Generation(1, "p", "runpod", "c", Usd(1), NOW + 1, NOW + 2, NOW)


def asked_for(
    data: LaunchData,
    files: Files | None = None,
    weights: str = "",
    clock: Any = None,
    recorded: Generation | None = None,
    run_id: str = RUN.run_id,
) -> PodRequest:
    """``run_id``: of the run that the ledger has."""
    plan, candidate = a_plan()
    generation = Generation(
        1, str(contract.PodName("0badcafe", "r-1", 1, int(NOW + candidate.hard_stop_s))),
        "runpod", candidate.id, candidate.rate,
        NOW + candidate.soft_stop_s, NOW + candidate.hard_stop_s, NOW,
    )  # fmt: skip
    note: dict[str, Any] = {"data_dir": data.folder, "initial_weights": weights}
    note |= {"data": data.to_json()} if data.source is not None else {}
    world = SimpleNamespace(
        home=Path("/home"),
        clock=clock,
        ledger=SimpleNamespace(
            read=lambda: SimpleNamespace(
                runs={
                    run_id: SimpleNamespace(
                        open_generations=tuple(g for g in (recorded,) if g is not None and g.open)
                    )
                }
            )
        ),
        notes=SimNotes({"r-1": note}),
        files=files or Files(),
        pods=SimpleNamespace(
            folder=lambda kind, folder: f"{contract.POD_ROOT}/{kind}/{folder.name}"
        ),
    )
    return pod_request(cast(Any, world), RUN, plan, generation, 1, Instant(NOW, 500.0, "boot-1"))


def test_a_note_says_again_what_was_launched(tmp_path: Path) -> None:
    for data in (LaunchData("/some/folder"), MADE):
        home = cast(Any, SimpleNamespace(notes=HomeNotes(tmp_path)))
        write_launch_note(home, "r-1", data=data, initial_weights="")
        assert LaunchData.of_note(HomeNotes(tmp_path).launch("r-1")) == data


def test_a_note_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r-1" / "launch.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"data_dir": "/data", "initial_weights": ""}))
    assert LaunchData.of_note(HomeNotes(tmp_path).launch("r-1")) == LaunchData("/data")


def test_it_is_too_late_by_the_clock_that_nobody_sets() -> None:
    clock = SimpleNamespace()
    asked = asked_for(LaunchData("/some/folder"), clock=clock, recorded=AWAITED)
    clock.now = lambda: Instant(NOW - 86_400.0, 500.0 + SEND_WITHIN_S, "boot-1")
    asked.require_wanted()
    clock.now = lambda: Instant(NOW - 86_400.0, 510.0 + SEND_WITHIN_S, "boot-1")
    with pytest.raises(ProviderRefused, match="was not sent, because it was 10 s too late"):
        asked.require_wanted()


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        replace(AWAITED, number=2),
        replace(AWAITED, not_made=make_reason(ReasonKind.NO_CANDIDATE)),
    ],
)
def test_what_another_one_has_given_up_is_not_asked_for(recorded: Generation | None) -> None:
    clock = SimpleNamespace(now=lambda: Instant(NOW, 500.5, "boot-1"))
    asked = asked_for(LaunchData("/some/folder"), clock=clock, recorded=recorded)
    with pytest.raises(
        ProviderRefused, match="another controller has given it up: nothing was sent"
    ):
        asked.require_wanted()


def test_a_run_that_a_restored_ledger_lacks_is_not_asked_for() -> None:
    clock = SimpleNamespace(now=lambda: Instant(NOW, 500.5, "boot-1"))
    asked = asked_for(LaunchData("/some/folder"), clock=clock, recorded=AWAITED, run_id="r-other")
    with pytest.raises(ProviderRefused, match="nothing was sent"):
        asked.require_wanted()


def test_a_pod_is_told_what_to_make(tmp_path: Path) -> None:
    request = asked_for(MADE)
    assert {job.phase for job in request.jobs} == set(PHASES)
    first = request.jobs[0].data
    assert first is not None
    assert all(job.data == first for job in request.jobs)
    assert (first.source, first.tokenizer, first.hosts) == ("fineweb-edu", "", MADE.hosts)
    assert first.data_set["shards"] == "shard_{:05d}.parquet"
    steps = {job.phase: job.settings["steps"] for job in request.jobs}
    per_step = {
        job.phase: job.settings["batch"] * job.settings["accumulation"] * 8 * 1024
        for job in request.jobs
    }
    assert first.tokens == max(steps[phase] * per_step[phase] for phase in PHASES)
    assert {job.data_dir for job in request.jobs} == {request.jobs[0].data_dir}
    assert request.jobs[0].data_dir.startswith(f"{contract.POD_ROOT}/data/")
    assert load_job(contract.dump(request.jobs[0])) == request.jobs[0]
    _, candidate = a_plan()
    assert request.disk_gb == candidate.work_gb
    # An older plan says no size: room for what is made there, of which a brought folder needs less.
    older = replace(candidate, work_gb=0)
    assert disk_gb(older, MADE) > disk_gb(older, LaunchData("/brought")) >= 30


def test_tokens_are_kept_under_one_key_whatever_tokenizer_is_given() -> None:
    """And only what took a download and the cores: token files, formulas and private texts not."""

    _, candidate = a_plan()

    def kept(data: LaunchData) -> CacheRequest | None:
        note = {"data_dir": data.folder, "data": data.to_json()}
        world = cast(Any, SimpleNamespace(notes=SimNotes({"r-1": note})))
        return tokens_of(world, RUN, candidate)

    found = kept(MADE)
    assert found is not None
    assert found.folder == f"{contract.POD_ROOT}/data-cache"
    # That of the folder, but for a tokenizer that is given, whose tokens are the same.
    assert asked_for(MADE).jobs[0].data_dir == f"{contract.POD_ROOT}/data/{found.key}"
    assert not asked_for(MADE, weights="/w/best").jobs[0].data_dir.endswith(found.key)
    most = max(phase.tokens for phase in candidate.phases)
    assert found.shards == load_data_set("fineweb-edu").shards_for(most)
    for name in ("fineweb10B-gpt2", "generated"):
        assert kept(LaunchData("", source_of(name))) is None
    assert kept(LaunchData("/brought")) is None


def test_brought_data_is_where_it_was_sent() -> None:
    (job, _) = asked_for(LaunchData("/home/data/abc")).jobs
    assert (job.data_dir, job.data) == (f"{contract.POD_ROOT}/data/abc", None)


def test_weights_to_start_from_bring_their_tokenizer() -> None:
    request = asked_for(MADE, weights="/w/best")
    making = request.jobs[0].data
    assert making is not None
    assert making.tokenizer == f"{contract.POD_ROOT}/weights/best/tokenizer.json"
    assert request.jobs[0].data_dir != asked_for(MADE).jobs[0].data_dir


TOKENIZER = CheckpointFile("tokenizer.json", "tokenizer", 10, "ab" * 32)


def test_a_resumed_pod_goes_on_with_the_tokenizer_of_what_was_trained(tmp_path: Path) -> None:
    """It is sent, and the data grows in a folder of its own."""
    files = Files(manifest(files=(TOKENIZER,)))
    making = asked_for(MADE, files).jobs[0].data
    assert making is not None
    items = items_for(tmp_path, files)
    (tokenizer,) = [item for item in items if "/tokenizer/" in item.remote]
    assert making.tokenizer == f"{tokenizer.remote}/tokenizer.json"
    assert tokenizer.sha256 == {"tokenizer.json": "ab" * 32}


def items_for(tmp_path: Path, files: Files) -> tuple[Any, ...]:
    package = tmp_path / "model"
    package.mkdir()
    (package / "train.py").write_text("")
    note = {"data_dir": "", "initial_weights": "", "data": MADE.to_json()}
    return stage_items(cast(Any, files), note, package, RUN, tmp_path / "home")


def test_nothing_but_code_is_sent_for_data_that_is_made_there(tmp_path: Path) -> None:
    (code,) = items_for(tmp_path, Files())
    assert code.remote.startswith(f"{contract.POD_ROOT}/code/")


@pytest.mark.parametrize(
    "change", [{"vocab_size": 300}, {"tokenizer": "char"}, {"validation_fraction": 0.5}]
)
def test_what_shapes_tokens_has_a_folder_of_its_own(change: dict[str, Any]) -> None:
    settings = load_recipe("trm").resolve("fast", hardware="8xH100", gpus=8)
    source = source_of("fineweb-edu")
    assert growing_key(source, settings) == growing_key(source, replace(settings, steps=3))
    assert growing_key(source, settings) != growing_key(source, replace(settings, **change))
    assert growing_key(source, settings) != growing_key(source_of("climbmix"), settings)
    assert growing_key(source, settings) != growing_key(source, settings, "a tokenizer")


# -- key and exposure ---------------------------------------------------------------------------
# What a launch through SkyPilot says of the account's key, and which verified layers it counts.


IAM_TOKEN, SERVICE_KEY = ".nebius/NEBIUS_IAM_TOKEN.txt", ".nebius/credentials.json"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A home whose Nebius credential is a token of 12 hours at most."""
    home = tmp_path / "user"
    (home / ".nebius").mkdir(parents=True)
    (home / IAM_TOKEN).write_text("token")
    return home


@pytest.fixture
def context(tmp_path: Path, user: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "trm"))
    (tmp_path / "rig").mkdir()
    compute = in_home(Rig(tmp_path / "rig"), SkyHome(tmp_path / "trm", "nebius", user, {}))
    context = build_context()
    computes = {"nebius": compute, "vast-ai": compute}
    return replace(context, machines=replace(context.machines, computes=computes))


def planned(context: Context, hardware: str, provider: str) -> Plan:
    wish = LaunchRequest(
        hardware, "trm", "fast", budget="400", provider=[provider],
        typed=("hardware", "recipe", "phase", "budget", "provider"),
    )  # fmt: skip
    return preparing.dry_run(
        context, Planner(LocalPlanInputs(context.home), context.home, context.wall), wish
    )


def refused(context: Context, plan: Plan) -> str:
    with pytest.raises(BudgetRefused) as caught:
        check_exposure(context, plan, None)
    return str(caught.value)


def verify(context: Context, *layers: str) -> None:
    for layer in layers:
        event = ev.LayerVerified("nebius", layer, "smoke run r1")
        context.ledger.verify_layer(event, context.wall())


def test_a_verified_layer_does_not_count_where_its_credential_may_lapse_before_the_hard_stop(
    context: Context, user: Path
) -> None:
    """The layers were verified with a key without an end; today there is a token."""
    plan = planned(context, "8xB200", "nebius")
    verify(context, "agent", "autostop")
    told = refused(context, plan)
    assert "verified kill layers that work without this machine: none; 2 are needed" in told
    assert "agent does not count: " in told
    assert "an IAM token, valid for at most 12 hours: the rest is not known here" in told
    (user / SERVICE_KEY).write_text("{}")
    SkyHome(context.home, "nebius", user, {}).lay()
    told = refused(context, plan)
    assert "2 are needed" not in told, "two that count are enough, once the machine is set up"
    assert "no verified kill layer (agent, autostop) works before the machine is" in told
    assert "does not count" not in told
    verify(context, "guard-elsewhere")
    told = refused(context, plan)
    assert "kill layers" not in told, "what is left is the uncapped rent"


def test_a_layer_that_was_never_verified_is_not_said_to_have_counted(context: Context) -> None:
    plan = planned(context, "8xB200", "nebius")
    verify(context, "agent")
    told = refused(context, plan)
    assert "without this machine: none; 2 are needed" in told
    assert "; agent does not count: " in told
    assert "autostop" not in told


def test_a_live_run_shows_no_layer_as_verified_whose_credential_may_lapse(
    context: Context, user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(context, "agent", "autostop")
    monkeypatch.setattr(kill_layers, "_overshoot", lambda *_: kill_layers.MaxOverspend(ZERO, "$0"))
    until = context.wall() + 3 * 86_400
    pod = str(PodName("0a1b2c3d", "r1", 1, int(until)))
    compute = context.machines.computes["nebius"]
    assert isinstance(compute, SkyPilotCompute)
    generation = SimpleNamespace(
        open=True, provider="nebius", pod_name=pod, pod_id=pod, agent_at=None, latest_stop_at=until
    )
    run: Any = SimpleNamespace(run_id="r-000001", live=True, generation=generation)

    def shown() -> dict[str, str]:
        return {layer.name: layer.state for layer in kill_layers.guards_of(context, run).layers}

    SkyHome(context.home, "nebius", user, {}).seen.mkdir(parents=True)
    compute._note_credential(pod)
    assert kill_layers.VERIFIED not in shown().values()
    (user / SERVICE_KEY).write_text("{}")
    SkyHome(context.home, "nebius", user, {}).lay()
    compute._note_credential(pod)
    assert shown()["autostop"] == kill_layers.VERIFIED


def test_what_another_provider_took_the_place_of_is_refused_in_one_line(context: Context) -> None:
    for named, via in ((("vast-ai",), ""), (("vast-ai",), "skypilot")):
        with pytest.raises(UsageError) as caught:
            whom(*named, via=via)
        assert str(caught.value) == (
            "vast.ai is no longer rented through SkyPilot ('vast-ai'), which copies the account's "
            "key to the host"
        )
        assert caught.value.next_step == "use --provider vast without --via"
    with pytest.raises(UsageError, match="SkyPilot cannot rent from vast"):
        whom("vast", via="skypilot")
    assert whom(via="skypilot", on=("aws", "vast-ai"), key=True) == "aws"
    assert whom("vast") == "vast"
    assert "vast-ai" in rentable(), "clusters made before are still watched and ended"


def test_an_older_plan_for_it_is_not_launched(context: Context) -> None:
    plan = planned(context, "8xB200", "nebius")
    older = replace(plan, candidates=tuple(replace(c, provider="vast-ai") for c in plan.candidates))
    with pytest.raises(UsageError, match="no longer rented through SkyPilot"):
        check_account_key(older, allowed=True)


def test_no_other_cloud_asks_for_that_word(context: Context) -> None:
    check_account_key(planned(context, "8xB200", "nebius"), allowed=False)


# -- Whom ``--provider`` and ``--via`` mean -----------------------------------------------------


def whom(*named: str, via: str = "", on: tuple[str, ...] | None = None, key: bool = False) -> str:
    def enabled() -> tuple[str, ...]:
        assert on is not None, "SkyPilot is asked though the user chose"
        return on

    return " ".join(rent_from("8xH100", named, via, key_allowed=key, enabled=enabled))


def test_all_providers_are_compared_unless_some_are_named() -> None:
    assert whom() == ""
    assert whom("aws", "runpod") == "aws runpod"


def test_through_skypilot_whoever_it_has_access_to() -> None:
    on = ("aws", "lambda", "skypilot-runpod")
    assert whom(via="skypilot", on=on) == "aws lambda"
    assert whom(via="skypilot", on=on, key=True) == "aws lambda skypilot-runpod"
    assert whom("runpod", via="skypilot") == "skypilot-runpod"
    with pytest.raises(DoesNotFit, match="no cloud is enabled"):
        whom(via="skypilot", on=("skypilot-runpod",))


def test_what_cannot_be_rented_is_refused() -> None:
    for named, via in ((("hyperstack",), ""), ((), "terraform")):
        with pytest.raises(UsageError):
            whom(*named, via=via)
    with pytest.raises(UsageError, match="not rented"):
        rent_from("local", (), "skypilot", key_allowed=False, enabled=tuple)
    assert rent_from("local", (), "", key_allowed=False, enabled=tuple) == []


# -- Which of the user's variables a pod on this machine sees -----------------------------------


SECRETS = (
    "TORCH_TOKEN", "TORCH_HUB_TOKEN", "CUDA_SECRET", "NVIDIA_API_KEY", "NVIDIA_NGC_APIKEY",
    "TRITON_PASSWORD", "NCCL_PASSWD", "OMP_CREDENTIALS", "MKL_AUTH", "PYTORCH_PRIVATE",
    "TRMCLOUD_SECRET", "TRMCLOUD_S3_SECRET", "TRMCLOUD_S3_KEY", "TRMCLOUD_UI_TOKEN",
    "TORCH_token", "CUDA_Pwd", "TORCH_PASSPHRASE", "TRMCLOUD_WEBHOOK_URL", "LC_TOKEN",
    "TORCHX_DSN", "CUDA_COOKIE", "TORCH_PAT", "TORCH_SIGNATURE", "TORCH_HUB_AUTHORIZATION",
    "RAY_AUTH_TOKEN",
)  # fmt: skip
HARMLESS = (
    "PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG", "OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "KMP_AFFINITY",
    "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_LOGS", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_KERNEL_CACHE_PATH", "TORCH_COMPILE_DEBUG", "TRITON_CACHE_DIR", "TRMCLOUD_HOME",
    "TRMCLOUD_TRAINER", "TRMCLOUD_INSTALL_HASHES", "TRMCLOUD_KEEP", "CUDA_CACHE_PATH",
    "CUDA_CACHE_DISABLE", "TORCH_CUDNN_V8_API_ENABLED", "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "RAY_AUTH_TOKEN_PATH",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_what_may_hold_a_secret_passes_by_no_prefix(name: str) -> None:
    assert not may_reach_pod(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_hardware_and_libraries_are_set_by_passes(name: str) -> None:
    assert may_reach_pod(name)


def test_a_launch_checks_the_candidates_that_it_would_try(context: Context) -> None:
    there: Any = SimpleNamespace()
    no_key = UnreachableProvider(AuthError("there is no key"))
    computes = {"runpod": there, "vast": no_key, "huggingface": there, "lambda": there}
    context = replace(context, machines=replace(context.machines, computes=computes))
    names = ("runpod", "vast", "huggingface", "lambda", "nebius")

    def tried(*named: str) -> list[str]:
        candidates = [plans.a_candidate(name, provider=name) for name in names]
        kept = keep_launchable(context, plans.a_plan(*candidates, providers=named))
        return list(kept.launchable)

    assert tried() == ["runpod", "huggingface"]
    assert tried("lambda", "vast") == ["runpod", "vast", "huggingface", "lambda"]


def test_where_the_best_has_no_account_the_next_that_has_one_is_named(context: Context) -> None:
    no_key = UnreachableProvider(AuthError("there is no key", next_step="trmcloud login"))
    there: Any = SimpleNamespace()
    computes = {"vast": no_key, "runpod": there}
    context = replace(context, machines=replace(context.machines, computes=computes))
    candidates = [plans.a_candidate(name, provider=name) for name in ("vast", "runpod")]
    plan = keep_launchable(context, plans.a_plan(*candidates))
    for _ in range(2):  # the same error is raised again
        with pytest.raises(AuthError) as refused:
            check_account(context, plan)
        assert refused.value.next_step == "--provider runpod, or trmcloud login"
