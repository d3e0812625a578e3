"""Data sets by name: made beside training on this machine, and the command that looks at them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import web_corpus
from tests.e2e.user import User, real_trainer, until
from tests.standins.data_host import DataHost, Fault, serving
from trmcloud.adapters.files import load_data_set
from trmcloud.app.reasons import sentence
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd

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
    host.bytes_per_second = 60_000  # time enough to be killed in
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
    host.bytes_per_second = 0
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


def test_data_that_cannot_come_ends_the_run_with_its_cost(reader: User, host: DataHost) -> None:
    host.faults[f"{SETS}/shard_00003.parquet"] = Fault(status=404)
    out = reader.run(*LAUNCH, code=Outcome.FAILED.exit_code)
    run = reader.only_run()
    assert run.outcome is Outcome.FAILED
    (why,) = [line for line in out.splitlines() if line.startswith("  why: ")]
    assert "shard_00003.parquet was not found: the host answered 404" in why
    assert f"spent {run.settled} of" in out
    assert ZERO < run.settled < Usd("0.5")
    assert run.phases["fast"].outcome == "bad_data"
    assert reader.live_pods() == []
    del host.faults[f"{SETS}/shard_00003.parquet"]
    reader.run("resume", "-y", run.run_id)
    assert reader.only_run().outcome is Outcome.FINISHED


def test_an_unknown_name_is_refused_before_anything_is_done(reader: User, host: DataHost) -> None:
    words = [*LAUNCH[:5], "fineweb-ed", *LAUNCH[6:]]
    assert "did you mean fineweb-edu?" in reader.refused(*words, code=9)
    assert "did you mean climbmix?" in reader.fails("data", "show", "climbmx", code=3)
    assert host.requests == []


def test_list_and_show(reader: User) -> None:
    shown = reader.run("data", "list")
    (line,) = [line for line in shown.splitlines() if line.startswith("fineweb-edu ")]
    assert "ODC-By 1.0" in line
    assert line.endswith("trm")
    names = {row["name"] for row in reader.json("data", "list", "--json")["data_sets"]}
    assert {"climbmix", "openwebtext", "gsm8k", "generated"} <= names
    about = reader.run("data", "show", "climbmix")
    assert "CC BY-NC 4.0" in about
    assert "6,542: shard_00000.parquet" in about


def test_get_goes_on_where_it_stopped(reader: User, host: DataHost) -> None:
    get = ("data", "get", "fineweb-edu", "--recipe", "trm-tiny", "--tokens")
    host.faults[f"{SETS}/shard_00002.parquet"] = Fault(status=403)
    assert "403" in reader.fails(*get, "20000", code=9)
    del host.faults[f"{SETS}/shard_00002.parquet"]
    first = reader.run(*get, "20000")
    assert "tokens to train on" in first
    asked = len(host.requests)
    assert reader.run(*get, "20000") == first
    again = [each.path for each in host.requests[asked:]]
    assert all("/api/" in path for path in again), "what is there is not asked for again"
    more = reader.run(*get, "150000")
    assert more.splitlines()[1] == first.splitlines()[1], "the same folder goes on"
    assert more != first


def test_check_says_what_is_wrong_with_which_file(reader: User, host: DataHost) -> None:
    found = load_data_set("fineweb-edu")
    first, last = [f"{SETS}/{name}" for name in (next(found.shard_names()), "shard_01821.parquet")]
    host.files[last] = host.files[first]
    checked = reader.json("data", "check", "fineweb-edu", "--json")
    assert (checked["passed"], len(checked["checks"])) == (True, 3)
    good = reader.run("data", "check", "fineweb-edu")
    assert good.count("✔") == 3
    assert "column 'text'" in good
    host.faults[last] = Fault(html=True)
    process = reader.start("data", "check", "fineweb-edu")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 9
    assert "✘ shard_01821.parquet" in out
    assert "a web page" in out
    assert "1 of its files" in err
    assert "--all" not in err


def test_a_token_goes_to_its_host_alone(reader: User, host: DataHost) -> None:
    reader.environment["HF_TOKEN"] = "hf_SECRET"
    host.needs_token = "hf_SECRET"
    reader.start("data", "check", "fineweb-edu").communicate(timeout=60)
    told = {asked.host: asked.headers.get("Authorization") for asked in host.requests}
    assert told == {"hub": "Bearer hf_SECRET", "cdn": None}


def test_a_damaged_folder_is_told(reader: User) -> None:
    get = ("data", "get", "fineweb-edu", "--recipe", "trm-tiny", "--tokens", "20000", "--json")
    folder = Path(reader.json(*get)["folder"])
    assert "✘" not in reader.run("data", "check", str(folder))
    shard = folder / "shard-00000.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    process = reader.start("data", "check", str(folder))
    out, _err = process.communicate(timeout=60)
    assert process.returncode == 9
    assert "✘ shard-00000.bin" in out
    assert "damaged" in out
