"""The means of a fault to strike: a world, an instant, and dice of its own."""

from __future__ import annotations

import random
from collections.abc import Callable

from trmcloud.core.values import Value
from trmcloud.sim.scenario import Scenario
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.facts import START_AT, Trap
from trmcloud.sim.world.world import SimWorld


class FaultContext(Value):
    """One fault about to be set in one world. ``rng`` is the fault's own, so that taking another
    fault away leaves this one as it was."""

    number: str
    world: SimWorld
    scenario: Scenario
    rng: random.Random

    def some_time(self, low: float = 0.0, high: float = 1.0) -> float:
        """An instant between two shares of a run's longest time, as true epoch seconds."""
        wish = self.rng.choice(self.scenario.wishes)
        whole = wish.plan.candidates[0].hard_stop_s
        return START_AT + wish.at_s + 1.0 + whole * self.rng.uniform(low, high)

    def soon(self) -> float:
        """Before the first pod is asked for."""
        return START_AT

    def strike(self, at: float, text: str, act: Callable[[], None]) -> None:
        def now() -> None:
            self.world.fire(self.number, text)
            act()
            self.world.wake()

        self.world.queue.at(at, now)

    def strike_pod(
        self, at: float, text: str, act: Callable[[RentedMachine], None], *, felt: bool = False
    ) -> None:
        """Likewise for one of our living pods; without one nothing is fired. ``felt``: it counts
        as felt at once."""

        def now() -> None:
            ours = [r for r in self.world.living() if r.pod_id not in self.world.foreign]
            if ours:
                self.world.fire(self.number, f"{ours[0].pod_id} {text}")
                act(ours[0])
                if felt:
                    self.world.observed(self.number)
                self.world.wake()

        self.world.queue.at(at, now)

    def trap(
        self,
        point: str,
        kind: str,
        *,
        sleep_s: float = 0.0,
        stops_machine: bool = False,
        skip: int = 0,
        then: Callable[[], None] | None = None,
        kinds: tuple[str, ...] = ("launch",),
    ) -> None:
        made = Trap(self.number, point, kind, sleep_s, stops_machine, skip, then, kinds)
        self.world.armed.append(made)

    def for_a_while(self, knob: str, at: float, seconds: float, text: str) -> None:
        """Until ``at + seconds`` the named knob holds that instant."""

        self.strike(at, f"{text} for {seconds:.0f} s", lambda: self.from_now(knob, seconds))

    def from_now(self, knob: str, seconds: float) -> None:
        """The named knob holds the instant at which this is over, which is noticed then."""
        until = self.world.queue.now + seconds
        setattr(self.world.knobs, knob, max(until, getattr(self.world.knobs, knob)))
        self.world.queue.at(until + 1.0, self.world.wake)

    def set_knob(self, knob: str, value: object, text: str, at: float | None = None) -> None:
        def turn() -> None:
            setattr(self.world.knobs, knob, value)

        self.strike(self.soon() if at is None else at, text, turn)


Fault = Callable[[FaultContext], None]


def window(
    knob: str, low_s: float, high_s: float, text: str, begin: float = -0.02, end: float = 1.1
) -> Fault:
    """The named knob holds for a while, from an instant between two shares of a run's time."""

    def arm(arms: FaultContext) -> None:
        at = arms.some_time(begin, end)
        arms.for_a_while(knob, at, arms.rng.uniform(low_s, high_s), text)

    return arm


def answer(knob: str, value: str, text: str) -> Fault:
    """The next call that asks the named knob is answered by ``value``."""

    def arm(arms: FaultContext) -> None:
        arms.strike(arms.soon(), text, lambda: getattr(arms.world.knobs, knob).append(value))

    return arm
