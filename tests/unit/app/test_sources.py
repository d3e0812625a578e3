"""Which source a checkpoint comes from, and what is pruned where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.core.manifests import manifest
from trmcloud.app.checkpoints import fetching, pruning, sources
from trmcloud.app.checkpoints.sources import Listing
from trmcloud.app.context import Context
from trmcloud.core.contract.manifest import CheckpointManifest, Pruning
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import ConflictError, LinkError, NotFoundError, ProviderError

RUN = RunState("r1", state=State.CLOSED)
DOWN = ProviderError("503")
SILENT = Listing(trouble=LinkError("r1's pod does not answer now"), missed="its pod is silent")


class Files:
    def __init__(self, *here: CheckpointManifest) -> None:
        self._here = list(here)

    def manifests(self, run_id: str) -> list[CheckpointManifest]:
        return self._here

    def damaged(self, run_id: str) -> list[tuple[str, str]]:
        return []

    def delete(self, manifest: CheckpointManifest) -> None:
        self._here.remove(manifest)


class Elsewhere:
    def __init__(self, name: str, listing: Listing, *, durable: bool) -> None:
        self.name, self.place, self.durable = name, f" in {name}", durable
        self._listing = listing
        self.pruned: list[Pruning] = []

    def list(self) -> Listing:
        return self._listing

    def fetch(
        self, manifest: CheckpointManifest, names: Sequence[str], into: str, progress: Any
    ) -> None:
        Path(into).mkdir(parents=True, exist_ok=True)
        for name in names:
            Path(into, name).write_text(self.name)

    def dropped(self, pruning: Pruning) -> tuple[CheckpointManifest, ...]:
        return ()

    def freed_bytes(self, pruning: Pruning) -> int:
        return pruning.freed_bytes

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
        return (sources.ThisMachine(context, run), *made.values())

    for module in (fetching, pruning):
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
    here, stored, there = planned = pruning.plan(world, RUN, 1)
    assert [m.step for m in here.pruning.checkpoints] == [20]
    assert there.empty
    assert not stored.empty
    pruning.carry_out(planned)
    assert [m.step for m in world.files.manifests("r1")] == [10, 30]
    assert made["bucket"].pruned == [stored.pruning]
    assert made["pod"].pruned == [], "there is nothing to do"


def test_nothing_is_pruned_of_a_run_that_does_so_itself_or_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ten = manifest(10, 1.0)
    live = replace(RUN, state=State.RUNNING)
    world, _ = given(monkeypatch, ten)
    with pytest.raises(ConflictError, match="prunes by itself"):
        pruning.plan(world, live, None)
    world, _ = given(monkeypatch, ten, pod=SILENT)
    with pytest.raises(LinkError, match="does not answer now"):
        pruning.plan(world, live, None)
