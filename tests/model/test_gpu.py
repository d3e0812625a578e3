"""What a machine's GPUs do: measured on a processor here, which has most of the same products."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from model import gpu
from model.machine.traps import KNOWN, traps_of

H100 = {
    "index": 0, "kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": [9, 0],
    "memory_gb": 85.0, "free_gb": 84.5, "sheet": "H100-SXM", "failed": {},
}  # fmt: skip


def test_products_and_copies_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(gpu, "_COPY_BYTES", {"cpu": 1 << 16})
    found = gpu.examine("cpu")
    (device,) = found["devices"]
    assert {"float32", "bfloat16", "float16"} <= set(device["tflops"])
    assert all(rate > 0 for rate in device["tflops"].values())
    assert device["memory_gb_s"] > 0
    assert device["failed"]["tf32"] == "a GPU's format"
    assert found["traps"] == []
    assert json.loads(json.dumps(found)) == found
    text = gpu.as_text(found)
    assert "tf32: not available: a GPU's format" in text
    assert f"torch {torch.__version__}" in text


def test_a_products_rate_is_operations_by_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "_SIDE", {"cpu": 100})
    monkeypatch.setattr(gpu, "_best_s", lambda device, work: (work(), 2e-6)[1])
    assert gpu._product_tflops(torch.device("cpu"), "float32") == pytest.approx(1.0)


def test_a_figure_that_cannot_be_had_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_SIDE", {"cpu": 64})
    monkeypatch.setattr(gpu, "_COPY_BYTES", {"cpu": 1 << 16})

    def broken(device: torch.device, side: int) -> Any:
        raise RuntimeError("no such kernel\nat line 5")

    monkeypatch.setattr(gpu, "_float8_product", broken)
    (device,) = gpu.examine("cpu")["devices"]
    assert device["failed"]["float8"] == "no such kernel"
    assert "float8" not in device["tflops"]
    assert "bfloat16" in device["tflops"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_what_it_measures_and_what_it_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "_SIDE", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(gpu, "_COPY_BYTES", {"cpu": 1 << 16})
    assert gpu.main([]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: no GPU was found: torch {torch.__version__}")
    assert "this processor\n  float32 " in out
    assert "not measured, without a GPU: compute capability, free memory, copies from" in out
    assert "\n  torch 2.10 with compile on an A100: NaN\n" in out
    assert gpu.main(["--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0]["kind"] == "cpu"
    assert found["looked_for"] == list(KNOWN)
    assert found["no_gpu"] in err


def test_a_gpu_is_held_to_its_datasheet() -> None:
    device: dict[str, Any] = {
        **H100, "sheet_tflops": {"bfloat16": 989.0}, "tflops": {"bfloat16": 742.0},
        "memory_gb_s": 2700.0, "to_gb_s": 52.0, "peers_gb_s": {"1": 390.0, "2": None},
        "failed": {"copies to GPU 2": "peer access is not supported"},
    }  # fmt: skip
    text = gpu.as_text({"torch": "2.13.0", "cuda": "12.8", "devices": [device], "traps": ["it"]})
    assert "GPU 0: NVIDIA H100 80GB HBM3 · compute capability 9.0 · 84.5 of 85.0 GB free" in text
    assert "742.00 TFLOP/s · 75 % of the datasheet's 989" in text
    assert re.search(r"to GPU 1 +390.0 GB/s", text)
    assert "copies to GPU 2: not available: peer access is not supported" in text
    assert text.endswith("! it")


@pytest.mark.parametrize(
    ("changes", "torch_version", "words"),
    [
        ({}, "2.10.0", []),
        ({"capability": [8, 0]}, "2.10.0+cu128", ["NaN on an A100"]),
        ({"capability": [8, 0]}, "2.13.0", []),
        ({"capability": [8, 0]}, "unknown", []),
        ({"capability": [7, 5]}, "2.13.0", ["--set dtype=float16"]),
        ({"capability": [6, 1]}, "2.13.0", ["dtype=float16", "--set compile=false"]),
        ({"free_gb": 60.0}, "2.13.0", ["other processes use 25.0 GB of GPU 0"]),
    ],
)
def test_traps_are_located(changes: dict[str, Any], torch_version: str, words: list[str]) -> None:
    told = traps_of([{**H100, **changes}], torch_version)
    assert len(told) == len(words)
    for line, word in zip(told, words, strict=True):
        assert word in line


def test_gpus_that_differ_are_told() -> None:
    (told,) = traps_of([H100, {**H100, "index": 1, "name": "NVIDIA L4"}], "2.13.0")
    assert "these GPUs differ" in told


def test_every_trap_that_is_named_without_a_gpu_is_looked_for_on_one() -> None:
    a100 = {**H100, "name": "NVIDIA A100-SXM4-80GB", "capability": [8, 0]}
    old = {**H100, "index": 1, "name": "Tesla P40", "capability": [6, 1], "free_gb": 1.0}
    assert len(traps_of([a100, old], "2.10.0")) == len(KNOWN)
