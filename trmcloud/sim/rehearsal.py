"""A planned run, played in simulated worlds before it is paid for.

Nothing is known of a command of the user's own: each play draws how long it takes, how often it
saves and which habit its script has.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trmcloud.core.errors import DoesNotFit, UsageError
from trmcloud.core.money import Usd
from trmcloud.core.planner.speed import steps_between_saves
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan, at_limit
from trmcloud.core.values import Value, replace
from trmcloud.sim.faults.table import ALL, NAMES, arm_all
from trmcloud.sim.play import PlayResult, play
from trmcloud.sim.scenario import Scenario, SimRun
from trmcloud.sim.world.provider_profiles import PROFILES
from trmcloud.sim.world.trainer import Habit, Shape

HABITS = tuple(habit.value for habit in Habit)
LENGTHS = (0.3, 1.5)
"""The share of its time limit that a command without a probe is drawn to take."""
SAVES = (0.02, 0.25)
"""Of its length, the time between two checkpoints of a command."""
_STEPS = 1000
"""That a command's length is divided into; its own are not known."""
_SAVED_BYTES_PER_S = 1e9
_LONGEST_SAVE = 0.01
"""Of a command's length, what one save takes at most."""


class Rehearsal(Value):
    """N plays of one plan. ``shown`` is the one whose timeline is shown."""

    plan: Plan
    plays: tuple[PlayResult, ...]
    shown: PlayResult
    habits: tuple[str, ...] = ()
    """Of a command: the habit of its script in each play."""
    kept_s: tuple[float, ...] = ()
    """Of a command: the seconds of training that the newest whole checkpoint of each play holds;
    0: there is none."""

    @property
    def spent(self) -> list[Usd]:
        """Return the bill of each play, ascending."""
        return sorted(
            Usd.from_micros(sum(billed for _, _, billed, _ in p.runs)) for p in self.plays
        )

    @property
    def violations(self) -> list[PlayResult]:
        return [p for p in self.plays if p.violation]

    def outcomes(self) -> Counter[str]:
        return Counter(outcome for p in self.plays for _, outcome, _, _ in p.runs)

    def ended_by(self) -> Counter[str]:
        return Counter(by or "nobody" for p in self.plays for by in p.ended_by)

    def steps_saved(self) -> list[int]:
        return sorted(step for p in self.plays for step in p.saved)


def fault_names(text: str, *, of_command: bool = False) -> tuple[str, ...]:
    """``all``, ``none``, or numbers and words of faults, comma-separated; those ``of_command`` are
    the habits of its script, too.

    Raises:
        UsageError: naming what is no fault.
    """
    habits = HABITS if of_command else ()
    if text in ("", "none"):
        return ()
    if text == "all":
        return (*NAMES, *habits)
    names = []
    for word in (part.strip() for part in text.split(",")):
        found = [n for n, (what, _) in ALL.items() if n == word or (word and word in what)]
        found += [habit for habit in habits if habit == word]
        if not found or not word:
            also = f", or a habit: {', '.join(habits)}" if habits else ""
            raise UsageError(
                f"--faults: {word!r} is not a fault",
                next_step=f"all, none, a number such as 34, or a name such as preempted{also}",
            )
        names += [found[0]] if word in ALL else found
    return tuple(dict.fromkeys(names))


def rehearse(
    plan: Plan, *, runs: int, faults: tuple[str, ...], seed: int, detached: bool
) -> Rehearsal:
    """Play ``plan`` ``runs`` times, each with up to three of ``faults`` striking.

    A plan with nothing launchable is played with its recommended candidate.
    ``detached``: its launch leaves it alone once it trains.

    Raises:
        DoesNotFit: the plan has nothing to launch.
    """
    if plan.recommended is None:
        raise DoesNotFit(
            "no candidate of this plan can be launched",
            next_step="trmcloud plan, with a larger budget or other hardware",
        )
    # By no pace: each stop is where the budget ends, which is the most that can be spent.
    plan = at_limit(_as_if_launchable(plan))
    known = _with_known_habits(plan)
    plays, habits, kept_s = [], [], []
    for index in range(runs):
        scenario = _scenario(known, faults, seed + index, detached)
        played = play(scenario, arm_all)
        plays.append(played)
        [wish] = scenario.wishes
        if wish.plan.spec.command is not None:
            [shape] = wish.shapes.values()
            habits.append(wish.plan.spec.command.words[0])
            kept_s.append(max(played.saved, default=0) * shape.step_s)
    shown = next((p for p in plays if p.violation), plays[0])
    return Rehearsal(plan, tuple(plays), shown, tuple(habits), tuple(kept_s))


def spread(values: Sequence[Any]) -> Mapping[str, Any]:
    """Least, median, nine in ten, most, of ascending values."""
    last = len(values) - 1
    return {
        "min": values[0],
        "p50": values[last // 2],
        "p90": values[round(last * 0.9)],
        "max": values[-1],
    }


def _with_known_habits(plan: Plan) -> Plan:
    usual = next(name for name, profile in PROFILES.items() if profile.stands_for_others)
    candidates = tuple(
        c if c.provider in PROFILES else replace(c, provider=usual) for c in plan.candidates
    )
    return replace(plan, candidates=candidates)


def _as_if_launchable(plan: Plan) -> Plan:
    """A plan of a recipe that cannot be trained yet reserves nothing: here it is played with its
    recommended candidate, whose worst case is reserved."""
    first = plan.recommended
    if plan.launchable or first is None:
        return plan
    return replace(
        plan,
        launchable=(first.id,),
        reservation=first.worst_case,
        cap=plan.spec.budget or first.worst_case,
    )


def _scenario(plan: Plan, faults: tuple[str, ...], seed: int, detached: bool) -> Scenario:
    rng = random.Random(seed)
    tried = [plan.candidate(name) for name in plan.launchable]
    run_id = "r-000001"
    if plan.spec.command is not None:
        run_id = f"r-{seed % (1 << 24):06x}"  # the dice of its habit are drawn by it
        habits = [name for name in faults if name in HABITS]
        faults = tuple(name for name in faults if name not in HABITS)
        plan = _with_habit(plan, rng.choice(habits) if habits else Habit.PLAIN.value)
        shapes = {tried[0].phases[0].name: _command_shape(rng, tried[0], plan)}
    else:
        shapes = {phase.name: _shape(rng, phase) for phase in tried[0].phases}
    expected = tried[0].soft_stop_s
    chosen = tuple(rng.sample(faults, min(len(faults), rng.randint(1, 3)))) if faults else ()
    wish = SimRun(
        run_id=run_id,
        at_s=1.0,
        plan=plan,
        shapes=shapes,
        project="default",
        detached=detached,
        stop_after_s=0.0,
        resume_after_s=0.0,
        fetch_after_s=expected * 0.9,
    )
    return Scenario(
        seed=seed,
        providers=tuple(dict.fromkeys(candidate.provider for candidate in tried)),
        wishes=(wish,),
        account_cap=None,
        reaper="laptop",
        foreign=False,
        looks_every_s=3600.0,
        faults=chosen,
        fault_seeds=tuple(rng.getrandbits(32) for _ in chosen),
    )


def _shape(rng: random.Random, phase: PhasePlan) -> Shape:
    """The phase as this play's machine trains it: a draw from the plan's own interval."""
    settings, parts = phase.settings, phase.parts_s
    steps = settings.steps
    save_every = steps_between_saves(settings, phase.step_s.p50)
    evals, saves = max(1, steps // settings.eval_every), max(1, steps // save_every)
    return Shape(
        phase=phase.name,
        steps=steps,
        step_s=_drawn(rng, phase.step_s),
        eval_every=settings.eval_every,
        eval_s=parts.get("evaluation", 0.0) / evals,
        save_every=save_every,
        save_s=parts.get("saving", 0.0) / saves,
        start_s=parts.get("startup", 5.0),
        compile_s=parts.get("compile", 0.0),
    )


def _with_habit(plan: Plan, habit: str) -> Plan:
    """The plan of a command that has this habit; by its first word the simulator knows it."""
    command = plan.spec.command
    assert command is not None
    resume = (habit, "{checkpoint}") if command.resume else ()
    made = replace(command, words=(habit,), resume=resume)
    return replace(plan, spec=replace(plan.spec, command=made))


def _command_shape(rng: random.Random, candidate: Candidate, plan: Plan) -> Shape:
    """The command as this play's machine runs it; its length is the plan's where a probe tells it.
    It evaluates when it saves, which costs no time of its own."""
    command = plan.spec.command
    assert command is not None
    [phase] = candidate.phases
    if is_length_known(candidate):
        length_s = _drawn(rng, phase.seconds)
    else:
        until_stop_s = max(1.0, candidate.soft_stop_s - candidate.startup_s.p50)
        length_s = until_stop_s * rng.uniform(*LENGTHS)
    steps = _STEPS + rng.randint(0, 1)
    save_every = round(steps * rng.uniform(*SAVES))
    return Shape(
        phase=phase.name,
        steps=steps,
        step_s=length_s / steps,
        eval_every=save_every,
        eval_s=0.0,
        save_every=save_every,
        save_s=min(command.checkpoint_bytes / _SAVED_BYTES_PER_S, length_s * _LONGEST_SAVE),
        start_s=0.0,
        compile_s=0.0,
    )


def is_length_known(candidate: Candidate) -> bool:
    """Whether a probe tells how long the command of this plan takes."""
    [phase] = candidate.phases
    return bool(phase.settings.steps) and phase.seconds.p10 < phase.seconds.p90


def _drawn(rng: random.Random, interval: Interval) -> float:
    low, high = interval.p10, interval.p90
    return rng.triangular(low, high, min(max(interval.p50, low), high)) if high > low else low
