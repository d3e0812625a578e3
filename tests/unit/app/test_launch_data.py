"""From a launch's data to what a pod is told: brought folders, and data that is made there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.adapters.files.data_sets import load_data_set, source_of
from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.app.pod_request import (
    SEND_WITHIN_S,
    LaunchData,
    disk_gb,
    pod_request,
    read_launch_note,
    tokens_of,
    write_launch_note,
)
from trmcloud.app.staging.stage import stage_items
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.core.control.reason import ReasonKind, because
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.errors import ProviderRefused
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.data_source import growing_key
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.core.spec.recipe import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.ports.bucket import CacheRequest
from trmcloud.ports.compute import PodRequest

NOW = 1_795_000_000.0
RUN = RunState("r-1", epoch=1)
MADE = LaunchData(source=source_of("fineweb-edu"), hosts="huggingface.co=http://127.0.0.1:1")


class Files:
    """What is here of the run's checkpoints."""

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
) -> PodRequest:
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
            read=lambda: SimpleNamespace(runs={RUN.run_id: SimpleNamespace(generation=recorded)})
        ),
        notes={"r-1": note},
        files=files or Files(),
        folder_on_pod=lambda kind, folder: f"{contract.POD_ROOT}/{kind}/{folder.name}",
    )
    return pod_request(cast(Any, world), RUN, plan, generation, 1, Instant(NOW, 500.0, "boot-1"))


def test_a_note_says_again_what_was_launched(tmp_path: Path) -> None:
    for data in (LaunchData("/some/folder"), MADE):
        home = cast(Any, SimpleNamespace(home=tmp_path, notes=None))
        write_launch_note(home, "r-1", data=data, initial_weights="")
        assert LaunchData.of_note(read_launch_note(tmp_path, "r-1")) == data


def test_a_note_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r-1" / "launch.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"data_dir": "/data", "initial_weights": ""}))
    assert LaunchData.of_note(read_launch_note(tmp_path, "r-1")) == LaunchData("/data")


def test_it_is_too_late_by_the_clock_that_nobody_sets() -> None:
    clock = SimpleNamespace()
    asked = asked_for(LaunchData("/some/folder"), clock=clock, recorded=AWAITED)
    clock.now = lambda: Instant(NOW - 86_400.0, 500.0 + SEND_WITHIN_S, "boot-1")
    asked.require_wanted()
    clock.now = lambda: Instant(NOW - 86_400.0, 510.0 + SEND_WITHIN_S, "boot-1")
    with pytest.raises(ProviderRefused, match="came 10 s too late to be sent"):
        asked.require_wanted()


@pytest.mark.parametrize(
    "recorded",
    [None, replace(AWAITED, number=2), replace(AWAITED, not_made=because(ReasonKind.NO_CANDIDATE))],
)
def test_what_another_one_has_given_up_is_not_asked_for(recorded: Generation | None) -> None:
    clock = SimpleNamespace(now=lambda: Instant(NOW, 500.5, "boot-1"))
    asked = asked_for(LaunchData("/some/folder"), clock=clock, recorded=recorded)
    with pytest.raises(ProviderRefused, match="another one has given it up"):
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
        world = cast(Any, SimpleNamespace(notes={"r-1": note}))
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
