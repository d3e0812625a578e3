"""``trmcloud report --to tensorboard|wandb``: from metrics here; no key goes to the pod."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_boards import kept_offline
from tests.documents import document_in
from tests.e2e.user import LAUNCH, User, until
from tests.standins.loopback import free_port

CANARY = "wandb-canary-" + "7" * 27


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[User]:
    """wandb keeps in its process what it was told: each command has one of its own."""
    made = User(tmp_path)
    yield made
    made.end_everything()


def test_tensorboard_shows_a_run_under_the_names_that_its_users_know(owner: User) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard`")
    run, port = owner.only_run(), free_port()
    process = owner.start(
        "report", "--to", "tensorboard", run.run_id, "--port", str(port), "--json"
    )
    try:
        assert process.stdout is not None
        serving = document_in(process.stdout.readline())
        assert (serving["url"], serving["run"]) == (f"http://127.0.0.1:{port}", run.run_id)
        path = "/data/plugin/scalars/scalars?run=fast&tag=train%2Fthroughput"

        def shown() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                    return len(json.load(answer)) > 1
            except urllib.error.HTTPError:
                return False  # not read yet

        until(shown, what="its throughput")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_wandb_follows_a_run_to_its_end_and_keeps_its_key_here(user: User) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb`")
    user.hold()
    often = ("--set", "log_every=2", "--set", "eval_every=10", "--set", "save_every=20")
    user.run(*LAUNCH, *often, "--steps", "60", "--budget", "1", "-d")
    run = user.only_run()
    user.environment |= {"WANDB_MODE": "offline", "WANDB_API_KEY": CANARY}
    process = user.start("report", "--to", "wandb", run.run_id, "--project", "thesis")
    try:
        assert process.stdout is not None
        where = process.stdout.readline().strip().removeprefix(f"{run.run_id}: ")
        assert Path(where).is_dir()
        (user.folder / "hold").unlink()
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        assert "lines of metrics" in out
    finally:
        process.kill()
    config, rows, _ = kept_offline(Path(where))
    assert config["run"] == run.run_id
    assert rows[-1]["_step"] == 60
    named = {name for row in rows for name in row}
    assert named >= {"train/loss", "train/throughput", "train/grad_norm", "eval/val_bpb"}
    paid = [row["cost/usd"] for row in rows]
    assert paid == sorted(paid)
    assert paid[-1] > 0
    again = user.json("report", "--to", "wandb", run.run_id, "--project", "thesis", "--json")
    assert (again["schema"], again["run"]) == ("metrics-sent/1", run.run_id)
    for path in (user.home / "pods").rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes()


def test_wandb_without_a_key_says_what_to_do(owner: User) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb`")
    owner.environment |= {
        "WANDB_BASE_URL": f"http://127.0.0.1:{free_port()}",
        "NETRC": str(owner.folder / "netrc"),
    }
    err = owner.fails("report", "--to", "wandb", owner.only_run().run_id, code=2)
    assert "Weights & Biases refuses" in err
    assert "WANDB_MODE=offline" in err
