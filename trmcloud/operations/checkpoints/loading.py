"""The two lines of Python that open a fetched checkpoint in the framework that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trmcloud.pod.job.artifacts import is_part

_TRANSFORMERS = ("from transformers import AutoModel", "model = AutoModel.from_pretrained({})")
_TORCH = ("import torch", "model_state = torch.load({}, weights_only=True)")
_XGBOOST = ("import xgboost", "model = xgboost.Booster(model_file={})")
_ORBAX = ("import orbax.checkpoint", "state = orbax.checkpoint.PyTreeCheckpointer().restore({})")
_BY_BYTES = (
    (b"PK\x03\x04", b"data.pkl", _TORCH),
    (b"\x93NUMPY", b"", ("import numpy", "array = numpy.load({})")),
    (b"CBM1", b"", ("from catboost import CatBoost", "model = CatBoost().load_model({})")),
    (b'{"learner"', b"", _XGBOOST),
    (b"{L", b"learner", _XGBOOST),
    (b"tree\nversion=", b"", ("import lightgbm", "model = lightgbm.Booster(model_file={})")),
)  # fmt: skip
"""How a file begins, and what else stands in its first bytes."""
_BY_LAYOUT = {
    "safetensors": ("from safetensors.torch import load_file", "model_state = load_file({})"),
    "npz": ("import numpy", "arrays = numpy.load({})"),
    "keras": ("import keras", "model = keras.models.load_model({})"),
    "joblib": ("import joblib", "model = joblib.load({})"),
}
_LOOKED_AT = 256


def lines_to_open(layout: str, path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return an import and the call that opens a checkpoint; nothing where its layout and first
    bytes do not tell its framework, or where several files are its weights.

    Args:
        layout: by which the run has recognised it.
        path: the file, or the folder that holds the files ``names``.
    """
    lines: tuple[str, ...] = _ORBAX if layout == "orbax" else ()
    if layout.startswith("transformers-model"):
        lines = _TRANSFORMERS
    if layout == "orbax" and "default/_METADATA" in names:
        path /= "default"  # a CheckpointManager's item
    if not lines:
        weights = [name for name in names if not is_part(name.rpartition("/")[2])]
        if len(weights) != 1:
            return ()
        path = path / weights[0] if path.is_dir() else path
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
        by_bytes = (
            lines for begin, mark, lines in _BY_BYTES if head.startswith(begin) and mark in head
        )
        lines = next(by_bytes, _BY_LAYOUT.get(layout, ()))
    return tuple(line.format(repr(str(path.absolute()))) for line in lines)
