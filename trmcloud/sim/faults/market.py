"""Faults of a market. 101–105: stock that is sold out or flaps, boots that never come, prices that
rise while a run waits, and a provider that asks to be asked less often. 106–112, of runs that move:
prices that fall, either machine lost meanwhile, a command that is killed or stopped at each step of
a move, and a bucket or a link that is down while the working machine lands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trmcloud.sim.faults.arm import Fault, FaultContext

_MINUTE_S, _HOUR_S = 60.0, 3600.0


def _sold_out(arms: FaultContext) -> None:
    """From the launch on, for ten minutes to longer than anybody waits."""
    seconds = 10 * _MINUTE_S * 60 ** arms.rng.random()
    arms.for_a_while("sold_out_until", arms.soon(), seconds, "nothing is free")


def _flaps(arms: FaultContext) -> None:
    """Stock comes and goes; it is there for a share of each period."""
    period_s, share = arms.rng.uniform(5, 90) * _MINUTE_S, arms.rng.uniform(0.02, 0.5)
    at = arms.soon()
    for number in range(int(12 * _HOUR_S / period_s)):
        gone_s = period_s * (1 - share)
        arms.for_a_while("sold_out_until", at + number * period_s, gone_s, "nothing is free")


def _never_boots(arms: FaultContext) -> None:
    """Pods that are billed from their creation and never say a word."""
    count = arms.rng.choice((1, 1, 2, 3, 5))
    arms.set_knob("silent_boots", count, f"{count} pods will never boot")


def _rises(arms: FaultContext) -> None:
    """The price moves every hour, at first above what the user pays at most."""
    factor, at = arms.rng.uniform(1.1, 2.5), arms.soon()
    for number in range(12):
        text = f"a machine costs {factor:.2f} × the quote"
        arms.set_knob("price_now", factor, text, at + number * arms.rng.uniform(0.3, 1.0) * _HOUR_S)
        factor *= arms.rng.uniform(0.6, 1.2)


def _throttles(arms: FaultContext) -> None:
    """429 to every create for up to two hours; it says for how long, or does not."""
    seconds = arms.rng.uniform(0.1, 2.0) * _HOUR_S
    arms.set_knob("retry_after_s", arms.rng.choice((0.0, 30.0, 900.0)), "429 to creates")
    arms.for_a_while("creates_throttled_until", arms.soon(), seconds, "429 to creates")


FAULTS: dict[str, tuple[str, Fault]] = {
    "101": ("sold out", _sold_out),
    "102": ("stock comes and goes", _flaps),
    "103": ("boots never come", _never_boots),
    "104": ("price above the most, and below again", _rises),
    "105": ("429 to creates", _throttles),
}


_STEPS = tuple(
    f"{event}.{when}"
    for event in ("MoveStarted", "HandedOver", "Moved")
    for when in ("before", "after")
)


def _falls(arms: FaultContext) -> None:
    """New machines cost less than was planned, from some moment on."""
    factor = arms.rng.uniform(0.3, 0.9)
    at = arms.some_time(0.02, 0.7)
    arms.set_knob("price_now", factor, f"a machine costs {factor:.2f} × the quote", at)


def _at_step(arms: FaultContext, act: Callable[[], None], points: tuple[str, ...]) -> None:
    """``act`` shortly after one of a move's steps is on record, or long after."""
    delay_s = arms.rng.choice((0.5, 20.0, 120.0, 400.0, 1200.0)) * arms.rng.random()
    point = arms.rng.choice(points)
    arms.trap(point, "", then=lambda: _later(arms, delay_s, act))


def _later(arms: FaultContext, delay_s: float, act: Callable[[], None]) -> None:
    def strike() -> None:
        act()
        arms.world.wake()

    arms.world.queue.after(delay_s, strike)


def _lose(arms: FaultContext, *, stands_by: bool) -> None:
    """The machine of a run that moves is taken back: the one that stands by, or the other."""
    for run in arms.world.ledger.read().runs.values():
        newest = run.generations[-1] if run.generations else None
        moving = run.move is not None or (newest is not None and newest.adopted_at is not None)
        if newest is None or not moving:
            continue
        mine = run.generation
        name = newest.pod_name if stands_by or mine is None else mine.pod_name
        pods = [r for r in arms.world.living() if r.name == name]
        for rented in pods:
            rented.account.host_lost(rented, "preempted")


def _standby_lost(arms: FaultContext) -> None:
    _at_step(arms, partial(_lose, arms, stands_by=True), _STEPS[1::2])


def _working_lost(arms: FaultContext) -> None:
    _at_step(arms, partial(_lose, arms, stands_by=False), _STEPS[1:4:2])


def _killed_at_step(arms: FaultContext) -> None:
    arms.trap(arms.rng.choice(_STEPS), "kill")


def _stopped_at_step(arms: FaultContext) -> None:
    seconds, whole = arms.rng.uniform(5, 1800), arms.rng.random() < 0.5
    arms.trap(arms.rng.choice(_STEPS), "stop", sleep_s=seconds, stops_machine=whole)


def _bucket_down(arms: FaultContext) -> None:
    seconds = arms.rng.uniform(20, 1800)
    _at_step(arms, partial(arms.from_now, "bucket_down_until", seconds), _STEPS[1::2])


def _link_down(arms: FaultContext) -> None:
    seconds = arms.rng.uniform(20, 1800)
    _at_step(arms, partial(arms.from_now, "link_down_until", seconds), _STEPS[1::2])


MOVES: dict[str, tuple[str, Fault]] = {
    "106": ("prices fall", _falls),
    "107": ("the machine that stands by is lost", _standby_lost),
    "108": ("the working machine is lost while it moves", _working_lost),
    "109": ("killed at a step of a move", _killed_at_step),
    "110": ("stopped at a step of a move", _stopped_at_step),
    "111": ("the bucket is down while it moves", _bucket_down),
    "112": ("the link is down while it moves", _link_down),
}
