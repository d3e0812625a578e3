"""What is measured beside other trainers are steps of our own trainer: they must still be taken."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from bench import cubins, reach, sm90, train
from model.families.dense import Shape
from model.training.optim import Rules


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_ours_is_taken(optimizer: str) -> None:
    shape = Shape(65, 2, 32, 16, 16, hidden=64, kv_heads=2)
    batches = train._batches(65, 2, 16)
    step = train._ours(shape, Rules(optimizer), batches, 2)
    for _ in range(2):
        step()
    plain, adam = train._plain(shape)
    before = [each.detach().clone() for each in plain.parameters()]
    train._plain_step(plain, adam, lambda x, y: plain(x, y).loss, *next(batches))
    assert any(not torch.equal(a, b) for a, b in zip(before, plain.parameters(), strict=True))


def test_a_model_of_ours_reaches_something(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 200)
    cpu_s, nats = reach._ours(reach.Text.read(path), steps=3, seed=1)
    assert cpu_s > 0
    assert 0 < nats < 10


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_to_compile_for_a_gpu_asks_for_torchs_cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PYTHON", "")
    with pytest.raises(SystemExit) as told:
        next(sm90.run())
    assert str(told.value) == (
        f"torch {torch.__version__} is built without CUDA: name an environment with torch's CUDA "
        "build and gcc: make bench-sm90 CUDA_PYTHON=/path/to/python"
    )


def test_to_compile_for_a_gpu_tells_of_a_python_that_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_PYTHON", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="No such file"):
        next(sm90.run())


@pytest.mark.parametrize(
    ("magic", "machine", "flags", "wrong"),
    [
        (b"\x7fELF", 190, 0x5A0D5A, ""),
        (b"\x7fELF", 190, 0x500550, "for sm_80, not for sm_90"),
        (b"\x7fELF", 62, 90, "for machine 62"),
        (b"PTX\n", 190, 90, "no ELF file"),
    ],
)
def test_a_cubin_is_held_to_the_gpu(magic: bytes, machine: int, flags: int, wrong: str) -> None:
    content = magic.ljust(18, b"\0") + struct.pack("<H28xI12x", machine, flags)
    if not wrong:
        cubins._check("kernel", content, 90)
        return
    with pytest.raises(cubins.NotForIt, match=wrong):
        cubins._check("kernel", content, 90)


def test_a_kernel_spills_where_no_configuration_does_without() -> None:
    lean, wide, poor = (
        cubins.Cubin(name, 4, 255, stack, stack, 0)
        for name, stack in (("one", 0), ("one", 64), ("other", 8))
    )
    some = cubins.Graph("block", "forward", ["one"], [lean, wide])
    all_of_them = cubins.Graph("head", "forward", ["other"], [poor])
    assert [row.met for row in sm90._rows("gpt350m", [some])] == [True, True]
    told = [*sm90._rows("gpt350m", [some, all_of_them])]
    assert [row.met for row in told] == [True, False]
    assert told[1].detail == "other"
    failed = [*sm90._rows("gpt350m", [some], "no cubin was made of two")]
    assert [row.met for row in failed] == [False, True]
    assert failed[0].detail == "no cubin was made of two"


def test_each_configuration_is_a_line_of_the_table(tmp_path: Path) -> None:
    cubin = cubins.Cubin("one", 4, 255, 64, 64, 0)
    graph = cubins.Graph("block", "forward", ["one"], [cubin])
    sm90._write(tmp_path / "sm90.csv", [("gpt350m", graph)])
    head, line = (tmp_path / "sm90.csv").read_text().splitlines()
    assert head.startswith("recipe,part,way,kernel,")
    assert line == "gpt350m,block,forward,one,4,255,64,64,0"
