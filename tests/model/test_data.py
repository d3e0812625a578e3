"""Which window and which document is read when, whatever the ranks and the arrivals; folders
that grow."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model.data.feed import FAILED, READY, WAITING, Feed
from model.data.folder import open_data
from model.data.order import SampleOrder, batch_samples, permuted, read_windows, window_count
from model.data.packing import AT_HAND, document_starts, pack
from model.machine.distributed import World
from model.machine.telemetry import Clock
from model.training.number_format import PAYS
from tests.model.growing import BOS, HandMade, complete
from tests.model.test_ladder import TWO_H100
from tests.standins.loopback import until
from trmcloud.core.errors import DataError
from trmcloud.core.spec.settings import PhaseRecipe

# -- Which window is read when: a pure function, a permutation, and no rank reads another's -----


@given(size=st.integers(1, 300), seed=st.integers(0, 2**31), epoch=st.integers(0, 1000))
def test_every_window_is_read_once_an_epoch(size: int, seed: int, epoch: int) -> None:
    order = SampleOrder(seed)
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


# -- stream -------------------------------------------------------------------------------------
# Every token once an epoch, every document begun once, whatever the ranks and the arrivals.


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


def test_a_run_reads_the_same_however_cut_and_read(small: PhaseRecipe, tmp_path: Path) -> None:
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
def test_the_order_is_not_that_of_arrival(small: PhaseRecipe, tmp_path: Path, kind: str) -> None:
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


def test_three_ranks_and_a_resume_begin_documents_once(small: PhaseRecipe, tmp_path: Path) -> None:
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


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80), capacity=st.integers(2, 33))
def test_packing_begins_documents_once_and_fills_rows(lengths: list[int], capacity: int) -> None:
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


def begun(path: Path, tokens: int) -> HandMade:
    """A growing folder with one shard of so many tokens."""
    folder = HandMade(path)
    folder.add(numbered((tokens,))[0])
    folder.begin()
    return folder


def test_a_failed_preparation_is_told_by_its_own_words(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = begun(tmp_path / "d", 200)
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
def test_a_gone_preparer_is_not_waited_for(small: PhaseRecipe, tmp_path: Path, how: str) -> None:
    folder = begun(tmp_path / "d", 20)
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
    assert "the data stopped growing: no process prepares it any more" in feed.problem.what


def test_other_shards_than_the_checkpoints_are_refused(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = begun(tmp_path / "d", 200)
    feed = Feed(open_data(folder.path), small, World(0, 1, CPU), 100)
    feed.expect((folder.shards[0].sha256, "of another one"))
    assert feed.state() == WAITING
    folder.add(numbered((300,))[0])
    assert feed.state() == FAILED
    assert feed.problem is not None
    assert "shard 1 (s1) is not the shard that the checkpoint was trained on" in feed.problem.what


def test_a_cut_line_is_not_yet_a_shard(small: PhaseRecipe, tmp_path: Path) -> None:
    folder = begun(tmp_path / "d", 200)
    path = folder.path / "shards.jsonl"
    line = path.read_text()
    path.write_text(line[:50])
    feed = Feed(open_data(folder.path), small, World(0, 1, CPU), 0)
    assert feed.state() == WAITING
    path.write_text(line)
    assert feed.state() == READY


# -- growing ------------------------------------------------------------------------------------
# Training on a folder that still grows: it waits, says so, and ends where nothing can come.


VOCABULARY = 300
SIZE = 600
"""Tokens of each shard."""
LAST = 44


def shards(count: int = 3, size: int = SIZE) -> list[list[int]]:
    chosen = np.random.default_rng(3)
    return [chosen.integers(0, VOCABULARY, size).tolist() for _ in range(count)]


def grown(settings: PhaseRecipe) -> PhaseRecipe:
    return replace(settings, vocab_size=450, steps=LAST, batch=2, eval_every=20, save_every=15)


@pytest.fixture
def run_on(new_run: Callable[..., Any], settings: PhaseRecipe) -> Callable[..., Any]:
    """A factory: a run in a folder of its own on the data of another."""

    def make(name: str, data: Path, **changes: Any) -> Any:
        run = new_run(name)
        made = replace(grown(settings), **changes)
        return replace(run, job=replace(run.job, settings=made.to_json(), data_dir=str(data)))

    return make


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, run_in: Callable[..., Any], settings: PhaseRecipe
) -> Any:
    """A run on all three shards, which need not wait for any."""
    folder = tmp_path_factory.mktemp("whole")
    run = run_in(folder / "run")
    data = str(complete(folder / "data", shards()))
    run = replace(run, job=replace(run.job, settings=grown(settings).to_json(), data_dir=data))
    assert run.train_here() == "finished"
    return run


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not failed, failed


def state_of(run: Any) -> str:
    try:
        return str(run.heartbeat.state)
    except (OSError, ValueError):
        return ""


def test_a_run_that_waits_ends_with_the_very_weights_of_one_that_need_not(
    run_on: Callable[..., Any], tmp_path: Path, whole: Any
) -> None:
    made = shards()
    folder = HandMade(tmp_path / "data")
    run = run_on("waiting", folder.path)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")  # for meta.json
        folder.add(made[0])
        folder.begin()
        until(lambda: state_of(run) == "waiting" and run.heartbeat.step > 0)
        waiting_at = run.heartbeat.step
        assert waiting_at == (SIZE - 1) // 16 // 2
        first = run.heartbeat.at
        until(lambda: run.heartbeat.at > first)  # it beats while it waits
        folder.add(made[1])
        until(lambda: state_of(run) == "waiting" and run.heartbeat.step > waiting_at)
        folder.add(made[2])
        folder.finish()

    with meanwhile(prepare):
        assert run.train_here() == "finished"
    assert run.weights_at(LAST) == whole.weights_at(LAST)
    assert run.exact_metrics() == whole.exact_metrics()
    assert run.heartbeat.seconds["data"] > 0.2
    assert whole.heartbeat.seconds["data"] == 0
    waits = [line["data_wait_s"] for line in whole.metrics("train")]
    assert len(waits) == LAST
    assert all(0 <= each < 5 for each in waits)


def test_what_cannot_come_ends_the_run_by_its_own_words_and_a_resume_goes_on(
    run_on: Callable[..., Any], tmp_path: Path, whole: Any
) -> None:
    made = shards()
    folder = HandMade(tmp_path / "data")
    folder.add(made[0])
    folder.begin()
    folder.tell("failed", message="shard_00001.parquet is not there (https://…)", next_step="look")
    run = run_on("run", folder.path)
    assert run.train_here() == "bad_data"
    assert run.heartbeat.message.startswith("shard_00001.parquet is not there")
    assert run.heartbeat.message.endswith("Next: look")
    step = run.heartbeat.saved_step
    assert step == run.heartbeat.step == (SIZE - 1) // 16 // 2, "what was trained is saved"
    folder.add(made[1])
    folder.add(made[2])
    folder.finish()
    assert run.train_here(attempt=2) == "finished"
    assert run.metrics("start")[-1]["from_step"] == step
    assert run.weights_at(LAST) == whole.weights_at(LAST)


def test_a_resume_on_other_shards_is_refused(run_on: Callable[..., Any], tmp_path: Path) -> None:
    made = shards()
    folder = complete(tmp_path / "data", made)
    run = run_on("run", folder, steps=40)
    run.train_here()
    other = complete(tmp_path / "other", [made[1], made[0], made[2]])
    again = run_on("run", other)
    assert again.train_here(attempt=2) == "bad_data"
    assert (
        "shard 0 (s0) is not the shard that the checkpoint was trained on"
        in again.heartbeat.message
    )


@pytest.mark.parametrize("when", ["before the first step", "later"])
def test_a_deadline_cuts_a_wait(run_on: Callable[..., Any], tmp_path: Path, when: str) -> None:
    folder = HandMade(tmp_path / "data")
    if when == "later":
        folder.add(shards()[0])
        folder.begin()
    run = run_on("run", folder.path)
    late = threading.Event()

    def epoch() -> float:
        return time.time() + (1e6 if late.is_set() else 0.0)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")
        late.set()
        folder.tell(at=time.time() + 1e6)  # its clock is the same one

    with meanwhile(prepare):
        deadline = str(time.time() + 5e5)
        outcome = run.train_here(clock=Clock(epoch=epoch), TRMCLOUD_DEADLINE_AT=deadline)
    assert outcome == "landed_deadline"
    if when == "later":
        assert run.heartbeat.saved_step == run.heartbeat.step > 0


def test_a_preparation_that_failed_before(run_on: Callable[..., Any], tmp_path: Path) -> None:
    folder = HandMade(tmp_path / "data")
    folder.tell("failed", message="the host answered 404", next_step="look")
    run = run_on("run", folder.path)
    assert run.train_here() == "bad_data"
    assert run.heartbeat.message == "the host answered 404 (made by hand). Next: look"


@pytest.mark.slow
@pytest.mark.more
def test_two_ranks_wait_together_and_take_the_same_number_format(
    run_on: Callable[..., Any], tmp_path: Path
) -> None:
    """That each reads its own rows of what came is checked above, rank by rank. As on two H100 of
    which the second lacks a kernel."""
    made = shards(2)
    folder = HandMade(tmp_path / "data")
    folder.add(made[0])
    folder.begin()
    run = run_on("run", folder.path, steps=20, dtype="auto")
    process = run.torchrun(processes=2, fault=TWO_H100)

    def waits() -> bool:
        assert process.poll() is None
        folder.tell()
        return state_of(run) == "waiting"

    until(waits)
    assert run.heartbeat.step == (SIZE - 1) // 16 // 4
    folder.add(made[1])
    folder.finish()
    assert run.finish(process) == 0
    state = json.loads((run.out / "checkpoints/step-00000020/state.json").read_text())
    assert state["shards"] == [each.sha256 for each in folder.shards]
    [line] = run.metrics("precision")
    assert line["left"] == [
        ["torchao-tensorwise", "no such kernel"],
        ["torchao-rowwise", "another rank does not have it"],
    ]
    faster = line["plain_s"] / line["float8_s"] > PAYS
    assert line["taken"] == ("float8 (native)" if faster else "bfloat16")


def test_rows_of_whole_documents_are_trained_on(run_on: Callable[..., Any], tmp_path: Path) -> None:
    from tests.model.growing import BOS

    documents = [[BOS, *ids] for ids in np.array(shards(1, 1200)[0]).reshape(-1, 12).tolist()]
    folder = complete(
        tmp_path / "data",
        [[token for each in documents for token in each]],
        validation=[token for each in documents[:20] for token in each],
    )
    losses = {}
    for kind in ("stream", "bestfit"):
        run = run_on(kind, folder, steps=10, rows=kind)
        assert run.train_here() == "finished"
        losses[kind] = run.metrics("eval")[-1]["val_bpb"]
        manifest = run.manifests()[10]
        assert manifest.settings["rows"] == kind
    assert losses["stream"] != losses["bestfit"]


def test_passes_are_compiled_while_the_data_are_on_their_way(
    run_on: Callable[..., Any], tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.training.stepping.needs_warm_up", lambda settings, world: True)
    folder = HandMade(tmp_path / "data")
    run = run_on("waiting", folder.path)

    def prepare() -> None:
        until(lambda: state_of(run) == "waiting")  # for meta.json: what comes before is done
        assert run.heartbeat.seconds["compile"] > 0
        for shard in shards():
            folder.add(shard)
        folder.begin()
        folder.finish()

    with meanwhile(prepare):
        assert run.train_here() == "finished"
    assert run.weights_at(LAST) == whole.weights_at(LAST)
    assert run.exact_metrics() == whole.exact_metrics()
