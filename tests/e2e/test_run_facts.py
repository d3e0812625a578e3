"""``trmcloud run`` of habits that real scripts have: each ends well, or it is said what it lacks.

docs/soak/own-rows.md lists them all, with the test or run that shows each.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.e2e.user import User
from tests.standins import scripts
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
LAST_AND_BEST = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
print("FINDS", [f"{path.name}: {path.read_text()}" for path in sorted(out.iterdir())], flush=True)
for epoch in range(1, 1000):
    for name in ("last.pt", "best.pt")[: 1 + (epoch == 1)]:
        (out / "new").write_text(f"of epoch {epoch}")
        os.replace(out / "new", out / name)
    time.sleep(3)
"""
"""Prints no metric; its first epoch stays its best."""
RATE = ("--rate", "3.60", "--checkpoint-gb", "0.001", "-y")
PYTHON = ("--", "python3", "train.py")


@pytest.fixture
def user(in_project: User) -> User:
    return in_project


def script(user: User, text: str) -> None:
    assert user.cwd is not None
    (user.cwd / "train.py").write_text(text, encoding="utf-8")


def fetched(user: User) -> Path:
    """The file or folder that ``fetch-best`` brings, under its own name."""
    assert user.cwd is not None
    user.run("fetch-best", "--into", "best")
    return next((user.cwd / "best" / "own").iterdir())


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


def test_one_that_never_says_or_writes_anything_is_ended(user: User) -> None:
    script(user, "import time\nwhile True: time.sleep(1)\n")
    shown = user.run(
        *("run", "local", "--budget", "0.50", "--silent", "3", "--grace", "1", *RATE, *PYTHON),
        code=Outcome.FAILED.exit_code,
    )
    assert "no step for" in shown
    assert "spent $0.0" in shown
    assert not user.live_pods()


def test_one_that_saves_in_a_cache_outside_its_folder(user: User) -> None:
    """As nanochat does, whose place is ``~/.cache/nanochat``."""
    script(
        user,
        "import os, time\n"
        "out = os.path.join(os.path.expanduser('~'), '.cache', 'nanochat', 'base_checkpoints')\n"
        "os.makedirs(out, exist_ok=True)\n"
        "for step in range(1, 4):\n"
        "    print(f'step {step} | val_bpb: {1 / step:.4f}', flush=True)\n"
        "    open(f'{out}/model_{step:06d}.pt', 'w').write(f'of step {step}')\n"
        "    open(f'{out}/meta_{step:06d}.json', 'w').write('{}')\n"
        "    time.sleep(3)\n",
    )
    user.run(
        *("run", "local", "--budget", "0.20", *RATE, "--checkpoints", "~/.cache/nanochat"),
        *("--metric", "val_bpb", *PYTHON),
    )
    found = fetched(user)
    assert (found.parent / "model_000003.pt").read_text() == "of step 3"
    assert (user.folder / ".cache/nanochat/base_checkpoints/model_000003.pt").exists()


def test_one_that_ends_well_without_training_has_a_code_of_its_own(user: User) -> None:
    """As PyTorch's minGPT-ddp does on a machine with one GPU."""
    script(user, "print('Unable to locate sufficient 2 gpus to run this example. Exiting.')\n")
    shown = user.run("run", "local", "--budget", "0.10", *RATE, *PYTHON, code=NO_CHECKPOINT_CODE)
    assert "no checkpoint was found" in shown


class TestInABucket:
    """A run whose checkpoints go to a bucket."""

    @pytest.fixture
    def saver(self, user: User, s3: object) -> User:
        user.environment |= s3.environment  # type: ignore[attr-defined]
        return user

    def test_an_unjudged_archive_goes_to_the_bucket(self, saver: User) -> None:
        pytest.importorskip("boto3")
        from tests.standins.s3 import BUCKET

        script(
            saver,
            "import os, time\nos.makedirs('out')\n"
            "open('out/step-5.pt', 'w').write('model')\n"
            "open('out/predictions.csv', 'w').write('a,b')\n"
            "print('step 5 val_loss=1.5', flush=True)\ntime.sleep(3)\n",
        )
        saver.run(
            *("run", "local", "--budget", "0.30", *RATE, "--metric", "val_loss"),
            *("--bucket", f"s3://{BUCKET}/of-a-command", *PYTHON),
        )
        for folder in saver.home.glob("runs/*/*/checkpoints"):
            shutil.rmtree(folder)  # only the bucket has them
        assert fetched(saver).read_text() == "model", "the archive is never the best"
        saver.run("fetch-best", "--step", "0", "--into", "rest")
        assert saver.cwd is not None
        [archive] = (saver.cwd / "rest" / "own").iterdir()
        with tarfile.open(archive) as rest:
            assert rest.getnames() == ["out/predictions.csv"]

    def test_one_that_was_stopped_is_resumed_from_the_bucket_alone(self, saver: User) -> None:
        """Its checkpoint is put back where the script wrote it, and ``--resume`` names it there."""
        pytest.importorskip("boto3")
        from tests.standins.s3 import BUCKET

        script(saver, RESUMABLE)
        shown = saver.run(
            *("run", "local", "--budget", "0.026", *RATE, "--grace", "5"),
            *("--metric", "val_loss", "--bucket", f"s3://{BUCKET}/to-resume"),
            *("--resume", "python3 train.py --from {checkpoint}", *PYTHON),
            code=Outcome.LANDED.exit_code,
        )
        run_id = saver.only_run().run_id
        assert "spent $" in shown
        for folder in (*saver.home.glob("runs/*/*/checkpoints"), *saver.home.glob("runs/*/*/work")):
            shutil.rmtree(folder)
        assert not saver.checkpoints(), "only the bucket has them"
        saver.run("resume", "-y", run_id, "--budget", "0.06", code=Outcome.LANDED.exit_code)
        assert not saver.live_pods()
        log = saver.run("logs", run_id, "-n", "1000")
        begun = re.findall(r"BEGINS (\d+) from (\S*)", log)
        assert begun[0] == ("0", "")
        step, path = begun[-1]
        assert int(step) >= 5
        assert path.endswith(f"/train/work/out/step-{step}.ckpt"), "where the script wrote it"
        assert max(manifest.step for manifest in saver.checkpoints().values()) > int(step)

    def test_one_that_is_resumed_elsewhere_finds_its_last_and_its_best(self, saver: User) -> None:
        pytest.importorskip("boto3")
        from tests.standins.s3 import BUCKET

        script(saver, LAST_AND_BEST)
        saver.run(
            *("run", "local", "--budget", "0.026", *RATE, "--grace", "5"),
            *("--bucket", f"s3://{BUCKET}/last-and-best", "--resume", "python3 train.py", *PYTHON),
            code=Outcome.LANDED.exit_code,
        )
        run_id = saver.only_run().run_id
        for folder in (*saver.home.glob("runs/*/*/checkpoints"), *saver.home.glob("runs/*/*/work")):
            shutil.rmtree(folder)
        saver.run("resume", "-y", run_id, "--budget", "0.06", code=Outcome.LANDED.exit_code)
        found = re.findall(r"FINDS (\[.*\])", saver.run("logs", run_id, "-n", "1000"))
        assert found[0] == "[]"
        assert "'best.pt: of epoch 1'" in found[-1]
        assert "'last.pt: of epoch " in found[-1]
