"""Simulated pods save as trainers do: first the checkpoint, then its metric; and when asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.present import present
from tests.sim.test_found import SHAPE, pod_at_work
from tests.sim.test_last_word import run_for
from trmcloud.core.contract.pod_contract import CheckpointRef, Orders, SaveAnswers
from trmcloud.sim.world.account import Pod
from trmcloud.sim.world.store import Checkpoint, SimFiles, make_manifest
from trmcloud.sim.world.trainer import SimTrainer, TrainerFault
from trmcloud.sim.world.world import SimWorld


@pytest.fixture
def at_work() -> tuple[SimWorld, Pod]:
    return pod_at_work()


def trainer(ill: TrainerFault | None = None) -> SimTrainer:
    return SimTrainer(
        SHAPE, run_id="r-1", attempt=1, pid=7, at=0.0, deadline_s=1e7, from_step=0, ill=ill
    )


def test_the_last_checkpoint_is_there_before_it_is_evaluated() -> None:
    made = trainer()
    assert made.ends_at is not None
    between = made.ends_at - SHAPE.eval_s / 2
    assert made.saved_step(between) == SHAPE.steps
    assert not made.is_scored(SHAPE.steps, between)
    assert made.is_scored(SHAPE.steps, made.ends_at)


def test_out_of_memory_in_the_last_evaluation_leaves_it_without_a_metric() -> None:
    made = trainer(TrainerFault("last_evaluation", 0.0, "71"))
    assert made.ends_at is not None
    assert made.struck
    assert made.heartbeat(made.ends_at + 1).outcome == "out_of_memory"  # type: ignore[union-attr]
    assert made.saved_step(made.ends_at + 1) == SHAPE.steps
    assert not made.is_scored(SHAPE.steps, made.ends_at + 1e6)


def test_a_save_that_is_asked_for_delays_the_steps_after_it_and_loses_none() -> None:
    made, alone = trainer(), trainer()
    at = made.trains_at + 100 * SHAPE.step_s + 1e-3
    saved_at = present(made.ask(at))
    assert made.ask(at) is None, "one at a time"
    began = saved_at - SHAPE.save_s
    asked = alone.step(began)
    assert made.saved_step(saved_at) == asked > (alone.saved_step(saved_at) or 0)
    assert not made.is_scored(asked, saved_at)
    assert made.is_scored(asked, saved_at + SHAPE.eval_s)
    pause_s = SHAPE.save_s + SHAPE.eval_s
    assert made.ends_at == pytest.approx((alone.ends_at or 0.0) + pause_s)
    for later in (10.0, 100.0, 1000.0):
        assert made.step(began + pause_s + later) == alone.step(began + later)
    steps = [made.step(at + tick / 10) for tick in range(400)]
    assert steps == sorted(steps)


def test_a_trainer_that_ends_while_its_agent_looks_is_closed_at_the_next_look(
    at_work: tuple[SimWorld, Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look a second time found neither a process nor an outcome: every phase was called
    finished, and what the last one had saved was not waited for."""
    world, pod = at_work
    trainer, agent = pod.trainer, pod.agent
    assert trainer is not None
    assert agent is not None
    looks = iter([True])
    monkeypatch.setattr(agent._body, "trainer_runs", lambda trainer: next(looks, False))
    trainer.kill(world.queue.now)
    agent.tick()
    assert agent.report.result is None
    assert agent.report.phases[0].state == "running"
    agent.tick()
    assert agent.report.phases[0].attempts == 2, "it was lost, and is begun anew"


@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_asked_while_it_is_at_a_save_it_saves_again_after_the_next_step(share: float) -> None:
    """As the trainer does: what it was asked for until then is what it takes down as saved."""
    made = trainer()
    first = present(made.ask(made.trains_at + 100 * SHAPE.step_s + 1e-3))
    pause_s = SHAPE.save_s + SHAPE.eval_s
    resumes_at = first - SHAPE.save_s + pause_s
    second = present(made.ask(resumes_at - (1 - share) * pause_s))
    assert second == pytest.approx(resumes_at + SHAPE.step_s + SHAPE.save_s)
    assert made.ask(resumes_at) is None, "one at a time"
    assert made.saved_step(second + 1e-3) == (made.saved_step(first + 1e-3) or 0) + 1


def test_a_pod_that_is_asked_saves_answers_and_goes_on(at_work: tuple[SimWorld, Pod]) -> None:
    world, pod = at_work
    assert pod.report is not None
    assert pod.report.saves == SaveAnswers()
    before = pod.trainer
    pod.orders = Orders(epoch=1, save=1)
    pod.wake()
    run_for(world, 120.0)
    saves = present(pod.report.saves)
    assert (saves.answered, saves.phase, saves.why) == (1, "fast", "")
    assert pod.trainer is before
    assert before is not None
    assert before.told_at is None
    pod.save_now()
    [made] = [c for c in world.files.checkpoints["r-1"] if c.manifest.step == saves.step]
    assert made.whole
    pod.wake()
    run_for(world, 120.0)
    assert len(before.requested) == 1, "the same request is met once"


def test_an_agent_that_is_killed_while_it_waits_for_a_save_asks_again_at_most_once(
    at_work: tuple[SimWorld, Pod],
) -> None:
    world, pod = at_work
    pod.orders = Orders(epoch=1, save=1)
    pod.wake()
    run_for(world, 0.6)
    pod.kill_agent()
    run_for(world, 300.0)
    assert pod.report is not None
    assert pod.report.saves is not None
    assert pod.report.saves.answered == 1
    assert pod.trainer is not None
    assert 1 <= len(pod.trainer.requested) <= 2


def test_a_copy_from_before_the_metric_lacks_it_until_it_is_brought_again() -> None:
    made = SimFiles()
    made.checkpoints["r-1"] = [on_a_pod()]
    [there] = made.on_pod("r-1", "p")
    made.bring_home("r-1", "p", there)
    made.checkpoints["r-1"][0].score(1.5)
    [scored] = made.on_pod("r-1", "p")
    assert scored.val_bpb == 1.5
    assert [m.val_bpb for m in made.manifests("r-1")] == [None]
    made.bring_home("r-1", "p", scored)
    assert [m.val_bpb for m in made.manifests("r-1")] == [1.5]
    made.store("r-1", CheckpointRef("fast", 10, there.sha256, 1, None), "g1-slot-0")
    assert [m.val_bpb for m in made.stored("r-1")] == [None]
    made.lose_pod("r-1", pod_id="p")
    assert [m.val_bpb for m in made.manifests("r-1")] == [1.5]
    made.checkpoints["r-1"] = [on_a_pod()]
    made.bring_home("r-1", "p", there)
    made.checkpoints["r-1"][0].score(1.5)
    made.lose_pod("r-1", pod_id="p")
    assert [m.val_bpb for m in made.manifests("r-1")] == [None], "nobody had brought the metric"


def on_a_pod() -> Checkpoint:
    manifest = make_manifest("r-1", "fast", 10, 1000.0, None, 0)
    return replace(Checkpoint(manifest, manifest.sha256, float("nan")), pod_id="p", home=False)
