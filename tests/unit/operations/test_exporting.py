"""Where an exported checkpoint comes from, and what its model card says of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoints import a_manifest, checkpoint, whole_checkpoint
from tests.plans import a_candidate, a_generation, plan_json
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import ConflictError, LinkError, NotSupported
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import RecordedPlan
from trmcloud.operations.checkpoints import exporting
from trmcloud.operations.checkpoints.fetching import BestCheckpoint
from trmcloud.operations.checkpoints.sources import LocalSource
from trmcloud.operations.context import Context
from trmcloud.ports.machine import Progress
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

RUN = RunState("r1")
TEXTS = DataSet("texts", "Texts", "parquet", licence="MIT", page="https://texts.example")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    return build_context()


class Elsewhere(LocalSource):
    """A folder that stands for another machine; ``is_down``: it breaks off after the first file."""

    folder: Path
    is_down = False

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Progress
    ) -> None:
        Path(into).mkdir(exist_ok=True)
        for name in names:
            shutil.copyfile(self.folder / name, Path(into) / name)
            if self.is_down:
                raise LinkError("the connection broke")


def _elsewhere(world: Context, tmp_path: Path) -> tuple[BestCheckpoint, Elsewhere]:
    folder = tmp_path / "elsewhere"
    made = checkpoint(folder, 10, 1.5, kinds=("weights", "optimizer"))
    source = Elsewhere(world, RUN)
    source.folder = folder
    return BestCheckpoint(made, source), source


def nothing(done: int, total: int) -> None:
    """Progress that is not shown."""


def test_a_checkpoint_of_this_home_is_used_where_it_is(world: Context, tmp_path: Path) -> None:
    folder, made = whole_checkpoint(world.home, 10, 1.5)
    best = BestCheckpoint(made, LocalSource(world, RUN))
    with exporting.at_hand(world, RUN, best, tmp_path / "out", nothing) as found:
        assert found == folder
    assert folder.is_dir()


@pytest.mark.parametrize("fails", [False, True])
def test_one_from_elsewhere_is_copied_without_its_optimizer_and_goes_at_the_end(
    fails: bool, world: Context, tmp_path: Path
) -> None:
    best, _ = _elsewhere(world, tmp_path)
    seen: list[set[str]] = []

    def use() -> None:
        with exporting.at_hand(world, RUN, best, tmp_path / "out", nothing) as found:
            seen.append({path.name for path in found.iterdir()})
            if fails:
                raise NotSupported("no")

    if fails:
        with pytest.raises(NotSupported):
            use()
    else:
        use()
    assert seen == [{"weights.safetensors", mf.MANIFEST_NAME}]
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere"}


def test_a_filled_target_is_refused_before_anything_is_downloaded(
    world: Context, tmp_path: Path
) -> None:
    best, source = _elsewhere(world, tmp_path)
    source.is_down = True
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with (
        pytest.raises(ConflictError, match="not empty"),
        exporting.at_hand(world, RUN, best, tmp_path / "out", nothing),
    ):
        pass


def test_what_a_broken_download_brought_is_kept_for_the_next_try(
    world: Context, tmp_path: Path
) -> None:
    best, source = _elsewhere(world, tmp_path)
    source.is_down = True
    with (
        pytest.raises(LinkError),
        exporting.at_hand(world, RUN, best, tmp_path / "out", nothing),
    ):
        pass
    assert [path.name for path in (tmp_path / ".out.checkpoint.partial").iterdir()]
    source.is_down = False
    with exporting.at_hand(world, RUN, best, tmp_path / "out", nothing) as found:
        assert (found / "weights.safetensors").exists()


def test_a_command_is_refused() -> None:
    with pytest.raises(NotSupported, match="format of its own script"):
        exporting.check_exportable(a_manifest(recipe=RECIPE))
    exporting.check_exportable(a_manifest())


def test_the_card_names_plan_machine_bill_and_licence(world: Context) -> None:
    plan = plan_json(a_candidate("1xH100 spot"), data="texts")
    generation = replace(a_generation(candidate_id="1xH100 spot"), settled=Usd("1.25"))
    run = RunState(
        "r1", recorded_plan=RecordedPlan(plan), cap=Usd(10), settled=Usd("1.25"),
        state=State.CLOSED, generations=(generation,),
    )  # fmt: skip

    def named(name: str) -> DataSet | None:
        return TEXTS if name == "texts" else None

    rows = dict(exporting.facts(world, run, a_manifest(), named))
    assert rows["data"] == "texts, licence MIT, https://texts.example"
    assert rows["plan"] == "p-0001, at most $10.00"
    assert rows["machine"] == "1xH100, runpod"
    assert rows["bill so far"] == "$1.25, not final"
    billed = replace(run, generations=(replace(generation, billed=Usd("1.20")),))
    rows = dict(exporting.facts(world, billed, a_manifest(), named))
    assert rows["bill"] == "$1.20, final"


def test_data_that_this_home_does_not_know_is_not_taken_from_the_recipe(world: Context) -> None:
    made = a_manifest(settings={"data": "texts"})
    rows = exporting.facts(world, None, made, lambda name: TEXTS if name == "texts" else None)
    assert rows == [("data", "not known here, licence not known")]
    known = build_planner().inputs.data_source("fineweb-edu").data_set
    assert known is not None
    data = {"source": known.name, "data_set": known.to_json(), "hosts": []}
    note = {"data_dir": "", "initial_weights": "", "data": data}
    folder = world.home / "runs" / "r1"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text(json.dumps(note))
    [(_, text)] = exporting.facts(world, None, made, lambda name: None)
    assert text.startswith("fineweb-edu, licence ODC-By 1.0")
