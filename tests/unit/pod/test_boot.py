"""The entry command with real processes: it lays out, guards, ends the pod, and never exits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.pod.container import KEY, RUNPOD_POD, Container, packed
from tests.unit.pod.leases import a_lease
from tests.unit.pod.provider import Provider
from trmcloud.core.contract import pod_contract as contract

Until = Callable[..., None]


def tried_all(provider: Provider) -> bool:
    return ("POST", "/graphql") in [(m, p) for m, p, _, _ in provider.asked]


def test_it_trains_and_no_process_inherits_a_key(
    boot: Callable[..., Container], lease: contract.Lease, until: Until
) -> None:
    pod = boot(lease, TRMCLOUD_HOST_KEY=packed("no key at all"))
    until(pod.trains, "training")
    assert pod.read(contract.LEASE_NAME)["epoch"] == 1
    assert pod.read(contract.CHECK_NAME) == {}
    inside = pod.inside()
    assert len(inside) >= 2, "agent, trainer"
    for pid in inside:
        inherited = Path(f"/proc/{pid}/environ").read_bytes()
        for secret in (KEY.encode(), packed("no key at all").encode(), b"TRMCLOUD_LEASE="):
            assert secret not in inherited
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("notes"), "notes in the report")
    notes = pod.read(contract.REPORT_NAME)["notes"]
    assert notes == {"ssh": "no SSH: the host key is no OpenSSH private key"}


def test_done_means_ended_by_every_way_and_still_there(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    provider.answer("DELETE", f"/v2/pods/{RUNPOD_POD}", 403, '{"title": "Forbidden"}')
    pod = boot(lease, steps=5)
    until(lambda: tried_all(provider), "the chain")
    until(lambda: pod.read("termination.json")["attempts"][-1]["ok"] is not None, "its record")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "its work is done"
    record = pod.read("termination.json")
    assert record["why"] == "its work is done"
    assert [a["code"] for a in record["attempts"][:3]] == [404, 403, 404]
    report = contract.load_report((pod.pod_dir / contract.REPORT_NAME).read_text())
    assert report.result == "finished"
    # The report has the newest attempt alone, the container's log each of them.
    until(lambda: "refused, " in pod.read("agent.json")["notes"]["termination"], "its note")
    assert "v2 delete: refused, code 403" in pod.log.read_text()
    assert KEY not in pod.log.read_text() + (pod.pod_dir / "termination.json").read_text()
    assert pod.lives_on()


def test_sigterm_kills_the_trainer_and_ends_the_pod(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease)
    until(pod.trains, "training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "terminated"
    pod.process.send_signal(signal.SIGTERM)
    pod.process.send_signal(signal.SIGINT)
    pod.process.send_signal(signal.SIGHUP)
    assert pod.lives_on()


def test_a_pod_that_has_ended_trains_no_more_after_a_restart(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease)
    until(pod.trains, "training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")
    provider.asked.clear()
    pod.restart()
    until(lambda: tried_all(provider), "the chain again")
    assert pod.inside() == []
    assert pod.read("termination.json")["why"].startswith("it had ended before")


def test_a_restart_goes_on_and_does_not_extend_the_deadline(
    boot: Callable[..., Container], provider: Provider, until: Until
) -> None:
    pod = boot(a_lease(time.time(), hard_stop_s=12.0))
    until(pod.trains, "training")
    anchor = pod.read("anchor.json")
    pod.restart()
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("restarts", 0) > 0, "a new agent")
    assert pod.read("anchor.json") == anchor
    until(lambda: tried_all(provider), "the chain", 30.0)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - anchor["boot"]
    assert passed < 12.0 + 8.0
    assert pod.inside() == []


@pytest.mark.parametrize(
    "damage",
    [
        {contract.ENV_LEASE: "-"},
        {contract.ENV_LEASE: "!!!"},
        {contract.ENV_LEASE: packed("{}")},
        {contract.ENV_JOBS: packed("[]")},
        {contract.ENV_CHECK: packed('{"count": "many"}')},
        {contract.ENV_ROOT: "/dev/null/nowhere"},
    ],
)
def test_what_cannot_be_understood_is_ended_at_once(
    boot: Callable[..., Container],
    lease: contract.Lease,
    provider: Provider,
    until: Until,
    damage: dict[str, str],
) -> None:
    pod = boot(lease, **damage)
    until(lambda: tried_all(provider), "the chain")
    until(lambda: pod.inside() == [], "all inside ended")
    if contract.ENV_ROOT not in damage:
        assert pod.read("termination.json")["why"].startswith("what it was started with is damaged")
    assert pod.lives_on(0.2)


def test_it_stays_for_its_last_report_to_be_read(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease, steps=5, **{contract.ENV_LINGER_S: "600"})
    until(lambda: pod.read(contract.ENDED_NAME), "the end of its work")
    assert pod.lives_on()
    assert provider.asked == []
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")
