"""A run's figures, read back by those whom they are for: TensorBoard's own reader, over its own
server, and the file that Weights & Biases keeps offline."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.loopback import free_port, until
from tests.unit.cli import told_home
from tests.unit.cli.told_home import told
from trmcloud.core.errors import Outcome
from trmcloud.operations.context import Context, find_run
from trmcloud.operations.curves.boards import BoardFeed, board_facts
from trmcloud.wiring import board_server, build_context, event_files, wandb_run

__all__ = ["told"]

LANDED = told_home.RUNS[Outcome.LANDED]
AT = 1_790_000_000.0


@pytest.fixture
def context(told: Path, tmp_path: Path) -> Context:
    """A home whose landed run has logged as the guide of the 4 × A100 run shows it."""
    home = tmp_path / "home"
    shutil.copytree(told, home)
    context = build_context(home)
    write(context, [train(step) for step in range(10, 60, 10)] + [judged(50)])
    return context


def metrics(context: Context, phase: str = "fast") -> Path:
    path = Path(context.files.folder(LANDED)) / phase / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(context: Context, lines: list[dict[str, Any]]) -> None:
    """In the place of what stood there, as a trainer does that goes back."""
    anew = metrics(context).with_suffix(".new")
    anew.write_text("".join(json.dumps(line) + "\n" for line in lines))
    anew.replace(metrics(context))


def train(step: int, loss: float | None = None) -> dict[str, Any]:
    return {
        "kind": "train", "step": step, "at": AT + step, "loss": loss or 4.0 - step / 100,
        "step_losses": [4.5, 4.0], "grad_norm": 0.9, "tokens_per_second": 131072.5,
        "gpu_memory_bytes": 60_500_000_000,
    }  # fmt: skip


def judged(step: int) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "at": AT + step, "val_bpb": 1.25, "judged": ["a"]}


KNOWN = {
    "train/loss", "train/grad_norm", "train/throughput", "system/gpu_memory_allocated",
    "train/step_losses/0", "train/step_losses/1", "eval/val_bpb", "cost/usd", "cost/hours",
}  # fmt: skip


# -- TensorBoard --------------------------------------------------------------------------------
def read_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_tensorboards_reader_finds_the_names_users_know(context: Context, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard`")
    files = event_files(tmp_path / "board")
    assert BoardFeed(context, LANDED, files).look() == 6
    files.close()
    read = read_events(tmp_path / "board" / "fast")
    assert set(read.Tags()["scalars"]) == KNOWN
    assert [(each.step, each.wall_time) for each in read.Scalars("train/loss")] == [
        (step, AT + step) for step in range(10, 60, 10)
    ]
    assert read.Scalars("train/throughput")[0].value == 131072.5
    assert read.Scalars("system/gpu_memory_allocated")[0].value == pytest.approx(60.5)
    assert read.Scalars("eval/val_bpb")[0].value == 1.25


def test_what_was_trained_again_replaces_what_was_before(context: Context, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard`")
    files = event_files(tmp_path / "board")
    feed = BoardFeed(context, LANDED, files)
    feed.look()
    write(context, [train(10), train(20), train(30, loss=9.0)])
    assert feed.look() == 3
    files.close()
    shown = read_events(tmp_path / "board" / "fast").Scalars("train/loss")
    assert [each.step for each in shown] == [10, 20, 30]
    assert shown[-1].value == 9.0


def test_its_server_shows_them(context: Context, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard`")
    files = event_files(tmp_path / "board")
    BoardFeed(context, LANDED, files).look()
    files.close()
    url = board_server(tmp_path / "board", free_port())
    assert url.startswith("http://127.0.0.1:")
    path = "/data/plugin/scalars/scalars?run=fast&tag=train%2Fthroughput"

    def shown() -> bool:
        try:
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                return len(json.load(answer)) == 5
        except urllib.error.HTTPError:
            return False  # not read yet

    until(shown, within_s=120.0)


# -- Weights & Biases ---------------------------------------------------------------------------
_BLOCK, _HEADER = 32_768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records_in(data: bytes) -> Iterator[bytes]:
    """What a ``.wandb`` file holds: a LevelDB log (blocks of 32 KiB; a checksum, a length and a
    type before each piece) behind seven bytes of its own."""
    assert data[:4] == b":W&B"
    at, whole = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        piece = data[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        whole = piece if kind in (_FULL, _FIRST) else whole + piece
        if kind in (_FULL, _LAST):
            yield whole


def kept_offline(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], bytes]:
    """(its configuration, the rows of its history, the whole file)"""
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    pb: Any = wandb_internal_pb2  # its names are made when it is imported

    (path,) = folder.rglob("*.wandb")

    def records() -> list[Any]:
        try:
            return [pb.Record.FromString(data) for data in records_in(path.read_bytes())]
        except DecodeError:  # its last record is being written
            return []

    until(lambda: any(each.HasField("exit") for each in records()))
    about: dict[str, Any] = {}
    rows = []
    for record in records():
        if record.HasField("run"):
            about |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
        if record.HasField("history"):
            rows.append(
                {
                    each.key or "/".join(each.nested_key): json.loads(each.value_json)
                    for each in record.history.item
                }
            )
    return about, rows, path.read_bytes()


def test_wandb_keeps_the_guides_names(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", "c" * 40)
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_canary")
    run = find_run(context, LANDED)
    board, where = wandb_run(context.home, run, project="thesis", entity=None)
    assert BoardFeed(context, LANDED, board).look() == 6
    board.close()
    assert Path(where).is_relative_to(context.home)
    config, rows, whole = kept_offline(context.home)
    assert config["run"] == LANDED
    assert config["asked"] == json.loads(json.dumps(board_facts(run)["asked"]))
    assert [row["_step"] for row in rows] == [10, 20, 30, 40, 50]
    assert rows[0]["_timestamp"] == AT + 10
    assert set(rows[-1]) >= KNOWN
    assert rows[-1]["eval/val_bpb"] == 1.25, "what was logged at one step is one row"
    assert rows[0]["system/gpu_memory_allocated"] == pytest.approx(60.5)
    assert rows[0]["train/throughput"] == 131072.5
    for secret in ("c" * 40, "rpa_canary", os.getcwd()):
        assert secret.encode() not in whole
    # A short name of a machine may be part of an identifier that wandb draws.
    name = re.escape(socket.gethostname().encode())
    assert not re.search(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % name, whole)
