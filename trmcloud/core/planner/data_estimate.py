"""The time that training waits for its data, and the needs of that: bytes, cores, room on the disk.

First principles: downloads at the machine's line, a tokenizer trained on one core, text tokenized
on all cores beside training. What is assumed and what was measured stands at each constant.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.speed import Machine
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.spec.spec import DataSource

RENTED_LINE_BYTES_PER_S = Interval(1000e6, 300e6, 100e6)
"""A rented machine's own line to the data's host: assumed, 100 to 1,000 MB/s."""
OWN_LINE_BYTES_PER_S = Interval(100e6, 25e6, 5e6)
"""This machine's line down: assumed."""
UPLOAD_BYTES_PER_S = Interval(50e6, 10e6, 1e6)
"""This machine's line up: assumed, 1 to 50 MB/s."""
VCPUS_PER_GPU = 12
"""Of a rented host: hosts of eight have 100 to 200, so this is their lower end."""
CPU_SHARE = 0.8
"""Of a host's cores, what tokenizing gets beside the ranks and their loaders."""
CPU_SHARE_BESIDE_CPU_TRAINING = 0.5
"""The share where training itself is on the CPUs."""
TOKENIZE_BYTES_PER_CPU_S = 1.0e6
"""Text one core tokenizes a second: 1.03 MB of Python sources measured on a developer's machine
(tokenizers 0.23, 65,536 ids), 2026-11-22. Prose was not measured, nor a server's cores."""
TRAIN_BYTES_PER_S = 1.7e6
"""Text a byte-pair tokenizer of 65,536 ids is trained on a second, by one core: 12.3 MB in 7.3 s
measured here, 2026-11-22."""
GENERATE_BYTES_PER_CPU_S = 4.0e6
"""Text by a formula, and its characters' ids: nominal."""
IMPORT_S = 8.0
"""Of the trainer's start, what goes on while it could not have used data yet."""

_NOTHING = Interval(0.0, 0.0, 0.0)
_TOLD_FROM_S = 0.5
"""A wait that is shorter is none to a reader."""


class DataEstimate(NamedTuple):
    """The cost of a run's data. ``wait`` is the time that the ranks stand still for it."""

    where: str
    """The place where it is made, and why, in words."""
    wait: Interval
    """All of it: before the first step, and for shards that come too late."""
    begins_after_s: float = 0.0
    """P50 from a machine that is ready to its first batch."""
    late_s: float = 0.0
    """P50 of ``wait`` after training has begun."""
    download_bytes: int = 0
    text_bytes: int = 0
    """To be tokenized."""
    disk_bytes: int = 0
    tokens_bytes: int = 0
    """Of the tokens that are made there, which a bucket keeps for the next machine."""
    make_s: float = 0.0
    """P50 until all of it is there."""
    known: bool = True
    """Whether its size is known before it is fetched."""

    def words(self, rate: Usd) -> tuple[str, ...]:
        """For a plan: where and why, then what that takes; ``rate`` in USD/h."""
        where = f"data: {self.where}"
        if not self.known:
            return where, "data: its size is not known before it is fetched: not counted"
        parts = []
        if self.download_bytes:
            parts.append(f"{self.download_bytes / 1e9:,.1f} GB to download")
        if self.begins_after_s >= _TOLD_FROM_S:
            parts.append(f"first batch about {_time(self.begins_after_s)} late")
        if self.text_bytes:
            late = f"training waits {_time(self.late_s)} for it" if self.late_s else "it keeps up"
            parts.append(f"made within {_time(self.make_s)} beside training: {late}")
        if rate and self.wait.p50 >= _TOLD_FROM_S:
            parts.append(f"{cost(rate, self.wait.p50)} of waiting")
        return (where, "data: " + ", ".join(parts)) if parts else (where,)


class _Need(NamedTuple):
    """The needs of so many tokens."""

    download_bytes: int
    tokenized_s: float

    def made_after_s(self, line_bytes_per_s: float) -> float:
        """Seconds until all are there, downloads and tokenizing going on side by side."""
        return max(self.download_bytes / line_bytes_per_s, self.tokenized_s)


def estimate_data(
    source: DataSource,
    phases: Sequence[tuple[PhaseRecipe, int, float]],
    machine: Machine,
    *,
    tokens_here: int | None = None,
    has_tokenizer: bool = False,
) -> DataEstimate:
    """The wait for ``source`` on ``machine``.

    Args:
        phases: settings, tokens that are read, and P50 seconds of training, in running order.
        tokens_here: of a text that is sent from here.
        has_tokenizer: one is given, with the weights that training starts from.
    """
    rented = machine.local is None
    where = source.where_and_why(rented=rented)
    if source.data_set is None or not source.made_there:
        return _sent(where, tokens_here, phases[0][0]) if rented else DataEstimate(where, _NOTHING)
    data_set, settings = source.data_set, phases[0][0]
    if not data_set.shard_tokens:
        return DataEstimate(where, _NOTHING, known=False)
    most = max(tokens for _, tokens, _ in phases)
    trains = settings.tokenizer == "bpe" and not has_tokenizer and data_set.layout != "gpt2"
    line = RENTED_LINE_BYTES_PER_S if rented else OWN_LINE_BYTES_PER_S
    text_per_s = _cores(machine) * (
        GENERATE_BYTES_PER_CPU_S if data_set.layout == "generated" else TOKENIZE_BYTES_PER_CPU_S
    )
    shards = data_set.tokenizer_shards if trains else 1
    first_bytes = _download_bytes(data_set, shards)
    first_text = _text_bytes(data_set, 1) + (
        min(data_set.validation_text_bytes, data_set.shard_text_bytes) if data_set.validation else 0
    )
    sample = min(shards * data_set.shard_text_bytes, data_set.tokenizer_text_bytes) if trains else 0
    first_cpu_s = sample / TRAIN_BYTES_PER_S + first_text / text_per_s

    def needs(tokens: int) -> _Need:
        wanted = data_set.shards_for(tokens)
        return _Need(
            _download_bytes(data_set, max(wanted, shards)),
            sample / TRAIN_BYTES_PER_S + _text_bytes(data_set, wanted) / text_per_s,
        )

    trained = [(needs(tokens), training_s) for _, tokens, training_s in phases]

    def waits(line_bytes_per_s: float) -> tuple[float, float]:
        """(before the first step, later)"""
        first_s = max(0.0, first_bytes / line_bytes_per_s + first_cpu_s - IMPORT_S)
        late_s, trained_s = 0.0, first_s + IMPORT_S
        for need, training_s in trained:
            trained_s += training_s
            late_s = max(late_s, need.made_after_s(line_bytes_per_s) - trained_s)
        return first_s, late_s

    p10, p50, p90 = (waits(each) for each in (line.p10, line.p50, line.p90))
    whole = needs(most)
    return DataEstimate(
        where,
        Interval(sum(p10), sum(p50), sum(p90)),
        begins_after_s=p50[0],
        late_s=p50[1],
        download_bytes=whole.download_bytes,
        text_bytes=_text_bytes(data_set, data_set.shards_for(most)),
        disk_bytes=data_set.disk_bytes(most),
        tokens_bytes=_tokens_bytes(data_set, most),
        make_s=whole.made_after_s(line.p50),
    )


def _sent(where: str, tokens: int | None, settings: PhaseRecipe) -> DataEstimate:
    """Token files that go from here to a rented machine, while nothing is trained there."""
    if not tokens:
        return DataEstimate(where, _NOTHING)
    size = tokens * (2 if settings.vocab_size <= 1 << 16 else 4)
    line = UPLOAD_BYTES_PER_S
    wait = Interval(size / line.p10, size / line.p50, size / line.p90)
    return DataEstimate(where, wait, begins_after_s=wait.p50, disk_bytes=size)


def _cores(machine: Machine) -> float:
    if machine.local is None:
        return machine.processes / machine.nodes * VCPUS_PER_GPU * CPU_SHARE
    share = CPU_SHARE if machine.on_gpu else CPU_SHARE_BESIDE_CPU_TRAINING
    return max(1, machine.local.cpus) * share


def _download_bytes(data_set: DataSet, shards: int) -> int:
    if not data_set.is_remote:
        return 0
    return (shards + bool(data_set.validation)) * data_set.shard_bytes


def _text_bytes(data_set: DataSet, shards: int) -> int:
    return 0 if data_set.layout == "gpt2" else shards * data_set.shard_text_bytes


def _tokens_bytes(data_set: DataSet, tokens: int) -> int:
    if not data_set.is_remote or data_set.layout == "gpt2":
        return 0
    return data_set.disk_bytes(tokens) - data_set.download_bytes(tokens)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"
