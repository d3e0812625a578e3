"""What a pod's agent tells: notices, kept checkpoints, metrics, and the making of its data."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import whole_checkpoint
from tests.standins.receiver import LOSES, Receiver
from tests.unit.core.test_health import WELL, Line, recorded
from tests.unit.pod.leases import a_lease, job_of
from tests.waiting import until
from trmcloud.core.clock import Instant
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import judge
from trmcloud.core.contract.notices import (
    SENT_NAME,
    WEBHOOK_NAME,
    Notice,
    Webhook,
    headers_of,
    notices_of,
    secret_of,
)
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.contract.records import MAX_LINE_BYTES, dump
from trmcloud.core.contract.trainer_contract import DataJob, DataProgress, load_progress
from trmcloud.core.health import Rule, findings
from trmcloud.io.files import write_atomic
from trmcloud.pod.agent import side_processes
from trmcloud.pod.agent.process import _FilesAndProcesses
from trmcloud.pod.agent.side_processes import DataPreparation, NoticesProcess, words_of
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.metrics_file import read_metrics
from trmcloud.pod.machine.prepare import TrainerSetup
from trmcloud.pod.notify import PodNotices
from trmcloud.pod.storage import disk_pressure

# -- notices ------------------------------------------------------------------------------------
# A pod that was given a webhook tells what its agent reports, by the ids that all others use, and
# ends by itself.


ROOT = Path(__file__).resolve().parents[3]
AT = 1_790_000_000.0
POD = "trmc-0a1b2c3d-r1-g1-1790003600"
SECRET = secret_of(bytes(range(32)))
PHASE = PhaseReport("fast", state=PhaseState.RUNNING, started_at=AT, attempts=1)


@pytest.fixture
def pod_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "pods" / POD
    folder.mkdir(parents=True)
    return folder


def report(pod_dir: Path, result: str | None = None, at: float = AT) -> AgentReport:
    made = AgentReport("r1", POD, 1, 7, at, at + 60, (PHASE,), at + 3500, at + 3600, result=result)
    (pod_dir / contract.REPORT_NAME).write_text(dump(made))
    return made


def hook(pod_dir: Path, url: str, only: tuple[str, ...] = ()) -> None:
    (pod_dir / WEBHOOK_NAME).write_text(dump(Webhook(url, SECRET, only)))


class Ear:
    """Whoever is told: takes what ``answers`` allow, and anything after them."""

    def __init__(self, *answers: bool) -> None:
        self.now, self.answers, self.got = AT, list(answers), list[str]()

    def post(self, webhook: Webhook, notice: Notice, now: float) -> bool:
        self.got.append(notice.id.rpartition("/")[2])
        return self.answers.pop(0) if self.answers else True

    def notices(self, pod_dir: Path) -> PodNotices:
        return PodNotices(pod_dir, lambda: self.now, self.post)


def test_what_was_taken_is_remembered_across_a_death(pod_dir: Path) -> None:
    hook(pod_dir, "http://x")
    report(pod_dir)
    ear = Ear()
    assert ear.notices(pod_dir).look()
    report(pod_dir, "finished")
    assert not ear.notices(pod_dir).look(), "all is told"
    assert ear.got == ["started", "ended"]
    assert len(json.loads((pod_dir / SENT_NAME).read_text())) == 2


def test_what_was_not_taken_is_tried_again_and_not_for_ever(pod_dir: Path) -> None:
    hook(pod_dir, "http://x", ("ended",))
    report(pod_dir, "finished")
    ear = Ear(*[False] * 50)
    notices = ear.notices(pod_dir)
    assert notices.look()
    assert notices.look()
    assert ear.got == ["ended"], "not before its pause is over"
    ear.now += 5.0
    assert notices.look()
    assert ear.got == ["ended"] * 2
    ear.now += 60.0
    assert not notices.look(), "a pod that is done is not held up"


def test_without_a_webhook_or_a_report_there_is_nothing_to_tell(pod_dir: Path) -> None:
    ear = Ear()
    assert not ear.notices(pod_dir).look()
    hook(pod_dir, "http://x")
    assert ear.notices(pod_dir).look(), "the agent will have begun soon"
    (pod_dir / contract.REPORT_NAME).write_text("{}")
    assert ear.notices(pod_dir).look()
    report(pod_dir)
    ear.now = AT + 3600 + 61
    assert not ear.notices(pod_dir).look(), "its lease is over"


def test_damaged_memory_only_tells_again(pod_dir: Path) -> None:
    hook(pod_dir, "http://x")
    report(pod_dir)
    for text in ("", "no JSON", "{}", "[1, null]"):
        (pod_dir / SENT_NAME).write_text(text)
        ear = Ear()
        ear.notices(pod_dir).look()
        assert ear.got == ["started"]


@pytest.mark.parametrize(
    "fault",
    [LOSES, (429, {"Retry-After": "2"}), (301, {"Location": "/x"})],
    ids=str,
)
def test_the_process_tells_a_real_server_that_fails_at_first_and_ends(
    pod_dir: Path, receiver: Receiver, fault: str | tuple[int, dict[str, str]]
) -> None:
    hook(pod_dir, f"{receiver.url}/pod")
    made = report(pod_dir, "finished")
    receiver.answers = [fault]
    words = ["-m", "trmcloud.pod.notify", "--root", str(pod_dir.parents[1]), "--pod", POD]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = notices_of(made)
    assert {each["id"] for each in receiver.notices} == {notice.id for notice in told}
    assert len(receiver.got) == 3, "one of them came twice"
    assert {path for path, _, _ in receiver.got} == {"/pod"}, "no redirect is followed"
    for _, headers, body in receiver.got:
        at = float(headers["webhook-timestamp"])
        expected = headers_of(headers["webhook-id"], body.decode(), SECRET, at)
        assert headers["webhook-signature"] == expected["webhook-signature"]
        assert "text" not in json.loads(body), "sentences are not on a pod"


def test_the_agent_starts_it_once_and_apart_from_its_pod(
    pod_dir: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contract.ENV_POD, POD)
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_canary")
    ready: list[TrainerSetup] = []
    made = NoticesProcess(pod_dir.parents[1], POD, lambda: ready[0] if ready else None)
    made.tend()
    assert made._child is None, "nobody is to be told"
    hook(pod_dir, receiver.url)
    report(pod_dir, at=time.time())  # the process has a clock of its own, and ends with the lease
    made.tend()
    assert made._child is None, "its sources are not here yet"
    ready.append(replace(TrainerSetup(sys.executable), python_path=(str(ROOT),)))
    made.tend()
    child: Any = vars(made)["_child"]
    assert child is not None
    until(lambda: receiver.got)
    environment = Path(f"/proc/{child.pid}/environ").read_bytes()
    assert POD.encode() not in environment, "what ends the pod's processes need not end it"
    assert b"rpa_canary" not in environment
    assert os.getpgid(child.pid) == child.pid
    made.tend()
    assert vars(made)["_child"] is child
    (pod_dir / WEBHOOK_NAME).unlink()
    child.wait(timeout=30)


# -- What a pod's agent tells of its checkpoints, and when --------------------------------------


def save(root: Path, step: int, val_bpb: float, size: int = 1000, **more: Any) -> Path:
    """A whole checkpoint of ``2 × size`` bytes: weights, and an optimizer's shard."""
    return whole_checkpoint(root, step, val_bpb, size=size, settings={"keep_best": 1}, **more)[0]


def body(root: Path) -> _FilesAndProcesses:
    lease = a_lease(1000.0)
    folder = root / contract.PODS_DIR / lease.pod_name
    folder.mkdir(parents=True)
    write_atomic(folder / contract.LEASE_NAME, contract.dump(lease))
    made = _FilesAndProcesses(root, lease.pod_name, lambda: Instant(1000.0, 10.0, "boot"))
    assert made.read_lease() == lease
    return made


def at(boot: float) -> Instant:
    return Instant(990.0 + boot, boot, "boot")


def steps(kept: tuple[contract.CheckpointRef, ...]) -> list[int]:
    return [each.step for each in kept]


def test_what_was_saved_last_is_told_with_the_trainer_s_end(tmp_path: Path) -> None:
    pod = body(tmp_path)
    save(tmp_path, 20, 2.0)
    assert steps(pod.kept(at(10.0))) == [20]
    save(tmp_path, 40, 1.0)
    assert steps(pod.kept(at(10.5))) == [20]  # not read at every tick
    pod.write_trainer(None)
    assert steps(pod.kept(at(10.5))) == [20, 40]


def read(folder: Path) -> mf.CheckpointManifest:
    return mf.from_json((folder / mf.MANIFEST_NAME).read_text(), str(folder))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dropped(free: int, *saved: tuple[int, float], root: Path) -> list[tuple[int, bool]]:
    """(step, whether all of it goes) for checkpoints of 2,000 bytes each."""
    manifests = [read(save(root, step, bpb)) for step, bpb in saved]
    drops = disk_pressure.plan_drops(manifests, free)
    return [(drop.manifest.step, not drop.names) for drop in drops]


SAVED = ((20, 1.0), (40, 3.0), (60, 2.5), (80, 2.0))
"""20 is the best, 80 the latest; one best is kept."""


def test_nothing_goes_while_two_more_fit(tmp_path: Path) -> None:
    assert dropped(4000, *SAVED, root=tmp_path) == []


def test_optimizers_go_first_the_oldest_first_and_only_as_many_as_needed(tmp_path: Path) -> None:
    assert dropped(2500, *SAVED, root=tmp_path) == [(20, False), (40, False)]


def test_then_whole_checkpoints_but_never_the_best_nor_the_latest(tmp_path: Path) -> None:
    optimizers = [(20, False), (40, False), (60, False)]
    assert dropped(500, *SAVED, root=tmp_path) == [*optimizers, (40, True)]


def test_what_was_saved_before_the_cooldown_stays_whole(tmp_path: Path) -> None:
    manifests = [
        read(save(tmp_path, step, bpb, cooldown_from=40 if step > 40 else None))
        for step, bpb in SAVED
    ]
    drops = disk_pressure.plan_drops(manifests, 0)
    assert [(drop.manifest.step, bool(drop.names)) for drop in drops] == [
        *((20, True), (60, True), (60, False)),
    ]  # fmt: skip
    run_dir = tmp_path / contract.RUNS_DIR / "r1"
    assert disk_pressure.make_room(run_dir, manifests, lambda text: None, 0)
    told = body(tmp_path).kept(at(10.0))
    assert [(k.step, k.size_bytes, k.cooldown_from) for k in told] == [
        *((20, 1000, None), (40, 2000, None), (80, 2000, 40)),
    ]  # fmt: skip


def test_a_disk_that_runs_low_is_tidied_and_every_manifest_stays_true(tmp_path: Path) -> None:
    folders = [save(tmp_path, step, bpb, size=25 * step) for step, bpb in SAVED]
    said: list[str] = []
    run_dir = tmp_path / contract.RUNS_DIR / "r1"
    assert disk_pressure.make_room(run_dir, [read(folder) for folder in folders], said.append, 0)
    assert [folder.exists() for folder in folders] == [True, False, False, True]
    assert names_in(folders[0]) == ["manifest.json", "weights.safetensors"]
    assert [file.kind for file in read(folders[0]).files] == ["weights"]
    assert "optimizer.safetensors" in names_in(folders[3])
    assert len(said) == 5
    left = [read(folders[0]), read(folders[3])]
    assert not disk_pressure.make_room(
        run_dir, left, said.append, 0
    )  # there is nothing left to drop
    pod = body(tmp_path)
    assert [(kept.step, kept.size_bytes) for kept in pod.kept(at(10.0))] == [(20, 500), (80, 4000)]


# -- metrics file -------------------------------------------------------------------------------
# A trainer's lines with gaps, without numbers, and with steps that go back: what is read of them
# from the disk, and what is said of the training by it.


def written(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(f"{dump(line)}\n" for line in lines))
    return path


def test_a_whole_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.jsonl", recorded("trm"))
    assert list(read_metrics(path)) == recorded("trm")
    assert read_metrics(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    "stray",
    [
        b"\n",
        b"{",
        b"null\n[]\n",
        b"\xff\xfe\x00\n",
        b'{"kind": "train", "step": 10, "loss": NaN}\n',
        b'{"kind": "train", "step": 10, "loss": 1e999}\n',
        b'{"kind": "train", "step": 1, "step": 2}\n',
        b'{"kind": "train", "pad": "' + b"x" * MAX_LINE_BYTES + b'"}\n',
    ],
)
def test_what_is_no_line_takes_no_other_with_it(tmp_path: Path, stray: bytes) -> None:
    """Half a line at the end, too, as a killed trainer leaves it; the next one begins anew."""
    path = written(tmp_path / "metrics.jsonl", recorded("trm"))
    lines = path.read_bytes().splitlines(keepends=True)
    middle = stray if stray.endswith(b"\n") else stray + b"\n"
    path.write_bytes(b"".join([*lines[:50], middle, *lines[50:], stray]))
    assert list(read_metrics(path)) == recorded("trm")
    assert findings(read_metrics(path), WELL) == ()


def test_a_gap_of_a_hundred_lines_is_no_symptom_and_the_gate_still_judges(tmp_path: Path) -> None:
    whole = recorded("trm")
    lines = [*whole[:20], *whole[120:]]
    path = written(tmp_path / "metrics.jsonl", lines)
    assert findings(read_metrics(path), WELL) == ()
    judged = [judge("fast", each) for each in (whole, read_metrics(path))]
    assert judged[0].passed
    assert judged[0].passed == judged[1].passed


def test_a_loss_that_is_none_is_told_by_its_step_until_it_is_trained_again(tmp_path: Path) -> None:
    """On disk a loss that is not finite is null. A phase that goes back to a checkpoint logs the
    same steps again, and what was lost with them counts no more."""
    lines = recorded("dense")
    at = next(n for n, line in enumerate(lines) if line["kind"] == "train" and line["step"] > 200)
    lost = [{**line} for line in lines[at : at + 10]]
    for line in lost:
        if line["kind"] == "train":
            line["loss"] = math.nan
    path = written(tmp_path / "metrics.jsonl", [*lines[:at], *lost])
    assert b'"loss": null' in path.read_bytes()
    [found] = findings(read_metrics(path), WELL)
    assert (found.rule, found.step) == (Rule.NOT_FINITE, lost[0]["step"])
    with path.open("a") as file:
        file.writelines(f"{json.dumps(line)}\n" for line in lines[at:])
    assert findings(read_metrics(path), WELL) == ()
    steps = [line["step"] for line in read_metrics(path) if line["kind"] == "train"]
    assert steps != sorted(steps), "the file keeps both; the later word counts"


# -- data making --------------------------------------------------------------------------------
# The agent's hold on what makes the data: a real process, started anew, told on, and ended.


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
        self.making = DataPreparation(
            root, LEASE.pod_name, lambda: setup if self.ready else None, self.lines.append
        )

    def tend(self, passed_s: float = 0.0) -> None:
        self.boot += passed_s
        now = Instant(1_795_000_000.0 + self.boot, self.boot, "boot")
        self.making.tend(now, LEASE.run_id, ("fast",))

    def until_calls(self, count: int) -> list[tuple[list[str], dict[str, str]]]:
        path = self.package / "calls"
        until(
            lambda: path.exists() and len(path.read_text().splitlines()) >= count,
            within_s=30.0,
            what=lambda: self.lines,
        )
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()]

    def until_ended(self, count: int) -> None:
        def ended() -> bool:
            self.tend()
            return sum("ended with" in line for line in self.lines) >= count

        until(ended, within_s=30.0, what=lambda: self.lines)


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
    for count in range(1, side_processes._TRIES + 1):
        machine.tend(side_processes._DATA_RETRY_AFTER_S)
        machine.until_ended(count)
    machine.tend(1e6)
    assert len(machine.until_calls(1)) == side_processes._TRIES
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
from trmcloud.core.contract.trainer_contract import DataProgress
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
            {"stage": "encode", "note": "shard_1 in the cache is damaged: it is made again"},
            "encode · shard_1 in the cache is damaged: it is made again",
        ),
        ({"state": "failed", "message": "a \x1b[31mred line"}, "a red line"),
    ],
)  # fmt: skip
def test_how_far_it_is_in_words(said: dict[str, object], words: str) -> None:
    known = {"source": "s", "state": "working", "at": 1.0, "pid": 1, "pid_started": "1"}
    assert words_of(DataProgress(**{**known, **said})) == words  # type: ignore[arg-type]
