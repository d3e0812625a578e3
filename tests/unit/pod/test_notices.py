"""A pod that was given a webhook tells what its agent reports, by the ids that all others use, and
ends by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.standins.loopback import until
from tests.standins.receiver import HANGS, LOSES, Receiver, receiving
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.notices import (
    SENT_NAME,
    WEBHOOK_NAME,
    Notice,
    Webhook,
    headers_of,
    notices_of,
    secret_of,
)
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState, dump
from trmcloud.pod.agent.notices import NoticesProcess
from trmcloud.pod.machine.prepare import TrainerSetup
from trmcloud.pod.notify.process import PodNotices

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


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


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
    [LOSES, HANGS, (500, {}), (503, {}), (429, {"Retry-After": "2"}), (301, {"Location": "/x"})],
    ids=str,
)
def test_the_process_tells_a_real_server_that_fails_at_first_and_ends(
    pod_dir: Path, receiver: Receiver, fault: str | tuple[int, dict[str, str]]
) -> None:
    hook(pod_dir, f"{receiver.url}/pod")
    made = report(pod_dir, "finished")
    receiver.answers = [fault]
    words = ["-m", "trmcloud.pod.notify.process", "--root", str(pod_dir.parents[1]), "--pod", POD]
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
