"""Boots that fail by the provider's own log: ended at once, and the next candidate is taken."""

from __future__ import annotations

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from trmcloud.core.control.actions import CREATE, TERMINATE
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import State
from trmcloud.core.money import Usd
from trmcloud.operations.reasons import sentence

WITHIN_S, ENDED_WITHIN_S = 60.0, 30.0
NVIDIA = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update"
FATAL = f"error starting container: OCI runtime create failed: {NVIDIA} your driver: unknown"
"""One of those of ``tests/unit/runpod/test_boot_log.py``."""


def launch_of(user: RentedUser, hardware: str = "1xA100", *more: str) -> tuple[str, ...]:
    wish = ("launch", hardware, *LAUNCH[2:], "--steps", "60", "--budget", "2", *ACCEPT)
    return (*wish, *user.data, *more)


def test_a_fatal_line_ends_the_pod_and_the_next_candidate_is_taken(renter: RentedUser) -> None:
    renter.standin.control.set(boot_log=[FATAL], boot_log_gpus=["NVIDIA A100-SXM4-80GB"])
    launch = renter.start(*launch_of(renter))
    until(lambda: ended_by(renter) != [], within_s=90, what="it is ended")
    assert renter.clock.added == 0.0, "by real time alone"
    until(lambda: renter.creates() == 2, within_s=90, what="the next one")
    assert renter.clock.added == 0.0, "by real time alone"
    run = renter.run_in(State.BOOTING)
    first, second = run.generations
    (asked,) = run.tries(second, CREATE)
    assert first.up_at is not None
    ended = min(run.tries(first, TERMINATE), key=lambda tried: tried.started_at)
    took_s = ended.started_at - first.up_at
    next_s = asked.started_at - first.up_at
    print(f"ended {took_s:.1f} s after it was up, the next asked for after {next_s:.1f} s")
    assert took_s <= ENDED_WITHIN_S
    assert next_s <= WITHIN_S, "the line is there from the moment that it is up"
    assert ended.reason is not None
    assert ended.reason.kind is ReasonKind.BOOT_FAILED
    assert FATAL[:60] in sentence(ended.reason)
    (pod,) = renter.live()
    assert pod.gpu_id == "NVIDIA A100 80GB PCIe"
    assert second.pod_name == pod.name
    assert run.settled + run.reserved <= Usd("2")
    launch.terminate()
    out, _ = launch.communicate(timeout=60)
    told = [row for row in out.splitlines() if "generation 1: its boot failed" in row]
    assert len(told) == 1, out
    assert FATAL[:40] in told[0]


def ended_by(user: RentedUser) -> list[str]:
    return [pod["ended_by"] for pod in user.truth() if pod["ended_by"]]
