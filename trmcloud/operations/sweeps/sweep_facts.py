"""The trials of a sweep as its machine has told of them, and what their dollars bought."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.state import IllegalEvent, SweepState, Trial, apply
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import Value
from trmcloud.operations.context import Context
from trmcloud.operations.sweeps.sweep_terms import terms_of


class SweepFacts(Value):
    """A sweep as far as it is known here."""

    terms: SweepTerms
    events: tuple[ev.SweepEvent, ...]
    state: SweepState
    own_cpu_s: float = 0.0
    trials_cpu_s: float = 0.0
    """Processor time of the executor, and of trials that ended."""

    @property
    def best(self) -> Trial | None:
        return self.state.best(self.terms.goal)

    @property
    def own_share(self) -> float | None:
        """The share of the processor time that the sweep took itself; None: not known."""
        whole = self.own_cpu_s + self.trials_cpu_s
        return self.own_cpu_s / whole if self.trials_cpu_s > 0.0 else None

    def ranked(self) -> list[Trial]:
        """The trials: those that run first, then by metric, the best first."""
        return sorted(self.state.trials.values(), key=self.place)

    def place(self, trial: Trial) -> tuple[bool, bool, float, int]:
        """Return what ``ranked`` sorts by; places of sweeps with one metric can be compared."""
        sign = 1.0 if self.terms.goal.value == "min" else -1.0
        score = 0.0 if trial.metric is None else sign * trial.metric
        return not trial.is_running, trial.metric is None, score, trial.number


def sweep_of(context: Context, run: RunState) -> SweepFacts | None:
    """Return what is known here of a sweep's trials; None where the run is none, or has told of
    nothing that can be read."""
    if run.spec.sweep is None:
        return None
    try:
        terms = terms_of(run.plan)
    except (TrmcloudError, ValueError, KeyError, TypeError):
        return None
    [phase] = run.spec.phases[:1]
    return facts_of(terms, context.files.metrics(run.run_id, phase))


def facts_of(terms: SweepTerms, metrics: Iterable[Mapping[str, object]]) -> SweepFacts:
    """Return the facts that lines of metrics tell. They may come from a machine that somebody else
    owns: what is no event, or cannot follow the others, ends what is read."""
    said: dict[int, Any] = {}
    cpu: dict[Any, tuple[float, float]] = {}
    for line in metrics:
        number = line.get("n")
        if line.get("kind") == ev.EVENT_KIND and isinstance(number, int):
            said[number] = line.get("said")
        elif line.get("kind") == ev.CPU_KIND:
            own, trials, attempt = (line.get(name) for name in ("own_s", "trials_s", "attempt"))
            if isinstance(own, int | float) and isinstance(trials, int | float):
                cpu[str(attempt)] = (max(0.0, own), max(0.0, trials))
    events: list[ev.SweepEvent] = []
    state = SweepState()
    for number in range(len(said)):
        try:
            event = ev.read_event(json.dumps(said[number]))
            is_end = isinstance(event, ev.Ended | ev.StopAsked)
            state = state if is_end else apply(state, event)
        except (KeyError, ValueError, IllegalEvent):
            break
        events.append(event)
    own_s = math.fsum(own for own, _ in cpu.values())
    trials_s = math.fsum(trials for _, trials in cpu.values())
    return SweepFacts(terms, tuple(events), state, own_s, trials_s)
