"""Simulated sweeps: the pure core against trials that crash, are slow, have no metric, and lose
their machine, and an executor that is killed at any event. The oracle keeps accounts of its own.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from trmcloud.core.errors import UsageError
from trmcloud.core.money import ZERO, Usd, cost, total
from trmcloud.core.sweep import events, halving, samplers, space, state, terms
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.halving import Begin, Continue, End, Move, Reason, Seed2, next_moves
from trmcloud.core.sweep.samplers import Sampler, ScalingRule, make_sampler
from trmcloud.core.sweep.space import Point, read_words
from trmcloud.core.sweep.state import SweepState, TrialState, apply, fold, lost_events
from trmcloud.core.sweep.terms import Goal, SweepTerms, make_terms

SPACES = (
    ("lr=log:1e-4,1e-2", "width=int:64,256,step=32", "depth=2|4|8"),
    ("lr=log:1e-4,1e-2", "optimizer=adamw|muon", "muon_lr=log:1e-3,1e-1@optimizer=muon"),
    ("lr=uniform:0,1", "batch=logint:8,512"),
    ("depth=2|4|8", "heads=1|2"),
    ("a=1|2",),
    ("a=1",),
)
MOODS = ("ordinary",) * 6 + ("crashes", "silent", "nan", "equal", "mixed")
"""What trials of a world do; most learn."""
_MOST_STEPS = 5_000
_INSTANT_S = 0.01
_AGAIN = 0.1
"""The share of moves that are asked for twice."""


class Violated(AssertionError):
    """An invariant that does not hold."""


def code_hash() -> str:
    """SHA-256 over the sources that decide, and those that judge."""
    digest = hashlib.sha256()
    for module in (events, halving, samplers, space, state, terms):
        digest.update(Path(str(module.__file__)).read_bytes() + b"\0")
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


@dataclass
class World:
    """A drawn sweep. Chances are of each interval, or of each event for ``killed``."""

    seed: int
    terms: SweepTerms
    sampler: Sampler
    mood: str
    crash: float
    loss: float
    killed: float
    slow: float
    dropped: float
    soft_stop_s: float
    """When the machine lands all trials; infinite where only the money ends the sweep."""
    user_stop_s: float
    """When a user stops the sweep, which the core does not know before."""
    noise: float
    early: float
    """The chance of a trial whose training is whole before the last rung."""


@dataclass
class Played:
    """What a world came to."""

    world: World
    reason: Reason
    state: SweepState
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    most_share: float = 0.0
    """The highest committed and reserved share of the budget."""


def draw_world(seed: int) -> World | None:
    """Return the world of ``seed``; None where its terms are refused, as they buy no rung."""
    rng = random.Random(f"sweep/{seed}")
    space = read_words(rng.choice(SPACES))
    default, _ = space.default({})
    rate = Usd.from_micros(rng.choice((10_000, 400_000, 2_690_000, 31_920_000)))
    full_s = rng.choice((60.0, 900.0, 7200.0))
    full = cost(rate, full_s)
    fault = rng.choice((0.0, 0.0, 0.05, 0.3))
    try:
        terms = make_terms(
            space,
            default,
            metric="loss",
            goal=rng.choice(tuple(Goal)),
            usd=full * rng.choice((1, 2, 3, 5, 8, 12)),
            full_usd=full,
            slot_rate=rate,
            slots=rng.choice((1, 1, 2, 4)),
            finish_s=rng.choice((0.0, full_s / 20)),
            overrun_s=rng.choice((0.0, full_s / 50, full_s / 10)),
            restart_s=rng.choice((0.0, full_s / 100)),
            eta=rng.choice((2, 3, 3, 4)),
            rungs=rng.choice((1, 2, 3, 4)),
            seeds=rng.choice((1, 2, 2, 3)),
            can_resume=rng.random() < 0.7,
            sampler=rng.choice(("uniform",) * 5 + ("halton",) * 4 + ("density",)),
            seed=seed,
        )
    except UsageError:
        return None
    whole_s = terms.seconds(terms.usd) / terms.slots
    soft_stop_s = rng.choice((math.inf, whole_s, whole_s * rng.uniform(0.1, 1.0)))
    return World(
        seed=seed,
        terms=terms,
        sampler=make_sampler(
            terms.sampler,
            space,
            default,
            terms.goal,
            seed,
            rule=ScalingRule("lr", "width", "batch"),
        ),
        mood=rng.choice(MOODS),
        crash=fault * rng.random(),
        loss=fault * rng.random(),
        killed=rng.choice((0.0, 0.02, 0.2)),
        slow=rng.choice((0.0, 0.5, 1.0)),
        dropped=rng.choice((0.0, 0.0, 0.1)),
        soft_stop_s=soft_stop_s,
        user_stop_s=rng.choice((math.inf,) * 4 + (whole_s * rng.random(),)),
        noise=rng.choice((0.0, 0.01, 0.1)),
        early=rng.choice((0.0, 0.2)),
    )


def play_world(world: World) -> Played:
    """Play it to its end.

    Raises:
        Violated: an invariant does not hold.
    """
    return _Play(world).run()


class _Play:
    """One sweep: a clock, slots with what runs on them, a journal, and the oracle's accounts."""

    def __init__(self, world: World) -> None:
        self.world, self.terms = world, world.terms
        self.rng = random.Random(f"play/{world.seed}")
        self.now = 0.0
        self.journal = ""
        self.state = SweepState()
        self.running: list[tuple[float, int, ev.SweepEvent]] = []
        self.begun: dict[int, tuple[float, Usd]] = {}
        self.points: set[Point] = set()
        self.oracle = _Oracle(world.terms)
        self.faults: Counter[str] = Counter()
        self.events = 0

    def run(self) -> Played:
        for _ in range(_MOST_STEPS):
            self._stop()
            free = self.terms.slots - len(self.running)
            left = self.world.soft_stop_s - self.now
            known = self.state, self.terms, free, self.world.sampler
            moves = next_moves(*known, seconds_left=left)
            if self.rng.random() < _AGAIN:
                again = next_moves(*known, seconds_left=left)
                _hold(moves == again, "the same state gives other moves")
            _hold(len(moves) <= max(free, 1), "more moves than slots")
            for move in moves:
                if isinstance(move, End):
                    return self._end(move)
                self._start(move, left)
                if self._is_killed():
                    break
            if not self.running and not moves:
                raise Violated("nothing runs, nothing begins, and it does not end")
            if self.running:
                self._pass_time()
        raise Violated("it does not end")

    def _stop(self) -> None:
        """Land all trials at the soft stop, or at the user's."""
        if self.now < min(self.world.soft_stop_s, self.world.user_stop_s) or self.state.stopping:
            return
        by_user = self.now < self.world.soft_stop_s
        if not by_user and self.running and self.running[0][0] <= self.now + _INSTANT_S:
            return
        _hold(by_user or not self.running, "the soft stop cuts an interval")
        self.faults["stopped by the user"] += by_user
        self._write(ev.StopAsked("user" if by_user else "soft stop"))
        for _, number, _ in self.running:
            began, most = self.begun[number]
            paid = min(cost(self.terms.slot_rate, self.now - began), most)
            metric = self.rng.choice((None, 0.5))
            self._write(ev.TrialLanded(number, metric, paid, self.now - began))
        self.running.clear()

    def _start(self, move: Move, left: float) -> None:
        assert not isinstance(move, End)
        _hold(not self.state.stopping, "a trial is started after the soft stop")
        seconds = self.terms.seconds(move.most_usd)
        _hold(seconds <= left + _INSTANT_S, "an interval ends after the soft stop")
        if isinstance(move, Begin):
            known = move.trial in self.state.trials
            if move.trial == 1:
                _hold(move.point == self.terms.default, "trial 1 is not the default")
            if move.repeats:
                _hold(isinstance(move, Seed2), "a repetition is no Seed2")
                _hold(
                    move.point == self.state.trials[move.repeats].point
                    and move.seed != self.state.trials[move.repeats].seed,
                    "a repetition has other settings, or the same seed",
                )
            elif not known:
                _hold(move.point not in self.points, "a point is tried twice")
                self.points.add(move.point)
        else:
            assert isinstance(move, Continue)
            trial = self.state.trials[move.trial]
            _hold(trial.rung < move.rung <= self.terms.last, "a promotion downwards")
            _hold(trial.is_interrupted or trial.metric is not None, "a promotion without a metric")
        self._write(move.event)
        self.begun[move.trial] = self.now, move.most_usd
        ends, event = self._outcome(move)
        heapq.heappush(self.running, (self.now + ends, move.trial, event))

    def _outcome(self, move: Begin | Continue) -> tuple[float, ev.SweepEvent]:
        """Draw how long the interval takes and how it ends; it never costs more than its most."""
        terms, rng, world = self.terms, self.rng, self.world
        most_s = terms.seconds(move.most_usd)
        needed = terms.seconds(move.train_usd + terms.restart_usd)
        seconds = min(needed + rng.random() * world.slow * max(most_s - needed, 0.0), most_s)
        chance = rng.random()
        trial = self.state.trials[move.trial]
        is_bad = world.mood == "crashes" or (world.mood == "mixed" and rng.random() < 0.5)
        if is_bad or chance < world.crash:
            self.faults["crash"] += 1
            seconds *= rng.random()
            return seconds, ev.TrialFailed(move.trial, self._cost(move, seconds), seconds, "exit 1")
        if chance < world.crash + world.loss:
            self.faults["lost machine"] += 1
            seconds *= rng.random()
            kept = trial.rung if rng.random() < 0.8 else -1
            return seconds, ev.TrialLost(move.trial, self._cost(move, seconds), seconds, kept)
        if world.slow and seconds > needed:
            self.faults["slow"] += 1
        event = ev.rung_reached(
            move.trial,
            move.rung,
            self._metric(trial.point, move.rung, trial.seed),
            self._cost(move, seconds),
            seconds,
            move.rung + 1,
            complete=not trial.repeats and rng.random() < world.early,
        )
        if event.complete:
            self.faults["whole early"] += 1
        if event.problem:
            self.faults[event.problem] += 1
        return seconds, event

    def _cost(self, move: Begin | Continue, seconds: float) -> Usd:
        return min(cost(self.terms.slot_rate, seconds), move.most_usd)

    def _metric(self, point: Point, rung: int, seed: int) -> float | None:
        mood, rng = self.world.mood, self.rng
        if mood == "silent" or (mood == "mixed" and rng.random() < 0.3):
            return None
        if mood == "nan" or (mood == "mixed" and rng.random() < 0.3):
            return rng.choice((math.nan, math.inf, -math.inf))
        if mood == "equal":
            return 1.0 / (rung + 1)
        shares = [share for share in self.terms.space.shares(point) if share is not None]
        loss = sum((share - 0.3) ** 2 for share in shares) + 1.0 / (rung + 1)
        loss += self.world.noise * random.Random(f"{seed}/{point}/{rung}").gauss(0, 1)
        return loss if self.terms.goal is Goal.MIN else -loss

    def _pass_time(self) -> None:
        """Let the next interval end, or a stop come before it."""
        stop_s = min(self.world.soft_stop_s + _INSTANT_S, self.world.user_stop_s)
        if self.running[0][0] > stop_s and not self.state.stopping:
            self.now = stop_s
            return
        self.now, number, event = heapq.heappop(self.running)
        self._write(event)
        trial = self.state.trials[number]
        if trial.state is TrialState.PAUSED and self.rng.random() < self.world.dropped:
            best = self.state.best(self.terms.goal)
            if best is not None and best.number != number:
                self.faults["checkpoint pruned"] += 1
                self._write(ev.TrialDropped(number))
        self._is_killed()

    def _is_killed(self) -> bool:
        """Kill the executor, sometimes: what ran is lost, the journal's last line may be cut."""
        if self.rng.random() >= self.world.killed:
            return False
        self.faults["killed"] += 1
        before = self.state
        cut = self.journal + ev.write_event(ev.StopAsked("x"))[: self.rng.randrange(30)]
        self.state = fold(ev.read_journal(cut))
        _hold(self.state == before, "a journal that is read again gives another state")
        known = {
            number: min(cost(self.terms.slot_rate, self.now - began), most)
            for number, (began, most) in self.begun.items()
            if self.rng.random() < 0.5
        }
        for event in lost_events(self.state, known, {}):
            self._write(event)
        self.running.clear()
        return True

    def _write(self, event: ev.SweepEvent) -> None:
        self.events += 1
        self.journal += ev.write_event(event) + "\n"
        self.state = apply(self.state, event)
        self.oracle.see(event, self.state)

    def _end(self, move: End) -> Played:
        self._write(move.event)
        self.oracle.judge(move, self.world, self.state, self.faults)
        return Played(
            self.world, move.reason, self.state, self.events, self.faults, self.oracle.most_share
        )


_REASONS = {
    "crashes": Reason.CRASHES,
    "silent": Reason.NO_METRIC,
    "nan": Reason.NOT_A_NUMBER,
    "equal": Reason.EQUAL,
}
_HOPELESS = frozenset(_REASONS.values())


class _Oracle:
    """Accounts of its own, from the events alone."""

    def __init__(self, terms: SweepTerms) -> None:
        self.terms = terms
        self.confirm = terms.confirm_usd
        """Reserved for repetitions; once slots are lost, the share of the others."""
        self.spent = ZERO
        self.most: dict[int, Usd] = {}
        self.metrics: dict[int, float] = {}
        self.repeats: set[int] = set()
        self.is_released = False
        self.confirmed = ZERO
        self.confirming: set[int] = set()
        self.ends: dict[int, bool] = {}
        self.most_share = 0.0

    def see(self, event: ev.SweepEvent, state: SweepState) -> None:
        if isinstance(event, ev.TrialStarted | ev.TrialContinued):
            number = event.trial
            _hold(number not in self.most, "a trial runs twice at once")
            self.most[number] = event.most_usd
            self.ends[number] = event.to_end
            if isinstance(event, ev.TrialStarted) and event.repeats:
                self.repeats.add(number)
            is_confirming = number in self.repeats or (
                isinstance(event, ev.TrialContinued) and event.purpose is ev.Purpose.CONFIRM
            )
            (self.confirming.add if is_confirming else self.confirming.discard)(number)
            if isinstance(event, ev.TrialContinued) and event.purpose is ev.Purpose.WINNER:
                self.is_released = True
        elif isinstance(event, ev.RungReached | ev.TrialLanded | ev.TrialFailed | ev.TrialLost):
            number = event.trial
            _hold(event.usd <= self.most.pop(number), "an interval cost more than its most")
            self.spent += event.usd
            if number in self.confirming:
                self.confirmed += event.usd
            self._see_metric(event)
        elif isinstance(event, ev.TrialDropped):
            self.metrics.pop(event.trial, None)
        _hold(len(self.most) <= self.terms.slots, "more trials run than there are slots")
        _hold(state.spent == self.spent, "the state's account is another")
        running = total(self.most.values())
        confirming = total(self.most[n] for n in self.confirming if n in self.most)
        kept = self.terms.finish_usd if self.is_released else self.terms.winner_usd
        kept += max(self.confirm - self.confirmed - confirming, ZERO)
        committed = self.spent + running + kept
        self.most_share = max(self.most_share, committed.micros / self.terms.usd.micros)
        _hold(committed <= self.terms.usd, f"{committed} of {self.terms.usd} are committed")

    def _see_metric(self, event: ev.SweepEvent) -> None:
        if isinstance(event, ev.RungReached):
            complete = event.complete or self.ends[event.trial]
            if complete and event.metric is not None and event.trial not in self.repeats:
                self.is_released = True
        if isinstance(event, ev.TrialLost) and event.kept_rung < 0:
            self.metrics.pop(event.trial, None)
        if isinstance(event, ev.RungReached | ev.TrialLanded):
            if event.metric is not None:
                self.metrics[event.trial] = event.metric
            elif isinstance(event, ev.RungReached):
                self.metrics.pop(event.trial, None)

    def judge(self, end: End, world: World, state: SweepState, faults: Counter[str]) -> None:
        terms = self.terms
        _hold(not self.most, "it ended while trials run")
        own = {n: m for n, m in self.metrics.items() if n not in self.repeats}
        if own:
            best = (min if terms.goal is Goal.MIN else max)(own.values())
            _hold(end.winner is not None and own.get(end.winner) == best, "another winner")
        else:
            _hold(end.winner is None, "a winner without a metric")
        is_whole = world.soft_stop_s >= terms.seconds(terms.usd) / terms.slots
        if is_whole:
            _hold(end.reason is not Reason.TOO_SMALL, "accepted terms start no trial")
        if world.mood in _REASONS and end.reason in _HOPELESS:
            others = world.crash + world.loss + world.killed
            _hold(end.reason is _REASONS[world.mood] or others > 0, end.reason.value)
        enough = terms.winner_usd >= terms.most_usd(0, terms.last) + terms.finish_usd
        harmless = enough and not any(faults[name] for name in ("crash", "lost machine", "killed"))
        if harmless and is_whole and end.reason is not Reason.STOPPED and world.mood == "ordinary":
            _hold(state.is_trained, "the winner was not trained to the end")


def _hold(condition: bool, what: str) -> None:
    if not condition:
        raise Violated(what)
