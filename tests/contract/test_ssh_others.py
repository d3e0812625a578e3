"""What is made of the word of a pod's further machines, over a real SSH server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.ssh_pod import OTHER_POD, POD, SshPod, needs_sshd, ssh_pod
from tests.contract.test_ssh_link import REPORT
from trmcloud.adapters.ssh.peers import HEAD_LOST_S, Others
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import Dropped

pytestmark = needs_sshd


class Second:
    """A pod's second machine, and what is told of the pod."""

    def __init__(self, pod: SshPod) -> None:
        self.now = 1_790_000_200.0
        self.folder = pod.root / "pods" / POD
        self.folder.mkdir(parents=True)
        connection = pod.connect()
        self.others = Others(lambda name: [connection], lambda: self.now)

    def says(self, text: str) -> None:
        (self.folder / "agent.json").write_text(text)

    def ended(self, result: str | None, message: str = "why", pod: str = POD) -> None:
        self.says(contract.dump(replace(REPORT, pod_name=pod, result=result, message=message)))

    def told(self, after_s: float = 60.0) -> tuple[str | None, str]:
        self.now += after_s
        told = self.others.told(REPORT, str(self.folder))
        return told.result, told.message


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Second]:
    with ssh_pod(tmp_path) as pod:
        yield Second(pod)


def test_a_machine_that_cannot_be_trained_on_is_told_at_once(second: Second) -> None:
    assert second.told() == (None, "")  # it has said nothing yet
    second.ended(None)
    assert second.told() == (None, "")
    second.ended("unfit", "7 GPUs where 8 were rented\x1b[2J")
    assert second.told(1.0) == (None, "")  # asked again in a while
    assert second.told() == ("unfit", "machine 1: 7 GPUs where 8 were rented")


def test_the_first_ones_own_account_of_a_failure_is_waited_for(second: Second) -> None:
    second.ended("failed", "connection closed")
    assert second.told() == (None, "")
    own = replace(REPORT, result="failed", message="its own")
    assert second.others.told(own, str(second.folder)) == own
    assert second.told() == ("failed", "machine 1: connection closed")


def test_another_speaks_for_the_pod_once_the_first_is_silent_for_long(second: Second) -> None:
    def instead(silent_s: float) -> contract.AgentReport | None:
        second.now += 60.0
        return second.others.instead(POD, str(second.folder), silent_s)

    second.ended(None)
    assert instead(10 * HEAD_LOST_S) is None, "it still trains: the first may be out of reach alone"
    kept = contract.Kept("fast", 20, "0" * 64, 10, 2.5)
    failed = replace(REPORT, pod_name=POD, result="failed", message="reset by peer", kept=(kept,))
    second.says(contract.dump(failed))
    assert instead(HEAD_LOST_S - 1.0) is None
    word = instead(HEAD_LOST_S)
    assert word is not None
    said = "the first machine is lost; machine 1: reset by peer"
    assert (word.result, word.message) == ("failed", said)
    assert word.kept == (), "nothing can be pulled from a machine that is not the first"


@pytest.mark.parametrize("result", ["finished", "landed", "stopped"])
def test_that_another_one_is_done_ends_nothing(second: Second, result: str) -> None:
    second.ended(result)
    assert [second.told() for _ in range(3)] == [(None, "")] * 3


def test_what_cannot_be_read_is_no_word(second: Second) -> None:
    for text in ("", "{", "[]", '{"result": "unfit"}'):
        second.says(text)
        assert second.told() == (None, "")
    second.ended("unfit", pod=OTHER_POD)
    assert second.told() == (None, "")

    def nobody(name: str) -> list[object]:
        raise Dropped("1 of 2 machines have an address")

    lost = Others(nobody, lambda: second.now)  # type: ignore[arg-type]
    assert lost.told(REPORT, str(second.folder)) == REPORT
