"""Checkpoints: asked for, taken from a source, pruned, and gathered from shards."""

from __future__ import annotations

import errno
import hashlib
import os
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.plans import a_candidate, a_generation
from tests.reasons import quoted
from tests.unit.core.manifests import manifest
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract import shards
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest, Pruning, shard_name
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import (
    CheckpointError,
    ConflictError,
    LinkError,
    NotFoundError,
    Outcome,
    ProviderError,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Candidate, Plan, RecordedPlan, plan_to_json
from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import matches_hash
from trmcloud.operations.checkpoints import fetching, inventory, saving, sources
from trmcloud.operations.checkpoints.fetching import copy, read_manifest, sound_file
from trmcloud.operations.checkpoints.saving import SaveRequest, find_saved, why_not_saved
from trmcloud.operations.checkpoints.sources import Listing
from trmcloud.operations.context import Context
from trmcloud.operations.launch import checkpoint_requests, short_rentals
from trmcloud.options import LaunchRequest
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

# -- A checkpoint that was asked for: when that is refused, and where it is found by then -------


POD = "trmc-abcd1234-r1-g1-1790003000"
SAVED = contract.SaveAnswers(1, "fast", 120)
KEPT = contract.CheckpointRef("fast", 120, "ab" * 32, 1010)
REPORT = contract.AgentReport(
    "r-1", POD, 1, 7, 1.0, 2.0,
    (contract.PhaseReport("fast", contract.PhaseState.RUNNING),), 3.0, 4.0,
    saves=contract.SaveAnswers(),
)  # fmt: skip


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    request = LaunchRequest("1xA100", "trm-tiny", "fast", setting=["keep_best=1"])
    planner = build_planner(tmp_path_factory.mktemp("plans"))
    return planner.plan(planner.spec(request), tokens_available=10_000_000)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    return build_context()


def run_of(plan: Plan, provider: str = "runpod", **spec: Any) -> RunState:
    plan = replace(plan, spec=replace(plan.spec, **spec))
    generation = a_generation(
        pod_name=POD, candidate_id=plan.candidates[0].id, up_at=0.0, provider=provider
    )
    made = RecordedPlan(plan_to_json(plan))
    return RunState("r-1", recorded_plan=made, generations=(generation,), state=State.RUNNING)


def say(world: Context, report: contract.AgentReport) -> None:
    folder = world.home / contract.PODS_DIR / POD
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / contract.REPORT_NAME, contract.dump(report))


def copy_here(world: Context) -> Path:
    folder = world.home / "runs" / "r-1" / "fast" / contract.CHECKPOINTS_DIR / "step-00000120"
    folder.mkdir(parents=True)
    write_atomic(folder / mf.MANIFEST_NAME, mf.to_json(manifest(120, None)))
    return folder


def test_an_answer_counts_for_its_own_pod_and_request(world: Context, plan: Plan) -> None:
    run, asked = run_of(plan), SaveRequest("r-1", 1, 1)
    assert asked.answer(world, run) is None
    say(world, REPORT)
    assert asked.answer(world, run) is None
    say(world, replace(REPORT, saves=SAVED))
    assert asked.answer(world, run) == SAVED
    assert SaveRequest("r-1", 1, 2).answer(world, run) is None
    assert SaveRequest("r-1", 2, 1).answer(world, run) is None, "another pod's"


def test_a_request_has_a_number_that_its_pod_has_not_answered(
    world: Context, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that was restored from a backup has forgotten two, which the pod reports."""
    run, wishes = run_of(plan), list[ev.RunEvent]()
    monkeypatch.setattr(saving, "run_by_id", lambda context, run_id: run)
    ledger = SimpleNamespace(request=lambda run_id, wish, at: wishes.append(wish))
    say(world, replace(REPORT, saves=contract.SaveAnswers(2, "fast", 120)))
    saving.request_save(replace(world, ledger=cast(Any, ledger)), "r-1", "user")
    assert wishes == [ev.SaveRequested(1, by) for by in ("pod", "pod", "user")]


def test_where_a_pull_saves_it_it_is_safe_once_it_is_pulled(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    assert find_saved(world, run, SAVED) is None
    say(world, replace(REPORT, kept=(KEPT,)))
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert (place.label, place.final) == ("fast/step-00000120", False)
    folder = copy_here(world)
    half = find_saved(world, run, SAVED)
    assert half is not None
    assert not half.final, "its pull is not on record yet"
    run = replace(run, pulled={("fast", 120): ev.Pulled(1, "fast", 120, KEPT.sha256)})
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert place.final
    assert place.words == f"{folder}, pulled and verified"
    assert place.at == inventory.Place(inventory.HERE, str(folder))


def test_a_later_one_stands_for_it_and_an_earlier_one_does_not(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    say(world, replace(REPORT, kept=(replace(KEPT, step=90), replace(KEPT, step=150))))
    place = find_saved(world, run, SAVED)
    assert place is not None
    assert place.kept.step == 150


def test_in_a_bucket_on_a_volume_and_here(world: Context, plan: Plan) -> None:
    bucketed = run_of(plan, bucket="s3://abc/x")
    say(world, replace(REPORT, kept=(KEPT,)))
    there = find_saved(world, bucketed, SAVED)
    assert there is not None
    assert (there.final, there.at) == (False, inventory.Place(inventory.POD, ""))
    say(world, replace(REPORT, kept=(KEPT,), uploaded=(KEPT,)))
    stored = find_saved(world, bucketed, SAVED)
    assert stored is not None
    assert (stored.final, stored.words) == (True, "s3://abc/x/runs/r-1")
    assert stored.at == inventory.Place(inventory.BUCKET, "s3://abc/x/runs/r-1")
    volume = find_saved(world, run_of(plan, volume=True), SAVED)
    assert volume is not None
    assert (volume.final, volume.words) == (True, "its network volume")
    assert volume.at == inventory.Place(inventory.VOLUME, "")
    folder = copy_here(world)
    local = find_saved(world, run_of(plan, provider="local"), SAVED)
    assert local is not None
    assert (local.final, local.words) == (True, str(folder))
    assert local.at == inventory.Place(inventory.HERE, str(folder))


def test_what_does_not_train_is_refused_and_told_why(world: Context, plan: Plan) -> None:
    run = run_of(plan)
    say(world, REPORT)
    assert why_not_saved(world, run) == ""
    ended = replace(run, state=State.CLOSED, outcome=Outcome.FINISHED)
    assert why_not_saved(world, ended) == "it has ended: finished"
    stopped = replace(run, stop=ev.StopRequested("user", quoted("enough")))
    assert why_not_saved(world, stopped) == "it is stopping, and saves a checkpoint then"
    assert why_not_saved(world, replace(run, state=State.BOOTING)) == "it is booting"
    say(world, replace(REPORT, waiting="installing"))
    assert why_not_saved(world, run) == "its pod is still installing"
    say(world, replace(REPORT, result="finished"))
    assert why_not_saved(world, run) == "it has finished"
    say(world, replace(REPORT, phases=(contract.PhaseReport("fast", contract.PhaseState.ENDED),)))
    assert why_not_saved(world, run) == "no phase is running"


# -- Which source a checkpoint comes from, and what is pruned where -----------------------------


RUN = RunState("r-1", state=State.CLOSED)
DOWN = ProviderError("503")
SILENT = Listing(trouble=LinkError("the pod of r1 does not answer now"), missed="its pod is silent")


class Files:
    def __init__(self, *here: CheckpointManifest) -> None:
        self._here = list(here)

    def manifests(self, run_id: str) -> list[CheckpointManifest]:
        return self._here

    def damaged(self, run_id: str) -> list[tuple[str, str]]:
        return []

    def delete(self, manifest: CheckpointManifest) -> None:
        self._here.remove(manifest)


class Elsewhere(sources.CheckpointSource):
    def __init__(self, name: str, listing: Listing, *, durable: bool) -> None:
        self.name, self.place, self.durable = name, f" in {name}", durable
        self._listing = listing
        self.pruned: list[Pruning] = []

    def _ask(self) -> Listing:
        raise AssertionError("it has its listing")

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Any
    ) -> None:
        Path(into).mkdir(parents=True, exist_ok=True)
        for name in names:
            Path(into, name).write_text(self.name)

    def prune(self, pruning: Pruning) -> None:
        self.pruned.append(pruning)

    def daily_cost(self, pruning: Pruning) -> str:
        return f"{self.name} costs"


def given(
    monkeypatch: pytest.MonkeyPatch,
    *here: CheckpointManifest,
    bucket: Listing | None = None,
    pod: Listing | None = None,
) -> tuple[Context, dict[str, Elsewhere]]:
    class World:
        files = Files(*here)

    world = cast(Context, World())
    more = {"bucket": bucket, "pod": pod}
    made = {
        name: Elsewhere(name, listing, durable=name == "bucket")
        for name, listing in more.items()
        if listing is not None
    }

    def found(context: Context, run: RunState) -> tuple[sources.CheckpointSource, ...]:
        return (sources.LocalSource(context, run), *made.values())

    for module in (fetching, inventory):
        monkeypatch.setattr(module, "sources_of", found)
    return world, made


def test_what_is_here_is_copied_from_here_then_the_bucket_is_asked_then_the_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ten, twenty, thirty = (manifest(step, bpb) for step, bpb in ((10, 3.0), (20, 2.0), (30, 1.0)))
    world, _ = given(
        monkeypatch, ten, bucket=Listing((ten, twenty)), pod=Listing((ten, twenty, thirty))
    )
    for step, name in ((10, ""), (20, "bucket"), (30, "pod")):
        assert fetching.find_best(world, RUN, step=step).source.name == name
    best = fetching.find_best(world, RUN)
    assert (best.manifest.step, best.source.name, best.missed) == (30, "pod", ())


def test_a_metric_that_only_the_pod_knows_makes_the_copy_here_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early, other = manifest(10, None), manifest(20, 2.0)
    world, _ = given(monkeypatch, early, other, pod=Listing((replace(early, val_bpb=1.0),)))
    best = fetching.find_best(world, RUN)
    assert (best.manifest.step, best.manifest.val_bpb, best.source.name) == (10, 1.0, "")


def test_a_place_that_cannot_be_asked_is_told_of_and_is_fatal_where_there_is_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ten = manifest(10, 1.0)
    down = Listing(trouble=DOWN, missed="503; without it")
    world, _ = given(monkeypatch, ten, bucket=down, pod=SILENT)
    assert fetching.find_best(world, RUN).missed == ("503; without it",)
    world, _ = given(monkeypatch, ten, pod=SILENT)
    assert fetching.find_best(world, RUN).missed == ("its pod is silent",)
    world, _ = given(monkeypatch, bucket=down, pod=Listing((ten,)))
    assert fetching.find_best(world, RUN).source.name == "pod"
    world, _ = given(monkeypatch, bucket=down)
    with pytest.raises(ProviderError, match="503"):
        fetching.find_best(world, RUN)
    world, _ = given(monkeypatch, pod=SILENT)
    with pytest.raises(NotFoundError):
        fetching.find_best(world, RUN)


def test_every_place_is_pruned_by_what_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    three = tuple(manifest(step, bpb) for step, bpb in ((10, 1.0), (20, 3.0), (30, 2.0)))
    world, made = given(monkeypatch, *three, bucket=Listing(three), pod=Listing(three[2:]))
    here, stored, there = planned = inventory.plan_pruning(world, RUN, 1)
    assert [m.step for m in here.pruning.checkpoints] == [20]
    assert there.empty
    assert not stored.empty
    inventory.prune(planned)
    assert [m.step for m in world.files.manifests("r-1")] == [10, 30]
    assert made["bucket"].pruned == [stored.pruning]
    assert made["pod"].pruned == [], "there is nothing to do"


def test_nothing_is_pruned_of_a_run_that_does_so_itself_or_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ten = manifest(10, 1.0)
    live = replace(RUN, state=State.RUNNING)
    world, _ = given(monkeypatch, ten)
    with pytest.raises(ConflictError, match="prunes automatically"):
        inventory.plan_pruning(world, live, None)
    world, _ = given(monkeypatch, ten, pod=SILENT)
    with pytest.raises(LinkError, match="does not answer now"):
        inventory.plan_pruning(world, live, None)


# -- A checkpoint in shards comes home as single files, or not at all ---------------------------


ROWS = 10
SPANS = ((0, 4), (4, 8), (8, 10))
"""Of three ranks, the last with fewer."""


def row(name: str, number: int, columns: int) -> bytes:
    return hashlib.sha256(f"{name} {number}".encode()).digest()[:4] * columns


def shard_bytes(
    tensors: Mapping[str, tuple[int, int]], span: tuple[int, int], *, first: bool
) -> bytes:
    """Those rows of each tensor that one rank holds; ``tensors``: (rows, columns) by name. The
    first has a counter, too."""
    parts, data, at = [], b"", 0
    for name, (rows, columns) in tensors.items():
        start, stop = min(span[0], rows), min(span[1], rows)
        here = b"".join(row(name, number, columns) for number in range(start, stop))
        shape, whole = (stop - start, columns), (rows, columns)
        parts.append(shards.Part(name, "F32", shape, at, at + len(here), start, whole))
        data, at = data + here, at + len(here)
    if first:
        parts.append(shards.Part("count", "F32", (), at, at + 4, 0, ()))
        data += b"\x01\x02\x03\x04"
    return shards.header_bytes(parts, is_shard=True) + data


TENSORS = {"w": (ROWS, 3), "thin": (2, 5), "v": (ROWS, 1)}


def sharded(folder: Path, *, optimizer: bool = True, columns: int = 3) -> CheckpointManifest:
    """A checkpoint of three shards of each kind in ``folder``."""
    folder.mkdir(parents=True)
    files = []
    tensors = {**TENSORS, "w": (ROWS, columns)}
    for kind in ("weights", "optimizer") if optimizer else ("weights",):
        for number, span in enumerate(SPANS, 1):
            name = shard_name(kind, number, len(SPANS))
            content = shard_bytes(tensors, span, first=number == 1)
            (folder / name).write_bytes(content)
            files.append(described(folder / name, kind))
    (folder / "tokenizer.json").write_text("{}")
    files.append(described(folder / "tokenizer.json", "tokenizer"))
    made = replace(manifest(10), files=tuple(files))
    (folder / mf.MANIFEST_NAME).write_text(mf.to_json(made))
    return made


def described(path: Path, kind: str) -> CheckpointFile:
    content = path.read_bytes()
    return CheckpointFile(path.name, kind, len(content), hashlib.sha256(content).hexdigest())


def source_in(folder: Path) -> Any:
    def bring(made: CheckpointManifest, names: Sequence[str], into: str, progress: Any) -> None:
        target = Path(into)
        target.mkdir(exist_ok=True)
        for file in made.files:
            if file.name not in names:
                continue
            content = (folder / file.name).read_bytes()
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise CheckpointError(f"{file.name} is damaged")
            (target / file.name).write_bytes(content)

    return bring


def fetched(folder: Path, into: Path, made: CheckpointManifest, **how: bool) -> Any:
    how = {"weights_only": False, **how}
    return copy(source_in(folder), made, into, progress=lambda done, whole: None, **how)


def values(path: Path, name: str) -> bytes:
    with open(path, "rb") as file:
        header = shards.read_header(file.read, path.stat().st_size, str(path))
        [part] = [part for part in header.parts if part.name == name]
        assert part.shape == part.whole, "it is no shard"
        file.seek(header.data_at + part.begin)
        return file.read(part.end - part.begin)


def test_shards_come_home_as_one_file_of_each_kind(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    got = fetched(tmp_path / "there", tmp_path / "home", made)
    assert sorted(os.listdir(tmp_path / "home")) == [
        "manifest.json", "optimizer.safetensors", "tokenizer.json", "weights.safetensors",
    ]  # fmt: skip
    for name, (rows, columns) in TENSORS.items():
        whole = b"".join(row(name, number, columns) for number in range(rows))
        assert values(tmp_path / "home" / "weights.safetensors", name) == whole
    assert values(tmp_path / "home" / "weights.safetensors", "count") == b"\x01\x02\x03\x04"
    there = read_manifest(tmp_path / "home")
    assert there == got.manifest
    assert not there.is_sharded
    assert made.sha256 in there.sha256s
    for file in there.files:
        assert matches_hash(tmp_path / "home" / file.name, file.size_bytes, file.sha256)
    assert sound_file(tmp_path / "home", "weights") == tmp_path / "home" / "weights.safetensors"


def test_what_is_there_is_known_again_and_not_fetched_twice(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    first = fetched(tmp_path / "there", tmp_path / "home", made)
    again = copy(
        lambda *_: pytest.fail("nothing is to be brought"),
        made,
        tmp_path / "home",
        weights_only=False,
        progress=lambda done, whole: None,
    )
    assert again.already_there
    assert again.manifest == first.manifest
    (tmp_path / "home" / "weights.safetensors").write_bytes(b"other")
    with pytest.raises(ConflictError, match="no complete weights"):
        fetched(tmp_path / "there", tmp_path / "home", made)


def test_weights_alone_do_not_pass_for_all_of_it(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    fetched(tmp_path / "there", tmp_path / "home", made, weights_only=True)
    assert "optimizer.safetensors" not in os.listdir(tmp_path / "home")
    with pytest.raises(ConflictError, match="no complete optimizer"):
        fetched(tmp_path / "there", tmp_path / "home", made)


def test_it_is_never_whole_in_memory(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there", optimizer=False, columns=1_500_000)
    assert made.size_bytes > 55_000_000
    tracemalloc.start()
    try:
        fetching.gather_shards(tmp_path / "there", made)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < made.size_bytes / 4


def test_an_interrupted_copy_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sharded(tmp_path / "there")
    written = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            fetched(tmp_path / "there", tmp_path / "home", made)
    partial = tmp_path / "home.partial"
    assert not (tmp_path / "home").exists()
    assert {file.name for file in made.files} <= set(os.listdir(partial)), "the shards are kept"
    assert not any(name.startswith(".gathering") for name in os.listdir(partial))
    assert not fetched(tmp_path / "there", tmp_path / "home", made).already_there
    assert not partial.exists()


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        (((0, 4), (4, 8), (9, 10)), "misses rows at 8 of 10"),
        (((0, 4), (3, 8), (8, 10)), "has rows twice at 3 of 10"),
        (((0, 4), (4, 8), (8, 8)), "has 8 rows of 10"),
    ],
)
def test_shards_that_do_not_make_up_whole_tensors_are_refused(
    tmp_path: Path, spans: tuple[tuple[int, int], ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "SPANS", spans)
    made = sharded(tmp_path / "there")
    with pytest.raises(CheckpointError, match=f"cannot be combined: v {why}"):
        fetched(tmp_path / "there", tmp_path / "home", made)
    assert not (tmp_path / "home").exists()


def test_a_shard_of_another_model_is_refused(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    last = tmp_path / "there" / shard_name("weights", 3, 3)
    other = {name: (rows, columns + 1) for name, (rows, columns) in TENSORS.items()}
    last.write_bytes(shard_bytes(other, SPANS[2], first=False))
    files = [described(last, "weights") if f.name == last.name else f for f in made.files]
    with pytest.raises(CheckpointError, match="another shape or number format in another shard"):
        fetched(tmp_path / "there", tmp_path / "home", replace(made, files=tuple(files)))


def test_a_shard_that_is_half_there_is_refused(tmp_path: Path) -> None:
    made = sharded(tmp_path / "there")
    half = tmp_path / "there" / shard_name("weights", 2, 3)
    half.write_bytes(half.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=r"weights-00002-of-00003\.safetensors is damaged"):
        fetched(tmp_path / "there", tmp_path / "home", made)
    files = [described(half, "weights") if f.name == half.name else f for f in made.files]
    with pytest.raises(CheckpointError, match="its header says"):
        fetched(tmp_path / "there", tmp_path / "home", replace(made, files=tuple(files)))


@pytest.mark.parametrize("gone", [1, 3])
def test_a_manifest_that_lacks_a_shard_is_no_checkpoint(tmp_path: Path, gone: int) -> None:
    made = sharded(tmp_path / "there")
    name = shard_name("weights", gone, 3)
    lacking = replace(made, files=tuple(file for file in made.files if file.name != name))
    with pytest.raises(CheckpointError, match="nor every shard"):
        mf.from_json(mf.to_json(lacking), "here")


def test_one_that_is_whole_stays_as_it_is(tmp_path: Path) -> None:
    made = manifest(10)
    assert fetching.gather_shards(tmp_path, made) is made


def test_a_manifest_of_another_run_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run's name is the beginning of the folder that is made."""
    theirs = replace(manifest(10, 1.0), run_id="setup.py")
    world, _ = given(monkeypatch, bucket=Listing((theirs,)))
    with pytest.raises(CheckpointError, match=r"its manifest is of setup\.py, not r-1"):
        fetching.find_best(world, RUN)


# -- from a volume ------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
def test_checkpoints_come_from_a_volume_once_its_pod_is_gone_and_the_price_is_agreed_to(
    monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    state = State.RUNNING if live else State.CLOSED
    run, gone, here = replace(RUN, state=state), replace(RUN, state=State.CLOSED), replace(RUN)
    happened: list[str] = []

    def did(name: str, result: Any = None) -> Any:
        def call(*_: Any) -> Any:
            happened.append(name)
            return result

        return call

    machine = a_candidate()
    monkeypatch.setattr(short_rentals, "is_needed", lambda *_: True)
    monkeypatch.setattr(checkpoint_requests, "follow_or_drive", did("follow", gone))
    monkeypatch.setattr(short_rentals, "errand_for", did("price", machine))
    monkeypatch.setattr(short_rentals, "carry_out", did("rent", here))
    context = cast(Context, SimpleNamespace(wall=lambda: 0.0))
    bring = partial(
        checkpoint_requests.bring_from_volume, context, run,
        offers=lambda now: ((), Usd(0)), waits=did("wait"),
    )  # fmt: skip
    before = ["wait", "follow", "price"] if live else ["price"]
    assert bring(agree=did("agree")).run is here
    assert happened == [*before, "agree", "rent"]

    def refuse(run_id: str, candidate: Candidate) -> None:
        assert (run_id, candidate) == (RUN.run_id, machine)
        raise UsageError("too dear")

    happened.clear()
    with pytest.raises(UsageError, match="too dear"):
        bring(agree=refuse)
    assert happened == before
