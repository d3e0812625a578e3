"""Boots that fail by the provider's log, in the simulated world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.faults import NAMES, arm_all
from tests.sim.oracle.agent_oracle import NEXT_WITHIN_S, BootJudge
from tests.sim.play import play
from tests.sim.test_found import held, pods_made, world
from trmcloud.sim.world.account import BOOT_LOG_S, RentedMachine
from trmcloud.sim.world.pod import SimPod


def test_a_boot_that_fails_by_its_log_is_ended_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where its command is up; the next candidate is taken, and the bill holds."""
    made: list[RentedMachine] = []
    begin = SimPod.__init__

    def noting(self: SimPod, *rest: object) -> None:
        begin(self, *rest)  # type: ignore[arg-type]
        made.append(self.rented)

    monkeypatch.setattr(SimPod, "__init__", noting)
    failed, more = [], 0
    for seed in range(40, 90, 10):
        made.clear()
        played = held(world("79", seed=seed, reaper="none"))
        assert "79" in played.observed
        for rented in made:
            if rented.boot_failed_at < float("inf"):
                since = max(rented.boot_failed_at, rented.visible_at)
                assert rented.ended_at is not None
                assert not rented.pod.booted_at
                failed.append(min(rented.deleted_at, rented.ended_at) - since)
        more += pods_made(played) > 1
        assert rented_within_cap(played.runs)
    assert failed
    assert max(failed) <= BOOT_LOG_S, failed
    assert more, "in some of these worlds there is another candidate"


@pytest.mark.parametrize("seed", range(40, 90, 10))
def test_the_next_candidate_is_asked_for_within_a_minute_of_the_fatal_line(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """By the world's own clock, from the moment that the log can say so, though bills lag."""
    made: list[RentedMachine] = []
    judges: list[BootJudge] = []
    begin, judge = SimPod.__init__, BootJudge.__init__

    def noting(self: SimPod, *rest: object) -> None:
        begin(self, *rest)  # type: ignore[arg-type]
        made.append(self.rented)

    def judging(self: BootJudge, *rest: object) -> None:
        judge(self, *rest)  # type: ignore[arg-type]
        judges.append(self)

    monkeypatch.setattr(SimPod, "__init__", noting)
    monkeypatch.setattr(BootJudge, "__init__", judging)
    scenario = world("79", "31", seed=seed, reaper="none")
    candidates = len(scenario.wishes[0].plan.launchable)
    held(scenario)
    assert sum(each.judged for each in judges) >= 1
    failed = [rented for rented in made if rented.boot_failed_at < float("inf")]
    assert failed
    later = [*made[1:], None]
    for rented, following in zip(made, later, strict=True):
        if rented in failed and following is not None:
            took_s = following.created_at - max(rented.boot_failed_at, rented.visible_at)
            assert took_s <= NEXT_WITHIN_S
    assert len(made) > 1 or candidates == 1, "there is another candidate"


def rented_within_cap(runs: tuple[tuple[str, str, int, int], ...]) -> bool:
    return all(billed <= cap for _, _, billed, cap in runs)


def test_a_pod_whose_log_only_complains_is_not_ended() -> None:
    """Every healthy pod of RunPod has such a line while it boots."""
    scenario = world(reaper="none")
    played = play(replace(scenario, faults=(), fault_seeds=()), arm_all)
    assert played.violation == "", played.detail
    assert pods_made(played) == 1
    assert played.runs[0][1] not in ("lost", "not started")


def test_the_fault_is_one_of_those_that_worlds_are_drawn_with() -> None:
    assert NAMES[-1] == "79" or "79" in NAMES
