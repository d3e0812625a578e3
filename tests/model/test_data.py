"""Which window is read when: a pure function, a permutation, and no rank reads another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.folder import open_data
from model.data.order import Order, batch_samples, permuted, read_windows, window_count
from trmcloud.core.errors import DataError


@given(size=st.integers(1, 300), seed=st.integers(0, 2**31), epoch=st.integers(0, 1000))
def test_every_window_is_read_once_an_epoch(size: int, seed: int, epoch: int) -> None:
    order = Order(seed)
    order.add(size)
    order.finish()
    samples = range(epoch * size, (epoch + 1) * size)
    read = [order.place(sample) for sample in samples]
    assert sorted(place.row for place in read) == list(range(size))
    assert {place.block for place in read} == {0}
    # The very order of a single file has never changed: runs of long ago are resumed in it.
    assert [place.row for place in read] == [permuted(i, size, seed, epoch) for i in range(size)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(permuted(i, 100, seed, epoch) for i in range(100))
        for seed in (1, 2)
        for epoch in range(3)
    ]
    assert len(set(orders)) == 6
    in_place = sum(order[i] == i for order in orders for i in range(100))
    assert in_place < 30, "about one in a hundred stays where it was"


@given(
    first=st.integers(0, 10**6),
    batch=st.integers(1, 8),
    accumulation=st.integers(1, 4),
    world_size=st.integers(1, 8),
)
def test_ranks_share_a_step_without_overlap_or_gap(
    first: int, batch: int, accumulation: int, world_size: int
) -> None:
    taken = [
        sample
        for micro in range(accumulation)
        for rank in range(world_size)
        for sample in batch_samples(first, micro, rank, world_size, batch)
    ]
    assert taken == list(range(first, first + batch * accumulation * world_size))


def test_the_same_samples_whatever_the_split() -> None:
    """2 micro-batches of 3 on 2 ranks read what 1 of 12 on 1 rank reads."""
    split = [s for m in range(2) for r in range(2) for s in batch_samples(24, m, r, 2, 3)]
    assert sorted(split) == list(batch_samples(24, 0, 0, 1, 12))


def test_windows_are_inputs_and_targets_shifted_by_one() -> None:
    tokens = np.arange(100, 121, dtype=np.uint16)
    assert window_count(21, 5) == 4
    assert window_count(20, 5) == 3
    read = read_windows(tokens, [3, 0], 5)
    assert read.tolist() == [[115, 116, 117, 118, 119, 120], [100, 101, 102, 103, 104, 105]]


def test_prepared_data_is_read_as_written(data_dir: Path) -> None:
    data = open_data(data_dir)
    train = np.fromfile(data_dir / "train.bin", data.dtype)
    assert len(train) == data.meta["train_tokens"]
    assert data.dtype == np.dtype("<u2")
    assert int(train[0]) == data.tokenizer.bos
    assert train.max() < data.tokenizer.vocab_size


@pytest.mark.parametrize("fault", ["no meta", "cut", "version", "no tokenizer", "json"])
def test_damaged_data_is_refused(data_dir: Path, tmp_path: Path, fault: str) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data_dir, copy)
    meta = copy / "meta.json"
    if fault == "no meta":
        meta.unlink()
    elif fault == "cut":
        (copy / "train.bin").write_bytes((copy / "train.bin").read_bytes()[:-2])
    elif fault == "version":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "version": 99}))
    elif fault == "no tokenizer":
        (copy / "tokenizer.json").unlink()
    else:
        meta.write_text("{")
    with pytest.raises(DataError) as caught:
        open_data(copy)
    assert caught.value.next_step == "prepare the data again"
