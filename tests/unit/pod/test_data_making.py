"""The agent's hold on what makes the data: a real process, started anew, told on, and ended."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pod.leases import a_lease, job_of
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.data_progress import DataProgress, load_progress
from trmcloud.core.contract.trainer_contract import DataJob
from trmcloud.pod.agent import data_making
from trmcloud.pod.agent.data_making import DataMaking, words_of
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.prepare import TrainerSetup

LEASE = a_lease(1_795_000_000.0)
#: A ``model.prepare`` that notes how it was called and does what ``then`` says.
PREPARE = """\
import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
with open(here / "calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items()}]) + "\\n")
THEN
"""


class Machine:
    """A pod's folder with a job, and a trainer's package whose preparation is scripted."""

    def __init__(self, root: Path, then: str) -> None:
        self.root = root
        self.package = root / "trainer" / "model"
        self.package.mkdir(parents=True)
        (self.package / "__init__.py").write_text("")
        (self.package / "prepare.py").write_text(PREPARE.replace("THEN", then))
        self.job = replace(
            job_of(LEASE, root),
            data=DataJob("a-set", 1000, {"name": "a-set"}, hosts="a=http://127.0.0.1"),
        )
        path = root / contract.RUNS_DIR / LEASE.run_id / "fast" / contract.JOB_NAME
        path.parent.mkdir(parents=True)
        path.write_text(contract.dump(self.job))
        (root / contract.PODS_DIR / LEASE.pod_name).mkdir(parents=True)
        self.boot = 0.0
        self.ready = True
        self.lines: list[str] = []
        setup = TrainerSetup(sys.executable, (str(root / "trainer"),))
        self.making = DataMaking(
            root, LEASE.pod_name, lambda: setup if self.ready else None, self.lines.append
        )

    def tend(self, passed_s: float = 0.0) -> None:
        self.boot += passed_s
        now = Instant(1_795_000_000.0 + self.boot, self.boot, "boot")
        self.making.tend(now, LEASE.run_id, ("fast",))

    def until_calls(self, count: int) -> list[tuple[list[str], dict[str, str]]]:
        path, deadline = self.package / "calls", time.monotonic() + 30
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            if len(lines) >= count:
                return [tuple(json.loads(line)) for line in lines]
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)

    def until_ended(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while sum("ended with" in line for line in self.lines) < count:
            assert time.monotonic() < deadline, self.lines
            self.tend()
            time.sleep(0.02)


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    made = Machine(tmp_path, request.param)
    yield made
    made.making.stop()
    assert processes.of_pod(LEASE.pod_name) == []


@pytest.mark.parametrize("machine", ["time.sleep(60)"], indirect=True)
def test_it_is_started_once_the_machine_is_ready(machine: Machine) -> None:
    machine.ready = False
    machine.tend()
    assert machine.lines == []
    machine.ready = True
    machine.tend()
    machine.tend(60.0)
    ((words, environment),) = machine.until_calls(1)
    words.remove("--doubt-cache")  # others fill the cache, too
    asked = dict(zip(words[::2], words[1::2], strict=True))
    assert asked["--source"] == "a-set"
    assert asked["--tokens"] == "1000"
    assert asked["--out"] == machine.job.data_dir
    assert json.loads(Path(asked["--data-set"]).read_text()) == {"name": "a-set"}
    assert json.loads(Path(asked["--settings"]).read_text()) == dict(machine.job.settings)
    assert environment["TRMCLOUD_DATA_HOSTS"] == "a=http://127.0.0.1"
    assert environment[contract.ENV_POD] == LEASE.pod_name
    # What is killed with a trainer is not this.
    assert processes.of_pod(LEASE.pod_name, beside=False) == []
    assert len(processes.of_pod(LEASE.pod_name)) == 1


@pytest.mark.parametrize("machine", ["os.kill(os.getpid(), 9)"], indirect=True)
def test_one_that_was_killed_is_started_again_and_given_up_in_the_end(machine: Machine) -> None:
    for count in range(1, data_making._TRIES + 1):
        machine.tend(data_making._AGAIN_AFTER_S)
        machine.until_ended(count)
    machine.tend(1e6)
    assert len(machine.until_calls(1)) == data_making._TRIES
    told = progress(machine)
    assert (told.state, told.message) == ("failed", "model.prepare ended with -9")


REFUSES = """\
print(json.dumps({"what": "no such option", "where": "there", "next_step": "ask otherwise"}),
      file=sys.stderr)
sys.exit(2)"""


@pytest.mark.parametrize("machine", [REFUSES], indirect=True)
def test_what_cannot_succeed_is_told_to_the_trainer_in_its_own_words(machine: Machine) -> None:
    machine.tend()
    machine.until_ended(1)
    machine.tend(1e6)
    assert len(machine.until_calls(1)) == 1
    told = progress(machine)
    assert told.state == "failed"
    assert told.message == "no such option (there)"
    assert told.next_step == "ask otherwise"
    assert machine.making.notes() == {"data": "no such option (there)"}


SAYS = """\
from trmcloud.core.contract.data_progress import DataProgress
from trmcloud.core.contract.records import dump
out.mkdir(parents=True)
(out / "progress.json").write_text(dump(DataProgress("a-set", "failed", 1.0, 1, "1",
                                                     message="the host answered 404")))
sys.exit(9)"""


@pytest.mark.parametrize("machine", [SAYS], indirect=True)
def test_what_it_said_itself_is_left(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    machine.tend()
    machine.until_ended(1)
    assert progress(machine).message == "the host answered 404"


def progress(machine: Machine) -> DataProgress:
    return load_progress((Path(machine.job.data_dir) / "progress.json").read_bytes())


def test_a_job_whose_data_was_brought_makes_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "")
    path = tmp_path / contract.RUNS_DIR / LEASE.run_id / "fast" / contract.JOB_NAME
    path.write_text(contract.dump(replace(machine.job, data=None)))
    machine.tend()
    assert (machine.lines, machine.making.notes()) == ([], {})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"stage": "download", "downloaded_bytes": 2_500_000, "download_bytes": 10_000_000,
             "planned_shards": 8},
            "download · 2.5 of 10.0 MB · 0 of 8 shards",
        ),
        (
            {"stage": "encode", "tokens": 500, "wanted_tokens": 1000, "shards": 1,
             "planned_shards": 8},
            "encode · 1 of 8 shards · 500 tokens (50 %)",
        ),
        ({"state": "done", "tokens": 2000, "wanted_tokens": 1000}, "done · 2,000 tokens (100 %)"),
        (
            {"stage": "encode", "note": "shard_1 in the cache is damaged: it is made anew"},
            "encode · shard_1 in the cache is damaged: it is made anew",
        ),
        ({"state": "failed", "message": "a \x1b[31mred line"}, "a red line"),
    ],
)  # fmt: skip
def test_how_far_it_is_in_words(said: dict[str, object], words: str) -> None:
    known = {"source": "s", "state": "working", "at": 1.0, "pid": 1, "pid_started": "1"}
    assert words_of(DataProgress(**{**known, **said})) == words  # type: ignore[arg-type]
