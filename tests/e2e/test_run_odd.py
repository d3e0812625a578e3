"""``trmcloud run`` on this machine: what comes home of scripts with odd habits is their model."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.e2e.user import User
from tests.standins import scripts
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def run(user: User, text: str, *options: str, code: int = 0) -> str:
    assert user.cwd is not None
    (user.cwd / "train.py").write_text(text, encoding="utf-8")
    rate = ("--rate", "3.60", "--budget", "0.20", "--checkpoint-gb", "0.01", "-y")
    shown = user.run("run", "local", *rate, *options, "--", "python3", "train.py", code=code)
    assert not user.live_pods()
    return shown


def fetched(user: User) -> Path:
    """The file or folder that ``fetch-best`` brings, under its own name."""
    assert user.cwd is not None
    user.run("fetch-best", "--into", "best")
    [found] = (user.cwd / "best" / "own").iterdir()
    return found


def metric(user: User) -> dict[str, object]:
    """The metric in the fetched checkpoint's manifest."""
    assert user.cwd is not None
    path = user.cwd / "best" / "manifest.json"
    told = from_json(path.read_text(), str(path)).extra.get("metric", {})
    assert isinstance(told, dict)
    return told


def log_of(user: User) -> str:
    path = user.home / "runs" / user.only_run().run_id / "train" / "train.log"
    return path.read_text(encoding="utf-8", errors="replace")


def test_one_that_saves_and_then_evaluates(user: User) -> None:
    run(user, scripts.SAVES_FIRST, "--metric", "val_loss")
    best = fetched(user)
    assert best.read_text().startswith("real 1.0")
    assert metric(user)["value"] == 1.0


def test_one_that_diverges(user: User) -> None:
    run(user, scripts.DIVERGING, "--metric", "val_loss")
    assert fetched(user).read_text().startswith("loss 2.5")
    said = [
        from_json(path.read_text(), str(path)).extra.get("metric")
        for path in sorted(user.home.glob("runs/*/train/checkpoints/*/manifest.json"))
    ]
    assert {"name": "val_loss", "value": None, "by": "step", "said": "inf", "step": 3} in said


def test_one_that_writes_over_its_last(user: User) -> None:
    run(user, scripts.OVERWRITING, "--metric", "val_loss")
    assert "model.bin was overwritten" in log_of(user)
    assert fetched(user).read_text().startswith("0008")
    assert metric(user)["value"] == 0.125


@pytest.mark.parametrize("code", [0, 1], ids=["finishes", "fails"])
def test_one_that_names_its_best_itself_and_tells_no_metric(user: User, code: int) -> None:
    text = scripts.OWN_BEST.replace("sys.argv[1]", str(code))
    shown = run(user, text, "--keep-best", "1", code=Outcome.FAILED.exit_code if code else 0)
    assert "the script's own best: train/step-" in shown
    assert fetched(user).read_text() == "epoch 2"
    kept = user.home.glob("runs/*/train/checkpoints/*/tree.json")
    assert {json.loads(path.read_text())["source"] for path in kept} == {
        "runs/weights/best.pt",
        "runs/weights/last.pt",
    }


def test_one_whose_metric_stands_in_its_results_csv_alone(user: User) -> None:
    run(user, scripts.RESULTS_CSV, "--metric", "metrics/mAP50-95", "--best", "max")
    assert fetched(user).read_text() == "epoch 2"
    assert metric(user)["value"] == 0.5


def test_one_that_deletes_what_it_saved(user: User) -> None:
    run(user, scripts.DELETING, "--metric", "val_loss")
    assert fetched(user).read_text().startswith("short-lived")
    assert metric(user)["value"] == 0.5


def test_one_that_changes_its_folder_and_prints_no_text(user: User) -> None:
    run(user, scripts.WANDERING, "--metric", "val_loss")
    assert fetched(user).read_text().startswith("far")
    assert metric(user)["value"] == 0.25


def test_one_that_works_in_another_folder(user: User, tmp_path: Path) -> None:
    assert user.cwd is not None
    other = tmp_path / "elsewhere"
    other.mkdir()
    (user.cwd / "train.py").write_text(scripts.LEAVING, encoding="utf-8")
    options = ("--rate", "3.60", "--budget", "0.20", "--checkpoint-gb", "0.01", "-y")
    train = ("--", "python3", "train.py", str(other))
    shown = user.run("run", "local", *options, *train, code=NO_CHECKPOINT_CODE)
    assert f"which is watched with --checkpoints {other}" in " ".join(shown.split())
    user.run("run", "local", *options, "--checkpoints", str(other), *train)


def test_one_whose_metric_stands_in_its_own_files_alone(user: User) -> None:
    shown = run(user, scripts.OWN_FILES, "--metric", "cats_score", "--best", "max")
    assert "has not appeared" not in shown
    assert fetched(user).name == "model-best"
    assert metric(user)["value"] == 0.75


def test_one_whose_final_model_lies_beside_the_named_folder(user: User) -> None:
    text = (
        "import os, time\nos.makedirs('logs')\n"
        "open('logs/step_5.pt', 'wb').write(b'of step 5')\n"
        "print('step 5 val_loss=1.5', flush=True)\ntime.sleep(3)\n"
        "open('final.pt', 'wb').write(b'final')\n"
        "open('made.dat', 'wb').write(bytes(20_000_000))\n"
    )
    shown = run(user, text, "--metric", "val_loss", "--checkpoints", "logs")
    assert "left out other files: 1 beside the named places" in " ".join(shown.split())
    assert user.cwd is not None
    user.run("fetch-best", "--step", "0", "--into", "rest")
    [archive] = (user.cwd / "rest" / "own").iterdir()
    with tarfile.open(archive) as found:
        assert found.getnames() == ["final.pt"]


def test_one_that_prints_its_only_value_last(user: User) -> None:
    run(user, scripts.HASTY, "--metric", "val_loss")
    assert fetched(user).read_bytes().startswith(b"hasty")
    assert metric(user)["value"] == 0.125


def test_one_that_leaves_a_daemon(user: User) -> None:
    shown = run(user, scripts.DAEMON, code=NO_CHECKPOINT_CODE)
    assert "running, now ended: start it in the foreground" in " ".join(shown.split())


def test_one_that_saves_no_checkpoint(user: User) -> None:
    shown = run(user, scripts.TABLE, code=NO_CHECKPOINT_CODE)
    assert "no checkpoint was found; files of unknown layout were kept, not compared" in " ".join(
        shown.split()
    )
    with tarfile.open(fetched(user)) as archive:
        assert archive.getnames() == ["predictions.csv"]


def test_one_that_finishes_as_a_trainer_of_transformers_does(user: User) -> None:
    """Its arguments are no model, and its checkpoints outlive its end."""
    run(user, scripts.TRAINER, "--metric", "eval_loss")
    best = fetched(user)
    assert best.name == "checkpoint-40"
    assert (best / "model.safetensors").read_bytes().endswith(bytes([40]) * 500)
    assert metric(user) == {"name": "eval_loss", "value": 1.25, "by": "layout", "step": 40}
    assert "took out (transformers-model)" in log_of(user)


def test_one_that_writes_far_more_than_was_reserved(user: User) -> None:
    text = (
        "import os\nos.makedirs('out')\n"
        "with open('out/step_5.pt', 'wb') as file: file.truncate(40_000_000)\n"
        "print('step 5 val_loss=1.5')\n"
    )
    shown = run(user, text, "--metric", "val_loss")
    assert "a checkpoint holds 0.04 GB, more than the 0.01 GB reserved: --checkpoint-gb" in shown
    assert "spent $" in shown
    assert fetched(user).stat().st_size == 40_000_000
