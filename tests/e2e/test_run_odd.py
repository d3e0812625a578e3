"""``trmcloud run`` on this machine: what comes home of scripts with odd habits is their model."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.e2e.test_run import log_of, script
from tests.e2e.user import User
from tests.standins import scripts
from tests.standins.s3 import BUCKET, S3
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import NO_CHECKPOINT_CODE, Outcome

RESUMABLE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
path = sys.argv[2] if len(sys.argv) > 2 else ""
step = int(open(path).read()) if path else 0
print("BEGINS", step, "from", path, flush=True)
os.makedirs("out", exist_ok=True)
while True:
    time.sleep(0.2)
    step += 1
    print(f"step {step} val_loss={1 / step:.4f}", flush=True)
    if step % 5 == 0:
        with open(f"out/step-{step}.ckpt", "w") as file:
            file.write(str(step))
        time.sleep(2.2)
"""
"""Goes on from a checkpoint, and saves as it goes."""
RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "-y")
PYTHON = ("--", "python3", "train.py")


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def run(user: User, text: str, *options: str, code: int = 0) -> str:
    script(user, text)
    rate = ("--rate", "3.60", "--budget", "0.20", "--checkpoint-gb", "0.01", "-y")
    shown = user.run("run", "local", *rate, *options, "--", "python3", "train.py", code=code)
    assert not user.live_pods()
    return shown


def fetched(user: User) -> Path:
    """The file or folder that ``fetch-best`` brings, under its own name."""
    user.run("fetch-best", "--into", "best")
    [found] = (user.here / "best" / "own").iterdir()
    return found


def metric(user: User) -> dict[str, object]:
    """The metric in the fetched checkpoint's manifest."""
    path = user.here / "best" / "manifest.json"
    told = from_json(path.read_text(), str(path)).extra.get("metric", {})
    assert isinstance(told, dict)
    return told


def test_one_that_writes_over_its_last(user: User) -> None:
    run(user, scripts.OVERWRITING, "--metric", "val_loss")
    assert "model.bin was overwritten" in log_of(user)
    assert fetched(user).read_text().startswith("0008")
    assert metric(user)["value"] == 0.125


def test_one_that_names_its_best_itself_and_tells_no_metric(user: User) -> None:
    text = scripts.OWN_BEST.replace("sys.argv[1]", "1")
    shown = run(user, text, "--keep-best", "1", code=Outcome.FAILED.exit_code)
    assert "the script's own best: train/step-" in shown
    assert fetched(user).read_text() == "epoch 2"
    kept = user.home.glob("runs/*/train/checkpoints/*/tree.json")
    assert {json.loads(path.read_text())["source"] for path in kept} == {
        "runs/weights/best.pt",
        "runs/weights/last.pt",
    }


def test_one_that_works_in_another_folder(user: User, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (user.here / "train.py").write_text(scripts.LEAVING, encoding="utf-8")
    options = ("--rate", "3.60", "--budget", "0.20", "--checkpoint-gb", "0.01", "-y")
    train = ("--", "python3", "train.py", str(other))
    shown = user.run("run", "local", *options, *train, code=NO_CHECKPOINT_CODE)
    assert f"which is watched with --checkpoints {other}" in " ".join(shown.split())
    user.run("run", "local", *options, "--checkpoints", str(other), *train)


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
    user.run("fetch-best", "--step", "0", "--into", "rest")
    [archive] = (user.here / "rest" / "own").iterdir()
    with tarfile.open(archive) as found:
        assert found.getnames() == ["final.pt"]


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


def test_one_that_ignores_every_signal_is_killed_and_its_best_comes_home(user: User) -> None:
    script(user, scripts.DEAF)
    shown = user.run(
        *("run", "local", "--budget", "0.05", "--hours", "0.002", "--grace", "2", *RATE),
        *("--metric", "val_loss", *PYTHON),
        code=Outcome.LANDED.exit_code,
    )
    assert "it ran 2 s after the stop request, and was killed" in " ".join(shown.split())
    assert "spent $" in shown
    assert not user.live_pods()
    assert fetched(user).read_bytes() == b"deaf" * 100


def test_one_that_was_stopped_is_resumed_from_the_bucket_alone(user: User, s3: S3) -> None:
    """Its checkpoint is put back where the script wrote it, and ``--resume`` names it there."""
    user.environment |= s3.environment
    script(user, RESUMABLE)
    shown = user.run(
        *("run", "local", "--budget", "0.026", *RATE, "--grace", "5"),
        *("--metric", "val_loss", "--bucket", f"s3://{BUCKET}/to-resume"),
        *("--resume", "python3 train.py --from {checkpoint}", *PYTHON),
        code=Outcome.LANDED.exit_code,
    )
    run_id = user.only_run().run_id
    assert "spent $" in shown
    for folder in (*user.home.glob("runs/*/*/checkpoints"), *user.home.glob("runs/*/*/work")):
        shutil.rmtree(folder)
    assert not user.checkpoints(), "only the bucket has them"
    user.run("resume", "-y", run_id, "--budget", "0.06", code=Outcome.LANDED.exit_code)
    assert not user.live_pods()
    log = user.run("logs", run_id, "-n", "1000")
    begun = re.findall(r"BEGINS (\d+) from (\S*)", log)
    assert begun[0] == ("0", "")
    step, path = begun[-1]
    assert int(step) >= 5
    assert path.endswith(f"/train/work/out/step-{step}.ckpt"), "where the script wrote it"
    assert max(manifest.step for manifest in user.checkpoints().values()) > int(step)
