"""Batches from prepared token files, at places that depend on nothing but numbers.

The training tokens are cut into windows of T inputs and T targets (T + 1 tokens, the last one
shared with the next window). Sample number g of a run reads window π(g), where π permutes all
windows anew in every epoch: each window is read once an epoch, no two ranks read the same one,
and a run resumed at sample g continues as if it had never stopped, without any generator's state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

import numpy as np
import numpy.typing as npt

from model.prepare import META_VERSION
from model.tokenizers import TextTokenizer, load_tokenizer
from trmcloud.core.errors import DataError
from trmcloud.core.pod_contract import (
    DATA_META_NAME,
    DATA_TOKENIZER_NAME,
    DATA_TRAIN_NAME,
    DATA_VALIDATION_NAME,
)

_ROUNDS = 6
_MASK64 = (1 << 64) - 1

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PreparedData:
    """The folder that ``model.prepare`` made, mapped into memory."""

    meta: Mapping[str, Any]
    train: npt.NDArray[Any]
    validation: npt.NDArray[Any]
    tokenizer: TextTokenizer
    tokenizer_json: str

    @property
    def tokenizer_sha256(self) -> str:
        return str(self.meta["tokenizer"]["sha256"])

    @property
    def source_sha256(self) -> str:
        return str(self.meta["source_sha256"])


def open_data(folder: Path) -> PreparedData:
    """Maps a prepared folder.

    Raises:
        DataError: it is incomplete, damaged, or of another version.
    """
    again = "prepare the data again"
    try:
        meta = json.loads((folder / DATA_META_NAME).read_text())
        if meta["version"] != META_VERSION:
            raise DataError(f"data version {meta['version']!r}", where=str(folder), next_step=again)
        dtype = np.dtype({"uint16": "<u2", "uint32": "<u4"}[meta["dtype"]])
        train = _map(folder / DATA_TRAIN_NAME, dtype, meta["train_tokens"])
        validation = _map(folder / DATA_VALIDATION_NAME, dtype, meta["validation_tokens"])
        tokenizer_json = (folder / DATA_TOKENIZER_NAME).read_text(encoding="utf-8")
        where = str(folder / DATA_TOKENIZER_NAME)
        tokenizer = load_tokenizer(tokenizer_json, where=where)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the prepared data cannot be used: {error!r}", where=str(folder), next_step=again
        ) from None
    return PreparedData(meta, train, validation, tokenizer, tokenizer_json)


def window_count(tokens: int, sequence: int) -> int:
    """Windows of ``sequence`` inputs with their targets in a file of ``tokens`` ids."""
    return max(0, (tokens - 1) // sequence)


def read_windows(tokens: npt.NDArray[Any], windows: npt.ArrayLike, sequence: int) -> Tokens:
    """(len(windows), sequence + 1) ids; the inputs are all but the last, the targets all but
    the first."""
    starts = np.asarray(windows, dtype=np.int64) * sequence
    return tokens[starts[:, None] + np.arange(sequence + 1)].astype(np.int64)


def sample_windows(samples: range, windows: int, seed: int) -> list[int]:
    """π: the window that each of the run's samples reads.

    Args:
        samples: global sample numbers, counted over all ranks since the run's first step.
        windows: how many windows there are.
    """
    return [permuted(each % windows, windows, seed, epoch=each // windows) for each in samples]


def batch_samples(first: int, micro: int, rank: int, world_size: int, batch: int) -> range:
    """The samples of one micro-batch on one rank.

    A step takes batch · accumulation · world_size samples from ``first`` on; micro-batch by
    micro-batch, and within one rank by rank.
    """
    start = first + (micro * world_size + rank) * batch
    return range(start, start + batch)


def permuted(index: int, size: int, seed: int, epoch: int) -> int:
    """Where ``index`` goes in a pseudo-random permutation of range(size).

    A balanced Feistel network over the next even number of bits, walked until it lands inside
    (Black & Rogaway 2002, "Ciphers with arbitrary finite domains"): constant memory for any size,
    and no dependence on a library's generator, whose stream may change between versions.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [_mix(seed * 0x9E3779B97F4A7C15 + epoch * _ROUNDS + each) for each in range(_ROUNDS)]
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        index = left << half | right
        if index < size:
            return index


def _mix(value: int) -> int:
    """SplitMix64's finaliser (Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK64
    return value ^ value >> 31


def _map(path: Path, dtype: np.dtype[Any], tokens: int) -> npt.NDArray[Any]:
    size = path.stat().st_size
    if size != tokens * dtype.itemsize:
        raise ValueError(f"{path.name} has {size} bytes, not {tokens * dtype.itemsize}")
    return np.memmap(path, dtype=dtype, mode="r")
