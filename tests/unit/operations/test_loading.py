"""The lines that ``fetch-best`` prints open what a framework has written, and nothing is guessed.

Each framework that is installed writes a checkpoint, which is recognised as in a run; the printed
lines are run. What is not installed here is skipped.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trmcloud.operations.checkpoints.loading import lines_to_open
from trmcloud.pod.job.artifacts import find_artifacts

X = np.linspace(0.0, 1.0, 80).reshape(20, 4)
Y = X.sum(axis=1)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "it's out").mkdir()
    return tmp_path / "it's out"


def lines_of(out: Path) -> tuple[str, ...]:
    [artifact] = find_artifacts(out.parent, below=out.name).artifacts
    names = [file.path for file in artifact.files]
    path = artifact.root / names[0] if artifact.is_file else artifact.root
    return lines_to_open(artifact.kind, path, names)


def opened(out: Path) -> dict[str, Any]:
    lines = lines_of(out)
    assert len(lines) == 2
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope


@pytest.mark.parametrize("name", ["step-9.pt", "last.ckpt", "pytorch_model.bin", "m.pth.tar"])
def test_torch(out: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(3)}, out / name)
    torch.save({"m": torch.ones(3)}, out / "optimizer.pt")
    assert opened(out)["model_state"]["w"].tolist() == [1.0, 1.0, 1.0]


def test_safetensors(out: Path) -> None:
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    files.save_file({"w": torch.ones(3)}, out / "model-20.safetensors")
    assert opened(out)["model_state"]["w"].tolist() == [1.0, 1.0, 1.0]


def test_numpy(out: Path) -> None:
    np.savez(out / "weights-3.npz", w=X)
    assert (opened(out)["arrays"]["w"] == X).all()
    (out / "weights-3.npz").unlink()
    np.save(out / "weights-3.npy", X)
    assert (opened(out)["array"] == X).all()


@pytest.mark.parametrize("name", ["model-5.ubj", "model-5.json"])
def test_xgboost(out: Path, name: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    xgboost.train({"max_depth": 2}, xgboost.DMatrix(X, Y), 5).save_model(out / name)
    assert opened(out)["model"].num_boosted_rounds() == 5


def test_lightgbm(out: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    few = {"min_data_in_leaf": 1, "min_data_in_bin": 1, "verbose": -1}
    lightgbm.train(few, lightgbm.Dataset(X, Y), 3).save_model(out / "model-3.txt")
    assert opened(out)["model"].current_iteration() == 3


def test_catboost(out: Path) -> None:
    catboost = pytest.importorskip("catboost")
    model = catboost.CatBoostRegressor(iterations=3, silent=True, allow_writing_files=False)
    model.fit(X, Y).save_model(out / "model-3.cbm")
    assert opened(out)["model"].tree_count_ == 3


def test_joblib(out: Path) -> None:
    joblib = pytest.importorskip("joblib")
    joblib.dump({"coef": [1, 2]}, out / "model-3.joblib")
    assert opened(out)["model"] == {"coef": [1, 2]}


def test_keras(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.save(out / "model-3.keras")
    assert opened(out)["model"].count_params() == 5


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_transformers(out: Path, with_optimizer: bool) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 11, "n_positions": 8}
    folder = out / "checkpoint-7"
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**small)).save_pretrained(folder)
    if with_optimizer:
        torch.save({}, folder / "optimizer.pt")
    assert opened(out)["model"].config.n_embd == 8


def test_orbax(out: Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.CheckpointManager(out.resolve()) as manager:
        manager.save(7, args=checkpoint.args.StandardSave({"w": np.ones(3)}))
    state = opened(out)["state"]
    assert list(state["w"]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model-3.pkl", pickle.dumps([1])),
        ("model-3.pt", b"not a zip at all"),
        ("model-3.bin", b"\0" * 300),
        ("model-3.h5", b"\x89HDF\r\n\x1a\n"),
    ],
)
def test_nothing_is_said_where_the_framework_is_not_sure(
    out: Path, name: str, content: bytes
) -> None:
    (out / name).write_bytes(content)
    assert lines_of(out) == ()


def test_nothing_is_said_of_several_files_of_weights(out: Path) -> None:
    for name in ("model-3.safetensors", "ema-3.safetensors"):
        (out / name).write_bytes(b"\0" * 300)
    assert lines_of(out) == ()
    assert lines_to_open("outputs", out, ["outputs.tar", "x"]) == ()
