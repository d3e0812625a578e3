"""The trainer's own checkpoint writer, killed at random instants and at each write.

After each kill, whoever looks sees whole checkpoints alone: each manifest's files are there and
have their hashes, no folder without a manifest counts, and the best and the latest of those that
were acknowledged are kept. The next trainer sweeps what was left and goes on.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import torch

from model.machine.tensors import Piece, span_among
from model.training.checkpoint import CheckpointFolder, Contents, read_tensors, verify
from model.training.saver import Job, Route
from tests.crash.killing import Child, pause
from tests.crash.ledger_writer import Violation
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.core.contract import manifest as mf
from trmcloud.core.errors import CheckpointError

RUN, PHASE = "r1", "fast"
KEEP_BEST = 2
SAVES_TO_SWEEP = 4
SAVES_PER_FOLDER = 400
RANKS = 2

torch.set_num_threads(1)  # Before anything is forked: a child has no threads but its own.


def bpb_of(number: int) -> float | None:
    """A course of losses with a best that is not the latest, and gaps."""
    return None if number % 7 == 5 else 1.0 + (number * 37 % 11) / 10


def manifest_of(number: int) -> mf.CheckpointManifest:
    return mf.CheckpointManifest(
        run_id=RUN,
        phase=PHASE,
        step=10 * (number + 1),
        tokens=number,
        created_at=1000.0 + number,
        recipe="test",
        settings={"depth": 1},
        world_size=1,
        val_bpb=bpb_of(number),
        step_losses=(3.0, 2.0),
        cooled=False,
        data_sha256="d",
        tokenizer_sha256="t",
        files=(),
    )


def contents_of(number: int) -> Contents:
    tensor = torch.full((64, 64), float(number))
    return Contents.of({"w": tensor}, {"m.w": -tensor}, {"step": number}, '{"t": 1}')


Save = Callable[[CheckpointFolder, int, mf.CheckpointManifest], None]


def save_whole(checkpoints: CheckpointFolder, number: int, manifest: mf.CheckpointManifest) -> None:
    checkpoints.save(contents_of(number), manifest)


def save_in_shards(
    checkpoints: CheckpointFolder, number: int, manifest: mf.CheckpointManifest
) -> None:
    """Two ranks write beside one another and beside training, then one makes it a checkpoint."""
    making = checkpoints.making(manifest.step)
    checkpoints.begin(making)
    routes = [Route(rank, RANKS, (), None) for rank in range(RANKS)]
    jobs = [Job(partial(route.write, making, shard_of(number, route.rank))) for route in routes]
    for job in jobs:
        done(job)
    files = tuple(file for job in jobs for file in job.made)

    def finish() -> tuple[mf.CheckpointFile, ...]:
        checkpoints.finish(making, replace(manifest, files=files))
        return files

    done(Job(finish))


def done(job: Job) -> None:
    job.wait()
    if job.error is not None:
        raise job.error


def shard_of(number: int, rank: int) -> Contents:
    """The rows of ``contents_of`` that this rank holds."""
    whole, span = contents_of(number), span_among(64, rank, RANKS)
    weights, optimizer = (
        {
            name: Piece(each.tensor[slice(*span)], each.shape, span.start)
            for name, each in of.items()
        }
        for of in (whole.weights, whole.optimizer)
    )
    return replace(whole, weights=weights, optimizer=optimizer)


def write(
    folder: Path,
    start: int,
    end: int | None,
    told: Callable[[], None],
    save: Save = save_whole,
) -> None:
    """As a trainer does: sweep, then save, add the metric and prune, again and again. One that was
    killed before it could add the metric is landed on: it is added then."""
    checkpoints = CheckpointFolder(folder)
    checkpoints.clean()
    if start:
        add_metric(checkpoints, start - 1)
    for number in count(start):
        if number == end:
            return
        early = replace(manifest_of(number), val_bpb=None, step_losses=())
        save(checkpoints, number, early)
        told()
        add_metric(checkpoints, number)
        checkpoints.prune(KEEP_BEST)


def add_metric(checkpoints: CheckpointFolder, number: int) -> None:
    bpb, made = bpb_of(number), manifest_of(number)
    if bpb is not None:
        checkpoints.add_metric(made.step, bpb, made.step_losses)


def check(home: Path, folder: Path, saved: int, acknowledged: int) -> int:
    """How many saves there have been, having read every file; ``saved`` were there at the start.

    Raises:
        Violation: a manifest whose files do not verify, a checkpoint that nobody completed, or
            one that was acknowledged and should be kept, and is not there.
    """
    checkpoints = CheckpointFolder(folder)
    found = {each.manifest.step: each for each in checkpoints.complete()}
    named = {path.parent.name for path in folder.glob("step-*/manifest.json")}
    if named != {mf.step_dir_name(step) for step in found}:
        raise Violation(f"manifests {sorted(named)} and checkpoints {sorted(found)} differ")
    for step, each in found.items():
        try:
            verify(each.folder, each.manifest)
            weights = read_tensors(each.folder, each.manifest, "weights")
            if not torch.equal(weights["w"], contents_of(step // 10 - 1).weights["w"].tensor):
                raise CheckpointError("its weights are those of another step")
        except CheckpointError as error:
            raise Violation(f"{each.folder.name} does not verify: {error}") from None
    listed = {m.step for m in LocalRunFiles(home).manifests(RUN)}
    if listed != set(found):
        raise Violation(f"{sorted(listed)} are listed, {sorted(found)} are there")
    newest = max(found, default=0) // 10
    if not saved + acknowledged <= newest <= saved + acknowledged + 1:
        raise Violation(f"{saved} + {acknowledged} saves acknowledged, the newest is {newest}")
    for step, each in found.items():
        if step < 10 * newest and each.manifest.val_bpb != bpb_of(step // 10 - 1):
            raise Violation(f"step {step} has lost its metric: {each.manifest.val_bpb}")
    # Those that were to be pruned, and were not for a kill, may be there as well.
    if not expected(newest) <= set(found):
        raise Violation(f"{sorted(found)} are left of {newest}, not {sorted(expected(newest))}")
    said: list[str] = []
    latest = checkpoints.latest_sound(said.append)
    if said or (latest.manifest.step if latest else 0) != 10 * newest:
        raise Violation(f"the latest sound one is {latest and latest.folder.name}: {said}")
    return newest


def expected(saves: int) -> set[int]:
    """The steps that are kept after so many saves, each pruned after."""
    kept: list[mf.CheckpointManifest] = []
    for number in range(saves):
        kept = list(mf.to_prune([*kept, manifest_of(number)], KEEP_BEST).kept)
    return {manifest.step for manifest in kept}


class AtRandom:
    """A trainer saves and prunes; it is killed at a random instant, and another goes on."""

    kills_per_round = 1
    save = staticmethod(save_whole)

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._home = folder / type(self).__name__
        self._folder = self._home / "runs" / RUN / PHASE / "checkpoints"
        self._rng = rng
        self._saved = 0

    def round(self) -> int:
        if self._saved > SAVES_PER_FOLDER or self._saved == 0:
            shutil.rmtree(self._home, ignore_errors=True)
            self._saved = 0
        start = self._saved
        child = Child(lambda told: write(self._folder, start, None, told, self.save))
        if self._rng.random() < 0.6:
            child.wait_for_first()
        pause(self._rng.uniform(0, self._rng.choice((0.0005, 0.003, 0.01))))
        killed = child.kill()
        self._saved = check(self._home, self._folder, start, child.acknowledged)
        return int(killed)


class ShardsAtRandom(AtRandom):
    """The same of a trainer whose ranks write shards, beside training."""

    save = staticmethod(save_in_shards)


class AtEachWrite:
    """Saves from nothing, killed as the trainer is about to write for the n-th time."""

    kills_per_round = 1

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._home = folder / "checkpoints-each"
        self._number = 0
        self.writes = 0

    def round(self) -> int:
        shutil.rmtree(self._home, ignore_errors=True)
        folder = self._home / "runs" / RUN / PHASE / "checkpoints"
        self._number += 1
        child = Child(lambda told: write(folder, 0, SAVES_TO_SWEEP, told), traced=True)
        killed = child.kill_at_write(self._number)
        saved = check(self._home, folder, 0, child.acknowledged)
        write(folder, saved, SAVES_TO_SWEEP + 1, lambda: None)
        if check(self._home, folder, SAVES_TO_SWEEP, 1) != SAVES_TO_SWEEP + 1:
            raise Violation("the next trainer did not come to the end")
        left = {entry.name for entry in folder.iterdir()}
        if left != {mf.step_dir_name(step) for step in expected(SAVES_TO_SWEEP + 1)}:
            raise Violation(f"folders are left over: {sorted(left)}")
        if not killed:
            self.writes, self._number = self._number - 1, 0
        return int(killed)
