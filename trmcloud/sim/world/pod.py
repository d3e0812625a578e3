"""A simulated pod: watchdog, agent and trainer on a machine of their own.

Watchdog and agent think with ``pod.agent``, the very code that runs on a real pod; here it gets a
host whose files are crash-consistent records and whose processes are arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.phase_account import lease_of
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.values import replace
from trmcloud.pod.agent.host import Trainer
from trmcloud.pod.agent.lease_clock import AnchorNote
from trmcloud.pod.agent.loop import AgentLoop
from trmcloud.pod.agent.nodes import HEAD_LOOK_EVERY_S, HEAD_LOST_S, HeadWatch
from trmcloud.pod.agent.watchdog import WORK_DONE, Watchdog
from trmcloud.sim.world.account import Observer, RentedMachine, Uploader, World
from trmcloud.sim.world.clocks import Entry, Machine
from trmcloud.sim.world.facts import PodStatements
from trmcloud.sim.world.host import SimHost, SimUploader
from trmcloud.sim.world.store import Checkpoint
from trmcloud.sim.world.trainer import Habit, SimCommand, SimTrainer

_LINGER_S = 20.0
_INSTALL_S = (5.0, 60.0)


class AgentKilled(BaseException):
    """The agent's process ends here, in the middle of whatever it was doing."""


def _skew_s(world: World, rented: RentedMachine) -> float:
    """A pod on the user's own machine has that machine's clock."""
    if rented.account.habits.self_ends == "exit":
        return world.laptop.offset_s
    return world.knobs.pod_skew_s


class SimPod:
    """The inside of a rented machine. ``rented`` is the provider's side of it."""

    def __init__(self, world: World, rented: RentedMachine, lease: contract.Lease) -> None:
        self.world, self.rented = world, rented
        self.name = rented.name
        self.machine = Machine(world.queue, rented.pod_id, _skew_s(world, rented))
        self.lease = lease
        self.orders: contract.Orders | None = None
        self.report: contract.AgentReport | None = None
        self.durable_report: contract.AgentReport | None = None
        self.reported_at = 0.0
        """When the agent wrote its last report, in true epoch s."""
        self.anchor: AnchorNote | None = None
        self.trainer_note: Trainer | None = None
        self.trainer: SimTrainer | None = None
        self.trainers_alive: list[SimTrainer] = []
        self.guard: Watchdog | None = None
        self.agent: AgentLoop | None = None
        self.had_agent = False
        self.stopped_until = 0.0
        self.guard_stopped = self.agent_stopped = False
        """Held by SIGSTOP, each by itself, until it is killed."""
        self.running = False
        self.ending = False
        self.agent_done = False
        self.staged = not lease.ready_within_s
        self.wiped = False
        """Whether a restart lost its agent's note of its own clock."""
        self.ready_at = 0.0
        self.cross: Callable[[str], None] = lambda point: None
        self._looks_again = False
        self.others = OtherMachines(self)
        self.said, self.written = PodStatements(), PodStatements()
        self.booted_at = 0.0
        self._saves_noted: tuple[float, SimTrainer | None, int] = 0.0, None, 0
        self._pids = 100
        self.uploader: Uploader = SimUploader(self)
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
        self.world.emit(Observer.on_boot, self)
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
        self._kill_trainers()
        self.uploader.stop(now)

    def restart_container(self, *, wiped: bool) -> None:
        """The entry command has ended, so the provider starts it again; billing goes on."""
        self.stop()
        self.report = self.durable_report
        if wiped:
            self.written = PodStatements()
        self.world.emit(Observer.on_restart, self, wiped=wiped)
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
            self.world.emit(Observer.on_watchdog_end, self, guard.why)
            self.rented.ended_by = "agent" if guard.why == WORK_DONE else "watchdog"
            self.agent, self.agent_stopped = None, False
            self._agent_event.cancel()
            self._kill_trainers()
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
        self.rented.end_from_inside()
        if self.running and self.guard is not None:
            self._guard_after(20.0)

    def _kill_trainers(self) -> None:
        for trainer in self.trainers_alive:
            trainer.kill(self.world.queue.now)
        self.save_now()
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
        self.had_agent = True
        self.world.emit(Observer.on_agent_start, self, self.agent)
        self._tick_after(TICK_S)

    def kill_agent(self) -> None:
        """SIGKILL to the agent alone; its trainer goes on."""
        if self.agent is not None:
            self.date_report()
            self.agent, self.agent_stopped = None, False
            self._agent_event.cancel()
            self._guard_after(0.25)

    def stop_agent(self) -> None:
        """SIGSTOP to the agent alone."""
        self.date_report()
        self.agent_stopped = self.agent is not None

    @property
    def speaks(self) -> bool:
        """Whether its agent writes reports: one that is off does nothing else."""
        return self.agent is not None and not self.agent_stopped

    def date_report(self) -> None:
        """A real agent writes its report every few seconds; here it is only dated when read, so
        the last one of an agent that speaks no more is dated now."""
        if self.report is not None and self.speaks:
            self.report = replace(self.report, at=self.machine.now().wall)
            self.reported_at = self.world.queue.now

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
        else:
            # Its children live on without it; only the agent still knows the time.
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

    def _tick_after(self, seconds: float, act: Callable[[], None] | None = None) -> None:
        self._agent_event.cancel()
        self._agent_event = self.world.queue.after(seconds, act or self.tick)

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
                self.world.emit(Observer.on_result, self, agent.report)
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
        self.world.emit(Observer.on_tick, self)
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
            self._tick_after(self.stopped_until - self.world.queue.now, self._linger)
            return
        try:
            stays = agent.linger()
        except AgentKilled:
            stays = False
        if not stays:
            self.agent = None
            self._guard_after(0.25)
        elif self.running:
            hard = agent.hard_left_s()
            long_s = max(_LINGER_S, min(hard + 0.1, COARSE_S))
            self._tick_after(TICK_S if agent.telling else long_s, self._linger)

    # -- the trainer --------------------------------------------------------------------------

    def spawn(
        self, phase: str, attempt: int, deadline_at: float, overrides: Mapping[str, Any]
    ) -> int:
        now = self.world.queue.now
        run_id = self.lease.run_id
        self.trainers_alive = [t for t in self.trainers_alive if t.runs(now)]
        if self.trainers_alive:
            self.world.fail("two trainers", f"{self.rented.pod_id} runs two trainers")
        self._pids += 1
        files = self.world.files
        whole = [c for c in files.whole(run_id, phase) if self._has(c)]
        from_step = max((c.manifest.step for c in whole), default=0)
        for made in files.checkpoints.get(run_id, ()):
            if made.manifest.phase == phase and not made.whole:
                self.world.felt_any("damage")
        left_s = deadline_at - self.machine.now().wall
        command = self.world.truths[run_id].plan.spec.command
        shape = self.world.shape_of(run_id, phase, self.name)
        about: dict[str, Any] = {"run_id": run_id, "attempt": attempt, "pid": self._pids, "at": now}
        about |= {"deadline_s": left_s, "from_step": from_step}
        if command is None:
            about["ill"] = self.world.next_illness(self.rented, phase, overrides)
            pays = lease_of(self.lease, phase).stop == StopRules()
            self.trainer = SimTrainer(shape, **about, overrides=overrides, tells_worth=not pays)
        else:
            about["ill"] = self.world.next_illness(self.rented, phase, {})
            self.trainer = SimCommand(command, shape, **about)
            start_habit(self, self.trainer)
        self.trainers_alive.append(self.trainer)
        self.world.time_steps(self, self.trainer)
        self.world.emit(Observer.on_spawn, self, self.trainer, left_s)
        self.world.say(f"{self.rented.pod_id} {phase} attempt {attempt} from step {from_step}")
        return self._pids

    def _has(self, made: Checkpoint) -> bool:
        """Whether it lies on this pod: what a rented one did not make itself it was given, by the
        controller, or by grants where it is to work with a bucket."""
        if not self.lease.uploads or self.rented.account.habits.provider == LOCAL:
            return True
        mine = made.pod_id == self.rented.pod_id
        return mine or made.manifest.sha256 in self.uploader.fetched

    def save_now(self) -> None:
        """Bring the run's checkpoints up to this instant."""
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


def start_habit(pod: SimPod, made: SimCommand) -> None:
    """Plan what a command will do to its ``pod``."""
    world = pod.world
    world.commands.append((pod, made))
    if made.habit is not Habit.PLAIN:
        world.fire(made.habit.value, f"{pod.rented.pod_id}'s command has a habit")
    if made.disk_full_at < inf:
        world.queue.at(made.disk_full_at, partial(_fill_disk, pod, made))
    for at in made.strikes():
        world.queue.at(at, partial(_attack, pod, made))


def _fill_disk(pod: SimPod, command: SimCommand) -> None:
    if command.lives(pod.world.queue.now):
        pod.world.say(f"{pod.rented.pod_id} disk is filled by its command")
        pod.world.knobs.pod_disk_full = True


def _attack(pod: SimPod, command: SimCommand) -> None:
    if command.lives(pod.world.queue.now) and pod.running:
        pod.world.say(f"{pod.rented.pod_id} agent is killed by its command")
        pod.kill_agent()


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


class OtherMachines:
    """One pod's machines but the first: they come to life when that is lost."""

    def __init__(self, pod: SimPod) -> None:
        self._pod = pod
        self.head_watch: HeadWatch | None = None
        """As they look at the first one, once that is lost."""
        self._head_lost_at = 0.0

    def lose_head(self) -> None:
        """The first of its machines is lost, with its agent, its guard and its disk; the others'
        trainers have failed with it. They are there, and billed, and look for the first."""
        now = self._pod.world.queue.now
        self._pod.stop()
        self._pod.world.files.lose_pod(self._pod.rented.run_id, pod_id=self._pod.rented.pod_id)
        answers = [True, False]
        boot_s = lambda: self._pod.machine.now().boot  # noqa: E731
        self.head_watch = HeadWatch(lambda: answers.pop(0) if answers else False, boot_s)
        self.head_watch.look()
        self._head_lost_at = now
        self._pod.world.queue.after(HEAD_LOOK_EVERY_S, self._look_for_head)
        self._pod.world.emit(Observer.on_head_lost, self._pod.rented)

    def _look_for_head(self) -> None:
        watch, rented = self.head_watch, self._pod.rented
        if watch is None or rented.ended or rented.deleting:
            return
        watch.look()
        if watch.is_lost:
            rented.ended_by = rented.ended_by or "another machine"
            rented.end_from_inside()
        self._pod.world.queue.after(HEAD_LOOK_EVERY_S, self._look_for_head)

    def word(self) -> contract.AgentReport | None:
        """Return the report that the link makes of another machine's, once the first was silent for
        long: see ``adapters.ssh.others``."""
        base = self._pod.durable_report or self._pod.report
        if base is None or self._pod.world.queue.now - self._head_lost_at < HEAD_LOST_S:
            return None
        phases = tuple(
            replace(phase, state=PhaseState.ENDED, outcome="crashed")
            if phase.state is PhaseState.RUNNING
            else phase
            for phase in base.phases
        )
        word = replace(
            base, result="failed", message="the first machine is lost", phases=phases, kept=()
        )
        self._pod.said.hear(word)
        return word
