"""The trainer's small commands: sampling from a checkpoint, scoring it, and how they fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from model import command, sample, score
from model.machine.telemetry import peak_flops
from model.training.load import load_model
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.errors import CheckpointError, DataError, MissingExtra
from trmcloud.io.installation import install_command

ROOT = Path(__file__).parents[2]


def run_sample(folder: Path, *more: str) -> int:
    return sample.main(["--checkpoint", str(folder), "--max-tokens", "40", *more])


def test_a_sample_is_repeatable(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        assert run_sample(checkpoint, "--prompt", "the dog", "--seed", seed) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].startswith("the dog")
    assert len(texts[0]) > len("the dog\n")
    assert texts[0] == texts[1] != texts[2]


def test_temperature_zero_is_greedy(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for seed in ("1", "2"):
        assert run_sample(checkpoint, "--temperature", "0", "--seed", seed) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


def test_a_sample_longer_than_the_context_goes_on(checkpoint: Path) -> None:
    loaded = load_model(checkpoint)
    text = sample.sample(loaded, "the", max_tokens=100, temperature=1.0, top_k=0, seed=3)
    assert len(loaded.tokenizer.encode([text], [""])[0]) > loaded.settings.sequence


def test_a_prompt_longer_than_the_context_is_cut_for_the_model_alone(checkpoint: Path) -> None:
    prompt = "the small dog sees " * 30
    text = sample.sample(
        load_model(checkpoint), prompt, max_tokens=3, temperature=0, top_k=0, seed=0
    )
    assert text.startswith(prompt)


def test_no_control_character_reaches_it(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sample(checkpoint, "--prompt", "a\x1b[31mred\x07") == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "bad", [["--temperature", "-1"], ["--temperature", "nan"], ["--max-tokens", "0"],
            ["--top-k", "-2"]],
)  # fmt: skip
def test_bad_wishes_fail(
    checkpoint: Path, bad: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_sample(checkpoint, *bad) == 2
    assert bad[0] in json.loads(capsys.readouterr().err.splitlines()[-1])["what"]


def test_a_damaged_checkpoint_is_not_sampled_from(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    with open(copy / "weights.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert run_sample(copy) == 10
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert "hash" in told["what"]
    assert told["where"] == str(copy)


def test_weights_and_tokenizer_are_enough(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "weights.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    assert load_model(tmp_path).manifest.step == 40


def test_a_score_is_that_of_training(
    checkpoint: Path, trained: Any, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--checkpoint", str(checkpoint), "--data", str(data_dir)]
    assert score.main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    last = trained.metrics("eval")[-1]
    assert told["val_bpb"] == pytest.approx(last["val_bpb"], rel=1e-6)
    assert told["val_step_losses"] == pytest.approx(last["val_step_losses"], rel=1e-6)
    assert told["sha256"] == trained.manifests()[40].sha256
    assert told["byte_unigram_bits"] > told["byte_bigram_bits"] > 0
    assert told["trained_on_this_text"] is True
    assert score.main(arguments) == 0
    text = capsys.readouterr().out
    for loss in last["val_step_losses"]:
        assert f"{loss:.4f}" in text
    assert f"{last['val_bpb']:.4f} bits/byte" in text


def test_a_first_step_is_held_to_a_model_that_has_but_one(
    checkpoint: Path, data_dir: Path, new_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run("hardly", supervision_steps=1, steps=2)
    assert run.train_here() == "finished"
    control = str(run.out / "checkpoints/step-00000002")
    arguments = ["--checkpoint", str(checkpoint), "--data", str(data_dir), "--control"]
    capsys.readouterr()
    assert score.main([*arguments, control, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["first_step_worse"] == pytest.approx(
        told["val_step_losses"][0] / told["control_loss"] - 1
    )
    assert told["first_step_worse"] < 0, "two steps teach nothing"
    assert score.main([*arguments, control]) == 0
    text = capsys.readouterr().out
    assert "% better" in text
    assert "warning" not in text
    bought = {**told, "first_step_worse": 0.031}
    assert "3.1% worse\nwarning: more than 2%" in score._as_text(bought)
    assert score.main([*arguments, str(checkpoint)]) == 2
    assert "supervision_steps=1" in capsys.readouterr().err


def test_data_of_another_tokenizer_is_refused(
    checkpoint: Path, data_dir: Path, tmp_path: Path, settings: Any, text: str
) -> None:
    from model.preparing.whole import prepare

    (tmp_path / "t.txt").write_text(text[::-1], encoding="utf-8")
    prepare(str(tmp_path / "t.txt"), settings, tmp_path / "data")
    with pytest.raises(DataError, match="not prepared with the checkpoint's tokenizer"):
        score.score(checkpoint, tmp_path / "data")


def test_a_missing_package_is_named_with_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def needs_torch() -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    assert command.run_command(needs_torch) == MissingExtra.exit_code
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert told["next_step"] == install_command("train")


def test_help_shows_an_example_and_waits_for_no_torch() -> None:
    code = (
        "import contextlib, importlib, sys\n"
        "for name in ('prepare', 'sample', 'score', 'tasks.__main__', 'train'):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        importlib.import_module(f'model.{name}').main(['--help'])\n"
        "    assert 'torch' not in sys.modules and 'numpy' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("example:") == 5


def test_a_trainer_without_a_job_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "model.train"], capture_output=True, text=True, cwd=ROOT,
        env={"PATH": "", "TRMCLOUD_JOB": "/nowhere/job.json"},
    )  # fmt: skip
    assert done.returncode == 2
    assert json.loads(done.stderr.splitlines()[-1])["where"] == "/nowhere/job.json"


@pytest.mark.parametrize(
    ("device", "sku"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA RTX A1000", "RTXA1000"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
    ],
)
def test_a_drivers_name_finds_its_peak(device: str, sku: str) -> None:
    assert peak_flops(device, "bfloat16") == GPUS[sku].peak_flops("bfloat16")


def test_an_unknown_device_has_no_peak() -> None:
    assert peak_flops("AMD Instinct MI250X", "bfloat16") is None


def test_waiting_threads_sleep_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where something else computes, too, spinning threads keep their own partners waiting."""
    for given, kept in ((None, "passive"), ("active", "active")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        command.run_command(lambda: None)
        assert os.environ["OMP_WAIT_POLICY"] == kept


SHAPES: Sequence[tuple[str, object, str]] = (
    ("vocab_size", 3_000_000, "the shape of its weights differs from its manifest"),
    ("width", 1 << 16, "the shape of its weights differs from its manifest"),
    ("depth", 9_999, "tensors, fewer than layers"),
    ("depth", 10**15, "its settings are not those of a model"),
    ("sequence", 10**12, "its settings are not those of a model"),
    ("vocab_size", "many", "its settings are not those of a model"),
)
SAMPLED = """
import json, os, runpy, sys
import torch, model.training.load
for folder in sys.argv[1:]:
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for end in (1, 2):
            os.dup2(write, end)
        os.close(write)
        sys.argv = ["sample", "--checkpoint", folder, "--max-tokens", "2"]
        runpy.run_module("model.sample", run_name="__main__", alter_sys=True)
    os.close(write)
    with open(read) as said:
        text = said.read()
    _, status, used = os.wait4(pid, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_maxrss, text]))
"""
"""By folder: exit code, most resident KiB, and all that ``model.sample`` said, each in a process
of its own that is forked once torch is there."""


def test_a_manifest_of_another_shape_is_refused_before_memory_is_taken(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The kernel tells how much memory was taken at most; one that samples is the measure."""
    folders = [checkpoint]
    for number, (setting, value, _) in enumerate(SHAPES):
        folders.append(Path(shutil.copytree(checkpoint, tmp_path / str(number))))
        manifest = json.loads((folders[-1] / "manifest.json").read_text())
        manifest["settings"][setting] = value
        (folders[-1] / "manifest.json").write_text(json.dumps(manifest))
    done = subprocess.run(
        [sys.executable, "-c", SAMPLED, *map(str, folders)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (sound, usual_kib, _), *others = map(json.loads, done.stdout.splitlines())
    assert sound == 0
    for (setting, value, told), (code, most_kib, text) in zip(SHAPES, others, strict=True):
        assert code == CheckpointError.exit_code, (setting, value, text)
        assert told in text
        assert "Traceback" not in text
        assert most_kib < usual_kib + (100 << 10), f"{setting}: {most_kib >> 10} MiB"
