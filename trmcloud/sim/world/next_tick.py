"""When a simulated pod's agent looks again: whatever lies between would find nothing changed."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trmcloud.sim.world.pod import SimPod

TICK_S = 0.5
COARSE_S = 1800.0
_HUNG_LOOK_S = 60.0
_AWAIT_S = 300.0
_LOOK_S = 15.0
SAMPLED_S = 120.0
"""Into a training, until when its GPUs' counters say something of it."""


def next_tick_s(pod: SimPod) -> float:
    """Until something that the agent looks at will have changed."""
    now, trainer = pod.world.queue.now, pod.trainer
    wait = COARSE_S
    if pod.agent is not None:
        lease, hard_left_s = pod.agent.lease, pod.agent.hard_left_s()
        soft_left_s = hard_left_s - (lease.hard_stop_at - lease.soft_stop_at)
        told_left_s = soft_left_s + 0.25 * lease.landing_s
        for left_s in (told_left_s, told_left_s + 20.0, hard_left_s):
            if left_s > -0.1:
                wait = min(wait, left_s + 0.1)
        if pod.agent.report.uploading:
            return min(wait + TICK_S, _LOOK_S)  # and whenever one is through
        if pod.agent.report.waiting == "grants":
            wait = min(wait, _LOOK_S)
        elif pod.agent.report.waiting:
            if not pod.staged or pod.ready_at > now:
                left_s = pod.ready_at - now  # files that arrive poke it
                wait = min(wait, left_s if left_s > 0 else _AWAIT_S)
            else:
                wait = 0.0
    if trainer is not None:
        sampled_s = trainer.trains_at + SAMPLED_S - now
        if sampled_s > 0 and trainer.runs(now):
            wait = min(wait, sampled_s)
        if trainer.tells_worth and trainer.runs(now):
            number = trainer.step(now) // trainer.shape.eval_every
            ends = (trainer.evaluated_at(n) - now for n in (number, number + 1))
            wait = min((wait, *(left_s for left_s in ends if left_s > 0)))
        if trainer.silent_from < inf and trainer.runs(now):
            wait = min(wait, _HUNG_LOOK_S)
        if trainer.ends_at is not None and trainer.killed_at is None:
            if trainer.ends_at >= now:
                wait = min(wait, trainer.ends_at - now)
        elif trainer.runs(now):
            wait = min(wait, _HUNG_LOOK_S)
        else:
            wait = 0.0
    return wait + TICK_S
