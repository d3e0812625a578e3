"""Data sets by name: made beside training on this machine, and the command that looks at them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import web_corpus
from tests.e2e.user import User, real_trainer, until
from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.core.errors import Outcome
from trmcloud.operations.reasons import sentence

SETTINGS = """\
depth = 1
width = 32
head_dim = 16
vocab_size = 320
sequence = 32
batch = 1
steps = 30
eval_every = 10
eval_tokens = 1024
save_every = 10
log_every = 5
"""
LAUNCH = (
    *("launch", "local", "--recipe", "trm-tiny", "--data", "fineweb-edu", "--phase", "fast"),
    *("--rate", "3.60", "--budget", "1", "--processes", "1", "-y"),
)
SETS = "/datasets/karpathy/fineweb-edu-100b-shuffle/resolve/main"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    web_corpus.put_on(DataHost(), folder)
    return folder


@pytest.fixture
def host(corpus: Path) -> Iterator[DataHost]:
    made = DataHost()
    made.put(SETS, corpus)
    with serving(made):
        yield made


@pytest.fixture
def reader(tmp_path: Path, host: DataHost) -> Iterator[User]:
    """A user of the real trainer whose data host is on loopback."""
    settings = tmp_path / "small.toml"
    settings.write_text(SETTINGS)
    user = User(tmp_path, trainer=real_trainer(tmp_path / "trainer"))
    user.environment |= {
        "OMP_NUM_THREADS": "1",
        "TRMCLOUD_TEST_SETTINGS": str(settings),
        **host.environment,
    }
    yield user
    user.end_everything()


def test_a_killed_preparation_and_agent_go_on(reader: User, host: DataHost) -> None:
    # In the middle of the preparation one shard waits, however slow everything else is.
    go_on = threading.Event()
    host.faults[f"{SETS}/shard_00005.parquet"] = Fault(held=go_on)
    reader.run(*LAUNCH, "-d")
    preparing = reader.pids("model.prepare")
    assert preparing, "it is made beside training"
    status = ("status", reader.only_run().run_id)
    # The agent says how far it is with its next report, which may come after launch has left.
    until(lambda: "\ndata " in reader.run(*status), what="status says how far it is")
    os.kill(preparing[0], signal.SIGKILL)
    until(lambda: _others(reader, preparing), what="it is started again")
    again = reader.pids("model.prepare")
    for agent in reader.pids("trmcloud.pod.agent.process"):
        os.kill(agent, signal.SIGKILL)
    until(lambda: not set(again) & set(reader.pids("model.prepare")), what="it ends, too")
    go_on.set()
    until(lambda: not reader.live_pods(), within_s=200, what="the pod ends by itself")
    reader.run("status")
    run = reader.only_run()
    assert run.outcome is Outcome.FINISHED, sentence(run.reason)
    assert run.phases["fast"].step == 30
    assert len(reader.checkpoints()) >= 2
    folder = Path(json.loads(_note(reader))["data_dir"])
    assert "hash as recorded" in reader.run("data", "check", str(folder))
    assert reader.json("eval", "--json")["values"]["val_bpb"] > 0


def _others(user: User, known: list[int]) -> bool:
    return bool(set(user.pids("model.prepare")) - set(known))


def _note(user: User) -> str:
    return (user.home / "runs" / user.only_run().run_id / "launch.json").read_text()
