"""The curve that tells what more steps would buy, fitted to a training's own evaluations."""

from __future__ import annotations

from model.progress import Progress
from trmcloud.core.contract import worth


class CurveTaken:
    """Of one attempt, which begins where ``progress`` stands now."""

    def __init__(self, progress: Progress, warmup_steps: int) -> None:
        self._progress, self._warmup_steps = progress, warmup_steps
        self._first_step = progress.step
        self.latest: worth.Curve | None = None
        """None while too little is known."""

    def note(self, bpb: float, *, has_cooled: bool) -> None:
        """A point of it: between warm-up and cooldown alone, for only there it tells what more
        steps would buy."""
        progress = self._progress
        if progress.updates > self._warmup_steps and not has_cooled:
            progress.evaluations.append((progress.updates, bpb))
            del progress.evaluations[: -worth.MOST_POINTS]

    def take(self, attempt_s: float, *, cools: bool) -> worth.Curve | None:
        """What the heartbeats tell from here on: nothing once the rate falls to its end.

        Args:
            attempt_s: how long this attempt has trained, pauses included: a moment's load on the
                machine is no reason.
        """
        progress = self._progress
        self.latest = None
        fitted = None if cools else worth.fit(progress.evaluations)
        taken = progress.step - self._first_step
        if fitted is not None and taken > 0 and attempt_s > 0:
            self.latest = worth.Curve(
                step=progress.updates,
                slope=fitted[0],
                scatter=fitted[1],
                steps_per_hour=3600.0 * taken / attempt_s,
                since_best=worth.since_best(progress.evaluations),
            )
        return self.latest
