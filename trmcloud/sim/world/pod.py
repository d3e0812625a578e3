"""A simulated pod: watchdog, agent and trainer on a machine of their own.

Watchdog and agent think with ``pod.mind``, the very code that runs on a real pod; here it gets a
body whose files are crash-consistent records and whose processes are arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.worth import StopRules
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.watchdog import WORK_DONE, Watchdog
from trmcloud.sim.world.command import start_command
from trmcloud.sim.world.host import SimHost
from trmcloud.sim.world.machines import Machine
from trmcloud.sim.world.next_tick import COARSE_S, TICK_S, next_tick_s
from trmcloud.sim.world.other_machines import OtherMachines
from trmcloud.sim.world.queue import Entry
from trmcloud.sim.world.said import Said
from trmcloud.sim.world.trainer import SimTrainer
from trmcloud.sim.world.uploads import SimUploader

if TYPE_CHECKING:
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.store import Checkpoint
    from trmcloud.sim.world.world import SimWorld

_LINGER_S = 20.0
_INSTALL_S = (5.0, 60.0)


class AgentKilled(BaseException):
    """The agent's process ends here, in the middle of whatever it was doing."""


def _skew_s(world: SimWorld, rented: Rented) -> float:
    """A pod on the user's own machine has that machine's clock."""
    if rented.account.habits.self_ends == "exit":
        return world.laptop.offset_s
    return world.knobs.pod_skew_s


class SimPod:
    """What runs inside a rented machine. ``rented`` is the provider's side of it."""

    def __init__(self, world: SimWorld, rented: Rented, lease: contract.Lease) -> None:
        self.world, self.rented = world, rented
        self.name = rented.name
        self.machine = Machine(world.queue, rented.pod_id, _skew_s(world, rented))
        self.lease = lease
        self.orders: contract.Orders | None = None
        self.report: contract.AgentReport | None = None
        self.durable_report: contract.AgentReport | None = None
        self.anchor: AnchorNote | None = None
        self.trainer_note: Trainer | None = None
        self.trainer: SimTrainer | None = None
        self.trainers_alive: list[SimTrainer] = []
        self.guard: Watchdog | None = None
        self.agent: AgentLoop | None = None
        self.agent_body: SimHost | None = None
        self.stopped_until = 0.0
        self.guard_stopped = self.agent_stopped = False
        """Held by SIGSTOP, each by itself, until it is killed."""
        self.running = False
        self.ending = False
        self.agent_done = False
        self.staged = not lease.ready_within_s
        self.wiped = False
        """Whether a restart took what its agent had noted of its own clock."""
        self.ready_at = 0.0
        self.cross: Callable[[str], None] = lambda point: None
        self._looks_again = False
        self.others = OtherMachines(self)
        self.said, self.written = Said(), Said()
        self.booted_at = 0.0
        self._saves_noted: tuple[float, SimTrainer | None, int] = 0.0, None, 0
        self._pids = 100
        self.uploader = SimUploader(self)
        self._agent_event = self._guard_event = Entry(0.0, None)

    # -- the container ------------------------------------------------------------------------

    def boot(self) -> None:
        if self.rented.ended or self.rented.deleting:
            return
        self.running = True
        if not self.staged:
            self.ready_at = self.world.queue.now + self.world.rng.uniform(*_INSTALL_S)
        self.world.say(f"{self.rented.pod_id} boots")
        self.booted_at = self.world.queue.now
        self.guard = Watchdog(SimHost(self))
        self.world.check.duties.booted(self)
        self.look_guard()
        if "watchdog" in self.world.off:
            # Dead as soon as it has started the agent.
            self.guard = None
            self._guard_event.cancel()

    def stop(self) -> None:
        """Everything on it ends: deleted, preempted, or its host lost."""
        now = self.world.queue.now
        self.running = False
        self.guard = self.agent = None
        self.guard_stopped = self.agent_stopped = False
        self._agent_event.cancel()
        self._guard_event.cancel()
        for trainer in self.trainers_alive:
            trainer.kill(now)
        self._note_saves()
        self.uploader.stop(now)
        self.trainers_alive.clear()

    def restart_container(self, *, wiped: bool) -> None:
        """The entry command has ended, so the provider starts it again; billing goes on."""
        self.stop()
        self.report = self.durable_report
        self.world.check.duties.restarted(self, wiped=wiped)
        if wiped:
            self.report = self.durable_report = None
            self.agent_done = False  # the note of its end has gone with the rest
            self.anchor = None
            self.orders = None
            self.wiped = True
            self.uploader = SimUploader(self)
            self.world.files.lose_pod(self.rented.run_id, pod_id=self.rented.pod_id)
            self.staged = not self.lease.ready_within_s
        self.trainer_note = None
        self.trainer = None
        self.ending = False
        self.machine.rename_boot("'")
        self.world.queue.after(5.0, self.boot)

    def wake(self) -> None:
        """Something on it changed: watchdog and agent look soon."""
        if not self.running:
            return
        if self.agent is not None:
            self._tick_after(TICK_S)
        self._guard_after(TICK_S / 2)

    # -- the watchdog -------------------------------------------------------------------------

    def _guard_after(self, seconds: float) -> None:
        self._guard_event.cancel()
        self._guard_event = self.world.queue.after(seconds, self.look_guard)

    def look_guard(self) -> None:
        guard, now = self.guard, self.machine.now()
        if guard is None or not self.running or self.guard_stopped:
            return
        if self._stopped():
            self._guard_after(self.stopped_until - self.world.queue.now)
            return
        if self.ending:
            self._end_again()
            return
        runs = self.agent is not None
        report = self.report
        result = report.result if report is not None and not runs else None
        act = guard.look(
            now,
            self.lease,
            agent_runs=runs,
            agent_done=self.agent_done,
            told=False,
            result=result,
        )
        if act == Watchdog.END:
            self.world.say(f"{self.rented.pod_id} watchdog ends it: {guard.why}")
            self.world.check.duties.guard_ends(self, guard.why)
            self.rented.ended_by = "agent" if guard.why == WORK_DONE else "watchdog"
            self._kill_all()
            self.ending = True
            self._end_again()
            return
        if act == Watchdog.START:
            self._start_agent()
        left = guard.seconds_left(self.machine.now())
        done = result is not None or self.agent_done
        held = act == Watchdog.WATCH and done  # for nothing but the hard stop
        if self.agent is None and not held:
            self._guard_after(1.0)
        else:
            soon = COARSE_S if left is None else max(TICK_S / 2, min(left + 0.25, COARSE_S))
            self._guard_after(soon)

    def _end_again(self) -> None:
        """By every means the provider leaves, again and again until one works."""
        self.rented.account.end_from_inside(self.rented)
        if self.running and self.guard is not None:
            self._guard_after(20.0)

    def _kill_all(self) -> None:
        self.agent, self.agent_stopped = None, False
        self._agent_event.cancel()
        for trainer in self.trainers_alive:
            trainer.kill(self.world.queue.now)
        self._note_saves()
        self.trainers_alive.clear()

    # -- the agent ----------------------------------------------------------------------------

    def _start_agent(self) -> None:
        self.agent_done = self.agent_stopped = False
        body = SimHost(self)
        try:
            self.agent = AgentLoop(body, self.name)
            self.agent.write_report(force=True)
        except (ValueError, AgentKilled):
            self.agent = None
            return
        self.agent_body = body
        self.world.check.duties.agent_started(self, self.agent)
        self._tick_after(TICK_S)

    def kill_agent(self) -> None:
        """SIGKILL to the agent alone; its trainer goes on."""
        if self.agent is not None:
            self.agent, self.agent_stopped = None, False
            self._agent_event.cancel()
            self._guard_after(0.25)

    def stop_agent(self) -> None:
        """SIGSTOP to the agent alone."""
        self.agent_stopped = self.agent is not None

    def stop_watchdog(self) -> None:
        """SIGSTOP to the first process alone."""
        self.guard_stopped = self.guard is not None

    def resume_watchdog(self) -> None:
        """SIGCONT to it."""
        self.guard_stopped = False
        self._guard_after(0.25)

    def kill_watchdog(self) -> None:
        """SIGKILL to the first process: the container ends with it."""
        if not self.running:
            return
        habits = self.rented.account.habits
        if habits.restarts:
            self.restart_container(wiped=self.world.knobs.restart_wipes)
        elif habits.self_ends == "exit":
            # Its children live on without it; only the agent still knows the time.
            self.guard, self.guard_stopped = None, False
            self._guard_event.cancel()
        else:
            self.guard, self.guard_stopped = None, False
            self._guard_event.cancel()

    def trap(self, point: str) -> None:
        """Kill the agent the next time it passes ``point``."""

        def cross(passed: str) -> None:
            if passed == point:
                self.cross = lambda point: None
                raise AgentKilled

        self.cross = cross

    def _stopped(self) -> bool:
        return self.world.queue.now < self.stopped_until

    def _tick_after(self, seconds: float) -> None:
        self._agent_event.cancel()
        self._agent_event = self.world.queue.after(seconds, self.tick)

    def tick(self) -> None:
        agent = self.agent
        if agent is None or not self.running or "agent" in self.world.off:
            return
        if self.agent_stopped:
            return
        if self._stopped():
            self._tick_after(self.stopped_until - self.world.queue.now)
            return
        before = agent.report
        try:
            if agent.report.result is None:  # one that was started anew may have it already
                agent.tick()
            if agent.report.result is not None:
                agent.write_report(force=True)
                self.world.say(f"{self.rented.pod_id} agent is done: {agent.report.result}")
                self.world.check.duties.done(self, agent.report)
                self.agent_done = True
                if not agent.lease.hold:
                    grace_s = traits_of(self.rented.account.habits.provider).end_grace_s
                    self.rented.land_by = min(self.rented.land_by, self.world.queue.now + grace_s)
                self.world.wake()
                self._linger()
                return
        except AgentKilled:
            self.world.say(f"{self.rented.pod_id} agent is killed")
            self.agent = None
            self._guard_after(0.25)
            return
        self.world.check.duties.ticked(self)
        changed = before.phases is not agent.report.phases and before.phases != agent.report.phases
        if changed:
            self.world.wake()
        # Now and then it looks twice in a row, as it always does on a real pod: a step goes on.
        self._looks_again = not self._looks_again
        soon = changed or self._looks_again
        self._tick_after(TICK_S if soon else next_tick_s(self))

    def _linger(self) -> None:
        """The agent's work is done: it leaves, or stays for what only it can still do."""
        agent = self.agent
        if agent is None or not self.running or self.agent_stopped:
            return
        if self._stopped():
            self._linger_after(self.stopped_until - self.world.queue.now)
            return
        try:
            stays = agent.linger()
        except AgentKilled:
            stays = False
        if not stays:
            self.agent = None
            self._guard_after(0.25)
        elif self.running:
            hard = agent.lease.hard_stop_at - self.machine.now().wall
            long_s = max(_LINGER_S, min(hard + 0.1, COARSE_S))
            self._linger_after(TICK_S if agent.telling else long_s)

    def _linger_after(self, seconds: float) -> None:
        self._agent_event.cancel()
        self._agent_event = self.world.queue.after(seconds, self._linger)

    # -- the trainer --------------------------------------------------------------------------

    def spawn(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> int:
        now = self.world.queue.now
        run_id = self.lease.run_id
        self.trainers_alive = [t for t in self.trainers_alive if t.runs(now)]
        if self.trainers_alive:
            self.world.check.fail("two trainers", f"{self.rented.pod_id} runs two trainers")
        self._pids += 1
        files = self.world.files
        whole = [c for c in files.whole(run_id, phase) if self._has(c)]
        from_step = max((c.manifest.step for c in whole), default=0)
        for made in files.checkpoints.get(run_id, ()):
            if made.manifest.phase == phase and not made.whole:
                self.world.felt_any("damage")
        left_s = deadline_at - self.machine.now().wall
        command = self.world.truths[run_id].plan.spec.command
        self.trainer = (
            start_command(self, command, phase, attempt, self._pids, left_s, from_step)
            if command is not None
            else SimTrainer(
                self.world.shape_of(run_id, phase, self.rented),
                run_id=run_id,
                attempt=attempt,
                pid=self._pids,
                at=now,
                deadline_s=left_s,
                from_step=from_step,
                ill=self.world.next_illness(self.rented, phase, overrides),
                overrides=overrides,
                tells_worth=self._rules(phase) != StopRules(),
            )
        )
        self.trainers_alive.append(self.trainer)
        self.world.check.duties.spawned(self, self.trainer, left_s)
        self.world.say(f"{self.rented.pod_id} {phase} attempt {attempt} from step {from_step}")
        return self._pids

    def _rules(self, phase: str) -> StopRules:
        return next(share.stop for share in self.lease.phases if share.name == phase)

    def _has(self, made: Checkpoint) -> bool:
        """Whether it lies on this pod: what a rented one did not make itself it was given, by the
        controller, or by grants where it is to work with a bucket."""
        if not self.lease.uploads or self.rented.account.habits.provider == LOCAL:
            return True
        mine = made.pod_id == self.rented.pod_id
        return mine or made.manifest.sha256 in self.uploader.fetched

    def save_now(self) -> None:
        """Bring the run's checkpoints up to this instant."""
        self._note_saves()

    def _note_saves(self) -> None:
        now, trainer = self.world.queue.now, self.trainer
        if trainer is None:
            return
        noted = now, trainer, trainer.told_times
        if noted == self._saves_noted:
            return
        self._saves_noted = noted
        step = trainer.saved_step(now)
        if step is not None:
            self.world.save_checkpoint(self.rented, trainer, step)
