"""Every token once an epoch, every document begun once, whatever the ranks and the arrivals."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.data.feed import FAILED, READY, WAITING, Feed
from model.data.folder import open_data
from model.data.order import batch_samples, permuted
from model.data.packing import AT_HAND, document_starts, pack
from model.machine.distributed import World
from tests.model.growing import BOS, HandMade, complete
from trmcloud.core.spec.settings import PhaseRecipe

CPU = torch.device("cpu")
SIZES = (1000, 37, 5, 2500, 1, 801)
"""Tokens of each shard; some are shorter than a row."""


def numbered(sizes: tuple[int, ...] = SIZES) -> list[list[int]]:
    """Shards whose every id is another one, so that each token can be told from all others."""
    ends = np.cumsum(sizes)
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def samples_read(
    folder: Path, settings: PhaseRecipe, ranks: int, steps: int, resumed_at: tuple[int, ...] = ()
) -> dict[int, list[int]]:
    """The row of every sample of a run of so many steps, begun anew at each of ``resumed_at``."""
    rows: dict[int, list[int]] = {}
    for rank in range(ranks):
        world = World(rank, ranks, CPU)
        whole = settings.global_batch(ranks)
        feed = Feed(open_data(folder), settings, world, 0)
        for step in range(steps):
            if step in resumed_at:
                feed.close()
                feed = Feed(open_data(folder), settings, world, step * whole)
            assert feed.state() == READY
            for micro in range(settings.accumulation):
                inputs, targets, _ = feed.batch()
                assert torch.equal(inputs[:, 1:], targets[:, :-1])
                numbers = batch_samples(step * whole, micro, rank, ranks, settings.batch)
                for number, row, last in zip(numbers, inputs, targets[:, -1:], strict=True):
                    assert number not in rows, "no two ranks read the same sample"
                    rows[number] = [*row.tolist(), int(last)]
        feed.close()
    return rows


@pytest.fixture
def small(settings: PhaseRecipe) -> PhaseRecipe:
    return replace(settings, sequence=16, batch=2, accumulation=2)


def test_three_ranks_and_a_resume_stream_every_token_once_an_epoch(
    small: PhaseRecipe, tmp_path: Path
) -> None:
    folder = complete(tmp_path / "d", numbered())
    rows = samples_read(folder, small, ranks=3, steps=50, resumed_at=(7, 23, 31))
    total = sum(SIZES)
    an_epoch = (total - 1) // 16
    assert len(rows) == 50 * 12 > 2 * an_epoch
    orders = []
    for epoch in range(2):
        own = [rows[number] for number in range(epoch * an_epoch, (epoch + 1) * an_epoch)]
        orders.append([row[0] for row in own])
        read = Counter(token for row in own for token in row[:-1])
        assert set(read.values()) == {1}
        assert set(range(total)) - set(read) == set(range(an_epoch * 16, total))
        assert len(set(range(total)) - set(read)) <= 16, "the last window is not whole"
    assert orders[0] != orders[1], "each epoch has its own order"
    assert sorted(orders[0]) != orders[0]


def test_a_run_reads_the_same_however_it_was_cut_and_read_ahead(
    small: PhaseRecipe, tmp_path: Path
) -> None:
    folder = complete(tmp_path / "d", numbered())
    plain = samples_read(folder, replace(small, loader_workers=0), ranks=3, steps=50)
    for workers, cuts in ((1, ()), (4, (1, 2, 30))):
        made = replace(small, loader_workers=workers)
        assert samples_read(folder, made, ranks=3, steps=50, resumed_at=cuts) == plain


def test_one_shard_is_read_in_the_order_it_always_was(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = complete(tmp_path / "d", numbered((1000,)))
    rows = samples_read(folder, small, ranks=1, steps=30)
    windows = 999 // 16
    for number, row in rows.items():
        start = permuted(number % windows, windows, small.seed, number // windows) * 16
        assert row == list(range(start, start + 17))


@pytest.mark.parametrize("kind", ["stream", "bestfit"])
def test_the_order_does_not_ask_when_a_shard_came(
    small: PhaseRecipe, tmp_path: Path, kind: str
) -> None:
    settings = replace(small, rows=kind)
    shards = numbered((500, 300, 400))
    whole = samples_read(complete(tmp_path / "whole", shards), settings, ranks=1, steps=30)
    folder = HandMade(tmp_path / "slow")
    folder.add(shards[0])
    folder.begin()
    feed = Feed(open_data(folder.path), settings, World(0, 1, CPU), 0)
    read: dict[int, list[int]] = {}
    waits = 0
    for step in range(30):
        while (state := feed.state()) != READY:
            assert state == WAITING
            waits += 1
            assert waits < 10
            if len(folder.shards) < 3:
                folder.add(shards[len(folder.shards)])
            else:
                folder.finish()
        for micro in range(2):
            inputs, targets, _ = feed.batch()
            for number, row, last in zip(
                batch_samples(step * 4, micro, 0, 1, 2), inputs, targets[:, -1:], strict=True
            ):
                read[number] = [*row.tolist(), int(last)]
    assert waits == 3, "for two shards, and for the word that no further one comes"
    assert read == whole


def documents(seed: int, count: int, longest: int) -> list[int]:
    chosen = np.random.default_rng(seed)
    ids: list[int] = []
    for length in chosen.integers(0, longest, count):
        ids += [BOS, *chosen.integers(0, BOS, length).tolist()]
    return ids


def test_three_ranks_and_a_resume_begin_every_document_once_an_epoch(
    small: PhaseRecipe, tmp_path: Path
) -> None:
    settings = replace(small, rows="bestfit")
    shards = [documents(seed, 300, 30) for seed in range(3)]
    folder = complete(tmp_path / "d", shards)
    rows = samples_read(folder, settings, ranks=3, steps=200, resumed_at=(5, 61))
    beginnings = sum(ids.count(BOS) for ids in shards)
    an_epoch = sum(pack(document_starts(np.array(ids), BOS), len(ids), 17).count for ids in shards)
    assert len(rows) > 2 * an_epoch
    for epoch in range(2):
        own = [rows[number] for number in range(epoch * an_epoch, (epoch + 1) * an_epoch)]
        assert all(row[0] == BOS for row in own), "every row begins with a document"
        assert sum(row.count(BOS) for row in own) == beginnings


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80),
    capacity=st.integers(2, 33),
)
def test_packing_begins_each_document_once_and_fills_every_row(
    lengths: list[int], capacity: int
) -> None:
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int64)
    total = sum(lengths)
    packed = pack(starts, total, capacity)
    begun: Counter[int] = Counter()
    for row in range(packed.count):
        pieces = list(packed.pieces(row))
        assert sum(length for _, length in pieces) == capacity, "full, and nothing is padded"
        assert pieces[0][0] in starts
        begun.update(start for start, _ in pieces if start in starts)
        assert all(start >= 0 and start + length <= total for start, length in pieces)
    assert set(begun.values()) <= {1}
    if total > capacity and any(length > 1 for length in lengths):
        assert set(begun) == set(starts.tolist())


def naive_rows(lengths: list[int], capacity: int) -> list[list[tuple[int, int]]]:
    """The rule in a few lines, slowly: whole rows only, without the filling up of the last one."""
    coming, hand = list(enumerate(lengths)), list[tuple[int, int]]()
    rows, row, left = list[list[tuple[int, int]]](), list[tuple[int, int]](), capacity
    while coming or hand:
        while coming and len(hand) < AT_HAND:
            hand.append(coming.pop(0))
        fitting = [each for each in hand if each[1] <= left]
        best = (
            max(fitting, key=lambda each: (each[1], -each[0]))
            if fitting
            else min(hand, key=lambda each: (each[1], each[0]))
        )
        hand.remove(best)
        row.append((best[0], min(best[1], left)))
        left -= row[-1][1]
        if left == 0:
            rows.append(row)
            row, left = [], capacity
    return rows


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=60), capacity=st.integers(2, 33))
def test_packing_is_best_fit(lengths: list[int], capacity: int) -> None:
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int64)
    packed = pack(starts, sum(lengths), capacity)
    number_of = {int(start): number for number, start in enumerate(starts)}
    slow = naive_rows(lengths, capacity)
    fast = [
        [(number_of[start], length) for start, length in packed.pieces(row)]
        for row in range(len(slow))
    ]
    assert fast == slow
    assert packed.count - len(slow) in (0, 1)


def test_a_failed_preparation_is_told_by_its_own_words(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = HandMade(tmp_path / "d")
    folder.add(numbered((200,))[0])
    folder.begin()
    feed = Feed(open_data(folder.path), small, World(0, 1, CPU), 0)
    for _ in range(2):
        assert feed.state() == READY
        feed.batch(), feed.batch()
    folder.tell("failed", message="shard_00001.parquet is not there", next_step="look")
    assert feed.state() == READY, "what is there is trained on first"
    feed.batch(), feed.batch()
    assert feed.state() == FAILED
    assert feed.problem is not None
    assert feed.problem.what == "shard_00001.parquet is not there"


@pytest.mark.parametrize("how", ["killed", "silent", "stopped"])
def test_a_preparer_that_is_gone_is_not_waited_for(
    small: PhaseRecipe, tmp_path: Path, how: str
) -> None:
    folder = HandMade(tmp_path / "d")
    folder.add(numbered((20,))[0])
    folder.begin()
    now = [0.0]
    feed = Feed(
        open_data(folder.path), small, World(0, 1, CPU), 0,
        epoch=lambda: time.time() + now[0], monotonic=lambda: now[0],
    )  # fmt: skip
    assert feed.state() == WAITING
    if how == "killed":
        folder.tell(pid=2**22 + 1)
    elif how == "stopped":
        folder.tell("stopped")
    else:
        now[0] = 121.0
    assert feed.state() == WAITING, "its agent may start it again"
    now[0] += 31.0
    assert feed.state() == FAILED
    assert feed.problem is not None
    assert "nobody prepares it any more" in feed.problem.what


def test_other_shards_than_the_checkpoints_are_refused(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = HandMade(tmp_path / "d")
    folder.add(numbered((200,))[0])
    folder.begin()
    feed = Feed(open_data(folder.path), small, World(0, 1, CPU), 100)
    feed.expect((folder.shards[0].sha256, "of another one"))
    assert feed.state() == WAITING
    folder.add(numbered((300,))[0])
    assert feed.state() == FAILED
    assert feed.problem is not None
    assert "shard 1 (s1) is not the one that the checkpoint read" in feed.problem.what


def test_a_cut_line_is_not_yet_a_shard(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = HandMade(tmp_path / "d")
    folder.add(numbered((200,))[0])
    folder.begin()
    path = folder.path / "shards.jsonl"
    line = path.read_text()
    path.write_text(line[:50])
    feed = Feed(open_data(folder.path), small, World(0, 1, CPU), 0)
    assert feed.state() == WAITING
    path.write_text(line)
    assert feed.state() == READY
