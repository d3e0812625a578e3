"""A command of the user's own as arithmetic: its habits, and the process of ours that watches over
it, which thinks with ``pod.job.stopping`` as on a real pod."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from trmcloud.core.contract import worth
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.values import replace
from trmcloud.pod.job.stopping import Act, Stopping
from trmcloud.sim.world.trainer import Ill, Shape, SimTrainer

if TYPE_CHECKING:
    from trmcloud.sim.world.pod import SimPod

_TICK_S = 0.2
_LEAVES_S = 0.1
_COLLECTED_S = 2.5
"""From the command's end to the word of its watcher: what it left is looked at and copied."""
_SLOWEST = 2.5
"""Of its grace, what one that is slow to save takes for it at most."""
_STRIKES = 4


class Habit(StrEnum):
    """What a stranger's script does that it should not; the first word of its command."""

    PLAIN = "plain"
    DEAF = "deaf"
    SLOW = "slow-to-save"
    FORKING = "forks-children"
    HALF = "half-a-file"
    FILLING = "fills-the-disk"
    ATTACKING = "kills-the-agent"


class SimCommand(SimTrainer):
    """One attempt: the watcher's process is what the agent knows as its trainer; beside it are the
    command's own, which may outlive it."""

    def __init__(
        self,
        command: Command,
        shape: Shape,
        *,
        run_id: str,
        attempt: int,
        pid: int,
        at: float,
        deadline_s: float,
        from_step: int,
        ill: Ill | None,
    ) -> None:
        self.command, self.habit = command, Habit(command.words[0])
        self.swept_at: float | None = None
        """When somebody else than its watcher killed all its processes."""
        self.disk_full_at = inf
        # Dice of its own: the world's go on as without it.
        self._dice = random.Random(f"{run_id} {attempt} {command.words[0]}")
        self._needs_s = command.grace_s * self._dice.uniform(0.1, _SLOWEST)
        self._watcher_dies_s = (
            self._dice.expovariate(1 / 1800.0)
            if self.habit is Habit.ATTACKING and self._dice.random() < 0.5
            else inf
        )
        super().__init__(
            # Its watcher beats from the beginning, and knows of no compiling.
            replace(shape, start_s=0.0, compile_s=shape.start_s + shape.compile_s),
            run_id=run_id,
            attempt=attempt,
            pid=pid,
            at=at,
            deadline_s=deadline_s,
            from_step=from_step,
            ill=None if ill is not None and ill.kind in ("deaf", "last_evaluation") else ill,
        )
        if self.habit is Habit.FILLING:
            self.disk_full_at = self.trains_at + self._dice.expovariate(1 / 1800.0)

    def strikes(self) -> list[float]:
        """When it tries to kill the agent."""
        if self.habit is not Habit.ATTACKING:
            return []
        first = self.trains_at
        return [first + self._dice.expovariate(1 / 1800.0) for _ in range(_STRIKES)]

    def _plan(self) -> None:
        shape = self.shape
        base = self.trains_at - shape.seconds_to(self.from_step)
        finish = base + shape.seconds_to(shape.steps - 1) + shape.step_s
        told = min(self.deadline_at, self.told_at if self.told_at is not None else inf)
        self.base, self.message, self.frozen_at = base, "", None
        crash, dies = inf, self.started_at + self._watcher_dies_s
        if self.ill is not None:
            strikes = self.started_at + self.ill.after_s
            if self.ill.kind == "hang":
                self.frozen_at = strikes
                finish = inf if strikes < finish else finish
            elif self.ill.kind == "lost":
                dies = min(dies, strikes)
            else:
                crash = strikes
        turn = min(finish, told, crash)
        self.turns_at = max(turn, self.started_at)
        self.saves_last = False
        if turn == finish:
            self.outcome, leaves, self.saves_last = "finished", self.turns_at + shape.save_s, True
        elif turn == crash:
            self.outcome, leaves = "crashed", self.turns_at
        else:
            self.outcome = "landed_signal" if self.told_at == told else "landed_deadline"
            leaves = self._leaves_at()
        self.gone_by_watcher_at = leaves
        self.saved_at = leaves
        self.ends_at = leaves + _COLLECTED_S
        self.scored_at = self.ends_at
        self.watcher_died = dies < self.ends_at
        if self.watcher_died:
            # Nobody is told, and nothing is taken: the command's own processes go on.
            self.ends_at, self.outcome, self.saves_last = dies, "lost", False

    def _leaves_at(self) -> float:
        """When none of its processes is left, once it was told: its watcher ends what stays."""
        told = self.turns_at
        stopping = Stopping(self.command, self.deadline_at)
        by_signal = self.habit in (Habit.PLAIN, Habit.FORKING, Habit.FILLING, Habit.ATTACKING)
        by_signal = by_signal and not (self.frozen_at is not None and self.frozen_at <= told)
        tick, saving_from = 0, inf
        while True:
            now = told + tick * _TICK_S
            if now >= saving_from + self._needs_s:
                self.saves_last = True
                return saving_from + self._needs_s
            for act in stopping.acts(now, now, asked=True, listens=False):
                if act is Act.KILL:
                    return now
                if act is Act.SIGNAL and by_signal:
                    return now + _LEAVES_S  # children that stay are killed once it has left
                if act is Act.SIGNAL and self.habit is Habit.SLOW:
                    saving_from = now
            tick += 1

    # -- what is asked of a trainer of ours, and means nothing to a command ------------------------

    heeds_saves = False

    def ask(self, at: float) -> float | None:
        return None

    def finish(self, at: float) -> None:
        """It knows no cooldown."""

    def curve(self, at: float) -> worth.Curve | None:
        return None

    # -- its processes -----------------------------------------------------------------------------

    def tell(self, at: float) -> None:
        """To its watcher, which a script that hangs does not keep from stopping it."""
        if self.told_at is None and self.runs(at) and at < self.turns_at:
            self.told_at = at
            self._replan()

    def kill(self, at: float) -> None:
        """All of it: the watcher, and what the command has started, in whichever session."""
        if self.lives(at):
            self.swept_at = at
        super().kill(at)

    def lives(self, at: float) -> bool:
        """Whether any process of the command itself is left."""
        if self.swept_at is not None and at >= self.swept_at:
            return False
        return self.watcher_died or at < self.gone_by_watcher_at

    @property
    def silent_from(self) -> float:
        """A heartbeat that cannot be written is none."""
        return min(super().silent_from, self.disk_full_at)

    def saved_step(self, at: float) -> int | None:
        if at >= self.disk_full_at:
            at = self.disk_full_at
        return super().saved_step(at)

    def heartbeat(self, at: float) -> Heartbeat | None:
        beat = super().heartbeat(min(at, self.disk_full_at))
        if beat is None:
            return None
        state = "training" if beat.state == "compiling" else beat.state
        return replace(beat, state=state, saves=None, signs=int(beat.at - self.started_at) + 1)

    def metrics(self, at: float) -> list[Mapping[str, Any]]:
        return []


def start_command(
    pod: SimPod,
    command: Command,
    phase: str,
    attempt: int,
    pid: int,
    left_s: float,
    from_step: int,
) -> SimCommand:
    """On ``pod``, with what it will do to it."""
    world, run_id = pod.world, pod.lease.run_id
    made = SimCommand(
        command,
        world.shape_of(run_id, phase, pod.rented),
        run_id=run_id,
        attempt=attempt,
        pid=pid,
        at=world.queue.now,
        deadline_s=left_s,
        from_step=from_step,
        ill=world.next_illness(pod.rented, phase, {}),
    )
    world.commands.append((pod, made))
    if made.habit is not Habit.PLAIN:
        world.fire(made.habit.value, f"{pod.rented.pod_id}'s command has a habit")
    if made.disk_full_at < inf:
        world.queue.at(made.disk_full_at, partial(_fill_disk, pod, made))
    for at in made.strikes():
        world.queue.at(at, partial(_attack, pod, made))
    return made


def _fill_disk(pod: SimPod, command: SimCommand) -> None:
    if command.lives(pod.world.queue.now):
        pod.world.say(f"{pod.rented.pod_id} disk is filled by its command")
        pod.world.knobs.pod_disk_full = True


def _attack(pod: SimPod, command: SimCommand) -> None:
    if command.lives(pod.world.queue.now) and pod.running:
        pod.world.say(f"{pod.rented.pod_id} agent is killed by its command")
        pod.kill_agent()
