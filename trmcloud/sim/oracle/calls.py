"""Every call to a provider, and every run that is taken over, judged by what is true by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.trainer_contract import DONE
from trmcloud.core.control.actions import CREATE, TERMINATE
from trmcloud.core.control.run_state import RunState, State

if TYPE_CHECKING:
    from trmcloud.ports.compute import PodRequest
    from trmcloud.sim.oracle.undecidable import Undecidable
    from trmcloud.sim.world.account import Rented
    from trmcloud.sim.world.controllers import Process
    from trmcloud.sim.world.world import SimWorld

CALL_S = 5.0
"""So long a provider's answer may take: what was true when it was asked may have ended since."""
LOOKS_S = 60.0
"""A driver has looked by then, and more than once."""
RETRY_S = 62.0
"""The longest backoff, and until the next look."""
TOO_FEW_S = 600.0


class CallJudge:
    """``fail`` takes an invariant's name and what is wrong."""

    def __init__(
        self, world: SimWorld, undecidable: Undecidable, fail: Callable[[str, str], None]
    ) -> None:
        self.world, self.undecidable, self.fail = world, undecidable, fail
        self._asked: set[str] = set()
        self.may_end: dict[Process, str] = {}
        """By controller: the run whose pod's end it has written down to ask for; empty: none's."""
        self.named_ends: set[str] = set()
        """Pods that were asked to end by a person who named their run."""
        self.refusal: Exception | None = None
        """The last answer for which a command was right to refuse."""

    def asked_for(self, process: Process, request: PodRequest) -> None:
        """A create call reaches the provider."""
        lease, run_id = request.lease, request.lease.run_id
        if self.world.check.forgotten:
            return
        if request.name in self._asked:
            self.fail("I5", f"{request.name} is asked for a second time")
        self._asked.add(request.name)
        run = self.world.ledger.read().runs.get(run_id)
        named = [g for g in run.generations if g.pod_name == request.name] if run else []
        if run is None or not named:
            return  # ``pod_made`` says so
        if not run.tries(named[0], CREATE):
            self.fail("I5", f"{request.name} is asked for before that is written down")
        finished = {n for n, account in run.phases.items() if account.outcome in DONE}
        if finished & {phase.name for phase in lease.phases}:
            self.fail("wasteful", f"{request.name} shall train again what {run_id} has finished")
        if len(lease.phases) < 2 or lease.fits_budget:
            return
        lasts_s = lease.soft_stop_at - lease.granted_at
        whole_s = sum(phase.expected_s for phase in lease.phases)
        share_s = lasts_s * lease.phases[0].expected_s / whole_s
        allowed_s = lease.phases[0].allowed_s
        if allowed_s > share_s + 60.0 or (lasts_s > 2 * TOO_FEW_S and allowed_s < share_s / 3):
            self.fail("wasteful", f"of {lasts_s:.0f} s the first phase gets {allowed_s:.0f}")

    def sent(self, process: Process, request: PodRequest) -> None:
        """A create goes out: whoever slept since it was decided on does not send it any more, since
        its run may be closed by now and its money free."""
        run = self.world.ledger.read().runs.get(request.lease.run_id)
        generation = run.generation if run is not None else None
        if self.world.check.forgotten or self.undecidable.clocks_moved or generation is None:
            return
        if generation.pod_name != request.name or not generation.open:
            self.fail("I5", f"{request.name} is asked for, and was given up long ago")

    def ends(self, process: Process, rented: Rented, run: RunState, *, slept: bool) -> None:
        """A controller asks for the end of a pod that ``run`` owns."""
        if self.may_end.get(process) == run.run_id:
            return
        if process.named == run.run_id:
            return  # a person's right, of its own: it needs no ledger
        if self._may_end_unwritten(process, run, slept=slept):
            return
        generation, now = run.generation, process.machine.now().wall
        latency_s = traits_of(rented.account.habits.provider).kill_latency_s
        if generation is None or now < generation.hard_stop_at + latency_s:
            self.fail("I6", f"{rented.pod_id} is ended by one that did not write so")
        elif latency_s >= LOOKS_S and not self._was_tried(process, run, latency_s):
            self.fail("I2", f"{rented.pod_id} is ended by the last layer, and the run never tried")

    def _may_end_unwritten(self, process: Process, run: RunState, *, slept: bool) -> bool:
        """At the hard stop, or where a person said so, the run's driver ends its pod though it
        cannot write; one that can read that another has taken the run over does not."""
        driver, generation, ledger = process.driver, run.generation, self.world.ledger
        if driver is None or driver.run_id != run.run_id or generation is None:
            return False
        at_once = run.stop is not None and run.stop.at_once
        if not at_once and process.machine.now().wall < generation.hard_stop_at:
            return False
        if slept:
            return True  # it might, when it began to ask
        was_full = self.world.queue.now < self.world.knobs.disk_full_until + CALL_S
        writable = self.world.ledger_writable and not was_full
        if writable and run.run_id not in ledger.seen().quarantined:
            return False  # of a run whose records are damaged nothing can be written by anyone
        newest = ledger.driver(run.run_id)
        current = newest is not None and newest.epoch == driver.epoch
        return current or not self.world.ledger_readable

    def _was_tried(self, process: Process, run: RunState, latency_s: float) -> bool:
        """Whether the run has done its own to end its pod, or this is not who was there to."""
        driver = process.driver
        mine = driver is not None and driver.run_id == run.run_id
        able_since = self.world.check.exposure.able.get(run.run_id)
        idle = able_since is None or self.world.queue.now - able_since < latency_s
        tried = run.generation is not None and bool(run.tries(run.generation, TERMINATE))
        return tried or idle or not mine or self.undecidable.odd(process)

    def left_alone(self, rented: Rented) -> None:
        """A pod lives whose work is done: a controller that is up must have tried to end it."""
        run = self.world.ledger.read().runs.get(rented.run_id)
        generation = run.generation if run is not None else None
        able_since = self.world.check.exposure.able.get(rented.run_id)
        if run is None or generation is None or generation.pod_id != rented.pod_id:
            return
        if run.state is not State.ENDING or run.result_at is None or able_since is None:
            return
        if rented.pod.lease.hold or self.undecidable.woken or self.undecidable.clocks_moved:
            return
        grace_s = traits_of(rented.account.habits.provider).end_grace_s
        late_s = self.world.queue.now - max(run.result_at + grace_s, able_since)
        if late_s > RETRY_S and not run.tries(generation, TERMINATE):
            self.fail("wasteful", f"{rented.pod_id} is done, and for {late_s:.0f} s nobody ends it")

    def escaped(self, process: Process, error: Exception) -> None:
        """A provider's error has ended a whole command: nothing that came after it was done."""
        if error is self.refusal:
            return
        self.fail("I7", f"{process.kind} was ended by a provider's answer: {error}")

    def left(self, process: Process, known: RunState | None) -> None:
        """A driver's command ends since its ledger cannot be used. ``known``: its run after its
        last whole step. Where its pod lives and can be listed, it was to stay until the hard stop:
        nobody else may be there to end it."""
        driver, now = process.driver, self.world.queue.now
        if driver is None or known is None or known.generation is None or not driver.errands:
            return
        run = self.world.ledger.read().runs.get(driver.run_id)
        generation = run.generation if run is not None else None
        newest = self.world.ledger.driver(driver.run_id)
        current = newest is not None and newest.epoch == driver.epoch
        if run is None or generation is None or not run.live or not current:
            return
        if known.generation.pod_name != generation.pod_name or not generation.open:
            return
        odd = self.world.check.forgotten or self.undecidable.clocks_moved
        if odd or self.undecidable.odd(process) or self.world.knobs.list_flickers:
            return
        for rented in self.world.living():
            mine = rented.pod_id == generation.pod_id and now >= rented.visible_at
            if mine and process.machine.now().wall < generation.hard_stop_at:
                self.fail("I2", f"{rented.pod_id} lives, and its driver leaves without a ledger")

    def taken_over(self, process: Process, run_id: str) -> None:
        """Somebody becomes a run's driver; by a command, only where nobody drives it."""
        if process.kind == "launch" or self.undecidable.woken or self.undecidable.clocks_moved:
            return
        driver = self.world.ledger.driver(run_id)
        for other in self.world.processes:
            alive = other.up and other.machine.online and other.driver is not None
            if alive and driver is not None and other.who == driver.controller:
                self.fail("I6", f"{run_id} is taken from one that drives it")
