"""Trainings whose weights are shared out: saved in shards, killed, resumed by as many or others."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from model.machine.distributed import World
from model.training import sharding
from model.training.checkpoint import read_manifest, read_tensors, verify
from trmcloud.core.contract import manifest as mf
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import replace

NewRun = Callable[..., Any]
STEPS = 60
SHARDED = {
    "family": "nanochat", "sharding": "fsdp", "steps": STEPS, "eval_every": 20, "save_every": 20,
    "keep_best": 9, "depth": 2, "mlp": "relu2", "qk_norm": True,
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("keep_generator")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, run_in: Callable[..., Any]) -> Any:
    """Two processes from the first step to the last."""
    run = run_in(tmp_path_factory.mktemp("undisturbed"), **SHARDED)
    assert run.finish(run.torchrun()) == 0, (run.out / "train.log").read_text()
    return run


def folder_of(run: Any, step: int) -> Path:
    folder: Path = run.out / "checkpoints" / mf.step_dir_name(step)
    return folder


def tensors(run: Any, step: int, kind: str = "weights") -> dict[str, torch.Tensor]:
    folder = folder_of(run, step)
    manifest = read_manifest(folder)
    verify(folder, manifest)
    return read_tensors(folder, manifest, kind)


def test_each_rank_saves_its_own_shard(undisturbed: Any) -> None:
    assert undisturbed.heartbeat.outcome == "finished"
    made = undisturbed.manifests()[STEPS]
    assert [(file.name, file.kind) for file in made.files] == [
        ("weights-00001-of-00002.safetensors", "weights"),
        ("weights-00002-of-00002.safetensors", "weights"),
        ("optimizer-00001-of-00002.safetensors", "optimizer"),
        ("optimizer-00002-of-00002.safetensors", "optimizer"),
        ("state.json", "state"),
        ("tokenizer.json", "tokenizer"),
    ]
    assert made.is_sharded
    first, second = made.weights
    assert abs(first.size_bytes - second.size_bytes) < 0.1 * first.size_bytes
    assert made.val_bpb == pytest.approx(undisturbed.metrics("eval")[-1]["val_bpb"])
    whole = tensors(undisturbed, STEPS)
    assert whole["blocks.0.qkv.weight"].shape == (96, 32)
    overheads = [line["overhead_s"] for line in undisturbed.metrics("train")]
    assert min(overheads) >= 0 < sum(overheads)
    saves = undisturbed.metrics("save")
    assert [line["step"] for line in saves] == sorted(undisturbed.manifests())
    assert all(0 < line["stall_s"] <= line["seconds"] for line in saves)


@pytest.fixture
def at_40(undisturbed: Any, new_run: NewRun) -> Any:
    """The run as it stood at step 40."""
    run = new_run("at-40", **SHARDED)
    shutil.copytree(undisturbed.out, run.out)
    for step in undisturbed.manifests():
        if step > 40:
            shutil.rmtree(folder_of(run, step))
    return run


def with_settings(run: Any, **changes: Any) -> Any:
    return type(run)(replace(run.job, settings={**run.job.settings, **changes}))


@pytest.mark.parametrize(
    "processes", [1, pytest.param(4, marks=[pytest.mark.slow, pytest.mark.more])]
)
def test_others_go_on_from_its_shards(undisturbed: Any, at_40: Any, processes: int) -> None:
    """They share the same global batch: each loss that follows is the same within 1e-5."""
    run = with_settings(at_40, batch=4 // processes)
    if processes == 1:
        assert run.train_here(attempt=2) == "finished"
    else:
        assert run.finish(run.torchrun(processes, attempt=2)) == 0
    assert run.metrics("start")[-1]["from_step"] == 40
    assert run.manifests()[STEPS].is_sharded == (processes > 1)
    wanted = {line["step"]: line["loss"] for line in undisturbed.metrics("train")}
    losses = {line["step"]: line["loss"] for line in run.metrics("train") if line["step"] > 40}
    assert len(losses) == STEPS - 40
    for step, loss in losses.items():
        assert loss == pytest.approx(wanted[step], abs=1e-5)
    there, before = tensors(run, STEPS), tensors(undisturbed, STEPS)
    for name, tensor in there.items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-3, atol=2e-5)


def test_a_shard_that_is_not_whole_costs_that_checkpoint_alone(at_40: Any) -> None:
    shard = folder_of(at_40, 40) / "weights-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run = with_settings(at_40, batch=4, steps=22)
    assert run.train_here(attempt=2) == "finished"
    assert run.metrics("start")[-1]["from_step"] == 20
    assert (run.out / "checkpoints" / "damaged-step-00000040").is_dir(), "set aside"


def test_shards_that_do_not_fit_together_are_refused_by_name(at_40: Any) -> None:
    """Each has its hash, and yet they are of two trainings: rows of the second are there twice."""
    folder = folder_of(at_40, 40)
    first, second = (folder / f"weights-0000{n}-of-00002.safetensors" for n in (1, 2))
    shutil.copy(second, first)
    manifest = read_manifest(folder)
    entry = next(file for file in manifest.files if file.name == second.name)
    files = tuple(
        replace(entry, name=file.name) if file.name == first.name else file
        for file in manifest.files
    )
    (folder / mf.MANIFEST_NAME).write_text(mf.to_json(replace(manifest, files=files)))
    before = {path.name for path in folder.iterdir()}
    run = with_settings(at_40, batch=4)
    assert run.train_here(attempt=2) == "bad_checkpoint"
    assert "its shards cannot be combined" in run.heartbeat.message
    assert {path.name for path in folder.iterdir()} == before, "nothing is lost"


def test_a_family_whose_blocks_are_applied_again_is_not_sharded(settings: PhaseRecipe) -> None:
    told = "sharding=fsdp does not work with trm: its blocks are applied many times"
    with pytest.raises(UsageError, match=told):
        sharding.build(replace(settings, sharding="fsdp"), World(0, 2, torch.device("cpu")))


DISK_FULL_ON_RANK_1 = """
import errno, os
import model.training.checkpoint as checkpoint
real = checkpoint._write
def full(path, kind, content):
    if 'step-00000040' in str(path):
        path.write_bytes(next(iter(content)))
        raise OSError(errno.ENOSPC, 'No space left on device')
    return real(path, kind, content)
if os.environ['RANK'] == '1':
    checkpoint._write = full
"""


@pytest.mark.more
def test_a_disk_that_fills_on_one_rank_ends_all_and_they_resume_to_the_last_bit(
    undisturbed: Any, new_run: NewRun
) -> None:
    run = new_run(**SHARDED)
    assert run.finish(run.torchrun(fault=DISK_FULL_ON_RANK_1)) != 0
    assert run.heartbeat.outcome == "disk_full"
    assert sorted(run.manifests()) == [20]
    verify(folder_of(run, 20), run.manifests()[20])
    left = [entry.name for entry in (run.out / "checkpoints").iterdir()]
    assert left == ["step-00000020"], "nothing half-made remains"
    assert run.finish(run.torchrun(attempt=2)) == 0
    assert run.metrics("start")[-1]["from_step"] == 20
    for kind in ("weights", "optimizer"):
        mine, others = (
            [file.sha256 for file in each.manifests()[STEPS].files if file.kind == kind]
            for each in (run, undisturbed)
        )
        assert mine == others
