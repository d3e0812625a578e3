"""Which checkpoint of one's own command is the best: the job's process on small scripts.

Each script writes its true loss into the files that it saves. A checkpoint that is called best
without doubt must have the value that its metric says.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trmcloud.core.contract.command import CODE_NAME, Command
from trmcloud.core.contract.command_terms import TREE_NAME, CheckpointTree
from trmcloud.core.contract.manifest import CheckpointManifest, from_json, pick_best, rivals
from trmcloud.core.contract.records import dump, load
from trmcloud.core.contract.trainer_contract import ENV_ATTEMPT, ENV_JOB, Heartbeat, PhaseJob

SAVE = """\
import json, os, signal, struct, sys, time
def save(name, loss):
    head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + struct.pack("<f", loss))
"""


class Kept(NamedTuple):
    """A checkpoint that a run left: its manifest, its name, and the loss that its file holds."""

    manifest: CheckpointManifest
    source: str
    loss: float

    @property
    def value(self) -> float | None:
        told = self.manifest.own_metric
        return told[1] if told else None


class Script:
    """One script under the job's process, attempt after attempt."""

    def __init__(
        self, folder: Path, code: str, words: str = "", before: Sequence[str] = (), **command: Any
    ) -> None:
        self.folder = folder
        self.out = folder / "runs/r1/train"
        sent = folder / "sent"
        sent.mkdir()
        (folder / "train.py").write_text(SAVE + textwrap.dedent(code))
        with tarfile.open(sent / CODE_NAME, "w") as tar:
            tar.add(folder / "train.py", "train.py")
        typed = (*before, sys.executable, "train.py", *words.split())
        own = Command(typed, grace_s=5.0, **command)
        self.command = own
        job = PhaseJob("r1", "train", {}, "", str(self.out), 1, command=own, code_dir=str(sent))
        self.out.mkdir(parents=True)
        (folder / "job.json").write_text(dump(job))
        self.attempts = 0

    def run(self, **environment: str) -> str:
        """Run an attempt to its end; return its log."""
        self.attempts += 1
        ended = subprocess.run(
            [sys.executable, "-m", "trmcloud.pod.job.process"],
            env={
                **os.environ,
                **environment,
                ENV_JOB: str(self.folder / "job.json"),
                ENV_ATTEMPT: str(self.attempts),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    @property
    def beat(self) -> Heartbeat:
        return load(Heartbeat, 1, (self.out / "heartbeat.json").read_text())

    @property
    def kept(self) -> list[Kept]:
        found = []
        for path in sorted(self.out.glob("checkpoints/*/manifest.json")):
            manifest = from_json(path.read_text(), str(path))
            tree = load(CheckpointTree, 1, (path.parent / TREE_NAME).read_text())
            weights = (path.parent / manifest.weights[0].name).read_bytes()
            found.append(Kept(manifest, tree.source, struct.unpack("<f", weights[-4:])[0]))
        return found

    def best(self) -> Kept:
        """The best; its metric is its file's loss, or it is unsure and that one is a candidate."""
        kept = self.kept
        best = pick_best([each.manifest for each in kept])
        assert best is not None, kept
        by_step = {each.manifest.step: each for each in kept}
        found = by_step[best.step]
        others = rivals(best, [each.manifest for each in kept])
        if not others:
            assert found.loss == pytest.approx(found.value, abs=0.006), found
        candidates = [found, *(by_step[other.step] for other in others)]
        least = min(candidates, key=lambda each: self.command.score(each.loss))
        assert least.loss == min(kept, key=lambda each: self.command.score(each.loss)).loss
        return found


def test_a_value_that_is_printed_after_its_file_belongs_to_it(tmp_path: Path) -> None:
    code = """\
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch, loss in enumerate((3.0, 1.0, 2.0, 4.0)):
            for _ in range(20):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            state = {"weights": model.state_dict(), "epoch": epoch, "loss": loss}
            torch.save(state, f"model_{epoch}.pt")
            print(f"Validation loss: {loss}", flush=True)
    """
    script = Script(tmp_path, code, metric="validation_loss", keep_best=4)
    log = script.run()
    kept = {each.source: each for each in script.kept}
    assert {name: each.value for name, each in kept.items()} == {
        "model_0.pt": 3.0, "model_1.pt": 1.0, "model_2.pt": 2.0, "model_3.pt": 4.0,
    }, log  # fmt: skip
    assert all(each.manifest.is_sure for each in kept.values())
    assert "unsure" not in script.beat.message
    assert "\x1e" not in log


def test_an_iteration_is_no_step(tmp_path: Path) -> None:
    code = """\
        for step in range(1, 41):
            time.sleep(0.02)
            for it in (2 * step - 1, 2 * step):
                print(f"Epoch 1 | iter {it} step {step} | loss train: {5 / step:.3f}, val: n/a")
            if step % 5 == 0:
                val = 1 + abs(step - 10) / 10
                print(f"iter {2 * step}: val loss {val:.4f}, val time: 50.00 ms", flush=True)
                save(f"out/step-{step:08d}/lit_model.safetensors", val)
                time.sleep(0.5)
    """
    script = Script(tmp_path, code, checkpoints="out", metric="val_loss")
    script.run()
    script.best()
    assert "unsure which checkpoint is the best" in script.beat.message


def test_a_printed_configuration_has_no_metric(tmp_path: Path) -> None:
    code = """\
        print("callbacks:\\n  early_stopping:\\n    monitor: val_acc\\n    patience: 100")
        sys.stdout.flush()
        save("init.safetensors", 0)
        for epoch in range(1, 6):
            time.sleep(0.6)
            print(f"loss: {1 / epoch:.3f}", flush=True)
            time.sleep(0.4)
            print(f"val_acc={0.5 + epoch / 100:.4f}", flush=True)
            save("last.safetensors", 0.5 + epoch / 100)
    """
    script = Script(tmp_path, code, metric="val_acc", higher_is_better=True)
    script.run()
    assert script.best().source == "last.safetensors"


def test_files_of_a_run_before_are_no_result(tmp_path: Path) -> None:
    place = tmp_path / "outside"
    code = f"""\
        worse, epochs = float(sys.argv[1]), int(sys.argv[2])
        sys.stderr.write("Epoch 0 - loss: 0.0000:   0%|    | 0/24 [00:00<?, ?it/s]\\n")
        for epoch in range(1, epochs + 1):
            time.sleep(0.7)
            loss = worse + 1 / epoch
            print(f"Validation Results - Epoch: {{epoch}} Avg loss: {{loss:.2f}}", flush=True)
            save(f"{place}/checkpoint_{{epoch}}.safetensors", loss)
    """
    for number, words in enumerate(("0.1 4", "5 2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = Script(folder, code, words, checkpoints=str(place), metric="loss")
        script.run()
    assert {each.source for each in script.kept} <= {
        "checkpoint_1.safetensors",
        "checkpoint_2.safetensors",
    }
    assert script.best().loss == 5.5


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (
            """\
            for n in range(1, 4):
                time.sleep(0.7)
                save(f"mlruns/0/models/m-{n:032x}/artifacts/model.safetensors", 1 / n)
                print(f"rmse: {1 / n:.3f}", flush=True)
            """,
            {"metric": "rmse"},
        ),
        (
            """\
            for n, loss in enumerate((0.9, 0.25, 0.8), 1):
                print("step %d val_loss: %s" % (n, str(loss).replace(".", ",")), flush=True)
                save(f"out/step-{n}.safetensors", loss)
                time.sleep(0.7)
            """,
            {"metric": "val_loss"},
        ),
        (
            """\
            for epoch in range(1, 5):
                time.sleep(0.7)
                train, valid = 1 / epoch, 1 + abs(epoch - 2) / 5
                print(f"epoch {epoch} - train loss: {train:.3f} - valid loss: {valid:.3f}")
                sys.stdout.flush()
                save(f"model_{epoch}.safetensors", valid)
            """,
            {"metric": "loss"},
        ),
        (
            """\
            sys.path.insert(0, os.environ["PYTHONPATH"].split(":")[0])
            import trmcloud_job
            for step, loss in enumerate((3.0, 1.0, 2.0)):
                save("last.safetensors", loss)
                trmcloud_job.report(step, val_loss=loss, checkpoint="last.safetensors")
                print(f"val_loss {9 - loss}", flush=True)
                time.sleep(1.2)
            """,
            {"metric": "val_loss"},
        ),
    ],
    ids=["mlflow", "decimal comma", "both in a line", "reported"],
)
def test_the_best_has_the_least_loss_or_is_unsure(
    tmp_path: Path, code: str, command: dict[str, Any]
) -> None:
    script = Script(tmp_path, code, **command)
    log = script.run()
    best = script.best()
    if "trmcloud_job" in code:
        assert best.manifest.is_sure, log


def test_a_file_of_an_unknown_suffix_below_a_pattern_is_taken(tmp_path: Path) -> None:
    code = """\
        import pickle
        os.makedirs("d3rlpy_logs/SAC_20261128")
        for n in range(1, 3):
            with open(f"d3rlpy_logs/SAC_20261128/model_{n * 100}.d3", "wb") as file:
                pickle.dump({"torch": b"x" * 100, "n": n}, file)
            print(f"step={n * 100} rollout_return={n - 5}", flush=True)
            time.sleep(0.7)
    """
    pattern = Script(tmp_path, code, checkpoints="d3rlpy_logs/*/model_*.d3")
    pattern.run()
    assert [each.source for each in pattern.kept][-1].endswith("SAC_20261128/model_200.d3")
    whole = tmp_path / "whole"
    whole.mkdir()
    tree = Script(whole, code)
    tree.run()
    assert [each.source for each in tree.kept][-1].endswith("SAC_20261128/model_200.d3")


RESUMED = """\
    start = int(sys.argv[-1].rpartition("_")[2].partition(".")[0]) if len(sys.argv) > 1 else 0
    attempt = int(os.environ["TRMCLOUD_ATTEMPT"])
    folder = f"runs/exp{attempt}"
    print("from", start, flush=True)
    for step in range(start + 1, start + 5):
        if attempt == 2:
            sys.exit(3)
        save(f"{folder}/model_{step}.safetensors", 10 / step)
        print(f"step {step} val_loss {10 / step:.4f}", flush=True)
        time.sleep(0.7)
    sys.exit(0 if attempt == 3 else 3)
"""


def test_an_attempt_that_saves_nothing_takes_nothing_again(tmp_path: Path) -> None:
    resume = (sys.executable, "train.py", "--resume", "{checkpoint}")
    script = Script(tmp_path, RESUMED, checkpoints="runs/exp1", metric="val_loss", resume=resume)
    script.run()
    first = {each.source: each.manifest.step for each in script.kept}
    assert "from 4" in script.run()
    assert {each.source: each.manifest.step for each in script.kept} == first
    assert "from 4" in script.run(), "no older one that was taken again"
    assert script.best().source == "runs/exp3/model_8.safetensors", "its new folder is watched"


def test_a_model_that_is_saved_outside_is_found(tmp_path: Path) -> None:
    code = f"""\
        import torch
        torch.save({{"loss": 1.0}}, "{tmp_path}/elsewhere.pt")
        time.sleep(0.3)
    """
    script = Script(tmp_path, code)
    log = script.run()
    assert [each.source for each in script.kept] == ["elsewhere.pt"], log
    unobserved = tmp_path / "unobserved"
    unobserved.mkdir()
    other = Script(unobserved, code, unobserved=True)
    other.run()
    assert not other.kept


TWO_SPLITS = """\
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch, (train, val) in enumerate([(2.0, 2.6), (1.9, 2.5), (1.8, 2.4), (1.7, 2.45)]):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        print(f"Epoch {epoch} training - loss: {train}", flush=True)
        time.sleep(0.5)
        SAVES_FIRST
        print(f"Epoch {epoch} validation - loss: {val}", flush=True)
        time.sleep(0.3)
        SAVES_THEN
        time.sleep(1.2)
"""
_SAVES = 'save(f"m{epoch}.safetensors", val)'


def test_a_loss_of_training_is_never_compared_with_a_held_out_one(tmp_path: Path) -> None:
    code = TWO_SPLITS.replace("SAVES_FIRST", "pass").replace("SAVES_THEN", _SAVES)
    script = Script(tmp_path, code, metric="loss")
    script.run()
    assert {each.source: each.value for each in script.kept} == {
        "m2.safetensors": 2.4,
        "m3.safetensors": 2.45,
    }
    assert script.best().source == "m2.safetensors"
    first = tmp_path / "first"
    first.mkdir()
    code = TWO_SPLITS.replace("SAVES_FIRST", _SAVES).replace("SAVES_THEN", "pass")
    script = Script(first, code, metric="loss")
    script.run()
    assert script.best().value == 2.4


def test_the_mean_of_an_evaluation_counts_from_the_first_epoch_on(tmp_path: Path) -> None:
    code = """\
        import shutil, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best = 0.0
        for epoch, batches in enumerate([(18.75, 37.5), (25.0, 35.0), (20.0, 18.75)]):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            print(f"Epoch: [{epoch}][1/1]\\tLoss 4.0 (4.0)\\tAcc@1  25.00 ( 25.00)", flush=True)
            for number, value in enumerate(batches, 1):
                time.sleep(0.5)
                print(f"Test: [{number}/2]\\tLoss 4.0\\tAcc@1  {value:.2f} ( 25.00)", flush=True)
            mean = sum(batches) / 2
            print(f" *   Acc@1 {mean:.3f} Acc@5 54.167", flush=True)
            torch.save({"loss": mean}, "checkpoint.pth.tar")
            if mean > best:
                best = mean
                shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
            time.sleep(2)
    """
    script = Script(tmp_path, code, metric="Acc@1", higher_is_better=True)
    script.run()
    best = pick_best(each.manifest for each in script.kept)
    assert best is not None
    assert best.own_metric == ("Acc@1", 30.0)
    assert not rivals(best, [each.manifest for each in script.kept])


def test_what_was_written_elsewhere_and_not_understood_is_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""\
        for name in ("kept.state", "gone.state"):
            open("{elsewhere}/" + name, "wb").write(b"1")
        os.remove("{elsewhere}/gone.state")
        os.makedirs(os.path.expanduser("~/.cache/x"), exist_ok=True)
        open(os.path.expanduser("~/.cache/x/blob.bin"), "wb").write(b"1")
        save("model.safetensors", 1.0)
    """
    log = Script(tmp_path, code).run(HOME=str(tmp_path))
    line = f"what it wrote in {elsewhere} stays there: --checkpoints with that folder brings it"
    assert line in log
    assert ".cache" not in log


@pytest.mark.parametrize(
    "before",
    [("env", "A=1", "PYTHONPATH=own"), ("bash", "-c", 'A=1 PYTHONPATH="own" "$0" "$@"')],
)
def test_a_command_that_sets_its_own_path_is_observed(
    tmp_path: Path, before: tuple[str, ...]
) -> None:
    code = """\
        first, last = os.environ["PYTHONPATH"].split(os.pathsep)
        print("path", os.path.basename(first), last)
        save("model.safetensors", 1.0)
    """
    script = Script(tmp_path, code, before=before)
    assert "path on-path own\n" in script.run()
    assert '"python"' in (script.out / "observed-1.jsonl").read_text()


def test_signals_that_a_shell_has_ignored_reach_the_command(tmp_path: Path) -> None:
    code = """\
        for name in ("SIGINT", "SIGHUP", "SIGTERM"):
            print(name, signal.getsignal(getattr(signal, name)) in (
                signal.SIG_DFL, signal.default_int_handler))
    """
    script = Script(tmp_path, code)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGHUP)}
    try:
        log = script.run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert "SIGINT True\nSIGHUP True\nSIGTERM True\n" in log


def test_a_command_that_only_computes_gives_a_sign_now_and_then(tmp_path: Path) -> None:
    code = """\
        end = time.time() + 9
        while time.time() < end:
            sum(range(10000))
    """
    computing = Script(tmp_path, code, silent_s=2.0)
    computing.run()
    assert 2 <= computing.beat.signs <= 5
    sleeping = tmp_path / "sleeping"
    sleeping.mkdir()
    idle = Script(sleeping, "time.sleep(4)", silent_s=2.0)
    idle.run()
    assert idle.beat.signs == 0
