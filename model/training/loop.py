"""The training loop: ask, step, log, save, evaluate; and land.

A checkpoint is saved before it is evaluated, so that an evaluation that fails costs none; its
metric is added to its manifest then.

Read from the top: ``Trainer.run`` is the course of one attempt, the methods below are its parts
in the order of use. All ranks go through all of them together; only rank 0 writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from model.data.feed import FAILED, READY, Feed
from model.data.folder import PreparedData
from model.machine.distributed import World
from model.machine.precision import autocast
from model.machine.telemetry import Clock, HeartbeatWriter
from model.training.checkpoint import CheckpointFolder
from model.training.evaluate import evaluate
from model.training.landing import Landing
from model.training.progress import CurveEstimator, generator_states
from model.training.reporting import Reporter, StepReport
from model.training.saver import Saver, TrainingState, provenance
from model.training.schedule import Cooldown, Schedule
from model.training.stepping import ObjectiveSums, Paces, Step, Stepper
from trmcloud.core.catalog.eval_tasks import SuiteResult
from trmcloud.core.contract import gate
from trmcloud.core.contract.pace import WARM_UP_STEPS, PaceMeter
from trmcloud.core.contract.scoring import ScoringJob
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.errors import DataError, TrmcloudError
from trmcloud.core.spec.settings import PhaseRecipe

_DATA_POLL_S = 0.2


class _CutShort(Exception):
    """The hard stop is too near for the evaluation of a landing to be completed."""


@dataclass(frozen=True)
class TrainingOutputs:
    """The outputs of a run."""

    checkpoints: CheckpointFolder
    reporter: Reporter
    pulse: HeartbeatWriter
    clock: Clock
    scoring: ScoringJob | None = None
    score: Callable[[Callable[[], bool]], SuiteResult] | None = None
    """Scores the model on the tasks that the job names, until what it is given is true; None where
    the job names none. A collective call."""


class Trainer:
    """One attempt at one phase."""

    def __init__(
        self,
        job: PhaseJob,
        settings: PhaseRecipe,
        world: World,
        data: PreparedData,
        trained: TrainingState,
        parallel_model: nn.Module,
        landing: Landing,
        outlets: TrainingOutputs,
    ) -> None:
        self._settings, self._world, self._data = settings, world, data
        self._trained = trained
        self._model, self._progress = trained.model, trained.progress
        self._landing, self._reporter = landing, outlets.reporter
        self._pulse, self._clock = outlets.pulse, outlets.clock
        self._scoring, self._score_tasks = outlets.scoring, outlets.score
        self._schedule = Schedule.of(settings)
        self._autocast = autocast(settings.dtype, world.device)
        self._validation = data.validation_rows(settings)
        self._feed = Feed(
            data,
            settings,
            world,
            trained.progress.samples,
            epoch=outlets.clock.epoch,
            monotonic=outlets.clock.monotonic,
        )
        self._feed.expect(trained.shards)
        self._stepper = Stepper(
            settings,
            world,
            parallel_model,
            trained.optimizer,
            trained.loss_scale,
            trained.soundness,
            outlets.clock.monotonic,
        )
        self._saver = Saver(
            job,
            settings,
            world,
            data,
            trained,
            self._feed,
            outlets.checkpoints,
            outlets.clock.epoch,
            outlets.clock.monotonic,
        )
        # Passes that only compiled or tried something have gone before.
        self._model.carry_on(trained.carried)
        self._data_state = READY
        self._asked_to_save, self._save_due = False, False
        self._requested = 0
        self._skipped, self._skipped_step = 0, 0
        self._logged_step = trained.progress.step
        self._left_out = 0
        self._beside_s = 0.0
        self._paces = Paces()
        self._meter = PaceMeter() if world.is_main else None
        """None once the pace is reported."""
        self._global_batch = settings.global_batch(world.size)
        self._last: StepReport | None = None
        self._curve = CurveEstimator(trained.progress)
        self._trained_before_s = trained.progress.trained_s
        self._first_step = trained.progress.step
        self._began = self._mark = outlets.clock.monotonic()

    def run(self) -> str:
        """As ``_run``; where that fails, what is just being saved is not lost by it."""
        try:
            return self._run()
        except BaseException:
            self._saver.rescue()
            self._pulse.note(**self._news())
            raise

    def _run(self) -> str:
        """Trains until something ends it; returns the outcome, everything being saved.

        Raises:
            FloatingPointError: loss or gradients became NaN or infinite, and leaving steps out did
                not help; nothing is saved then.
            TrainingDiverged: the same of a loss that rose.
            OSError: a checkpoint could not be written.
            DataError: what is to be read next cannot come any more; what was trained is saved.
        """
        progress = self._progress
        self._pulse.enter("training", **self._news())
        self._began = self._clock.monotonic()
        if progress.evaluated_step is None or self._was_to_be_evaluated():
            self._evaluate()
        self._mark = self._clock.monotonic()
        while (outcome := self._consult()) is None:
            self._settle()
            self._save_before_cooldown()
            self._save_if_asked()
            if not self._has_data():
                continue
            began = self._clock.monotonic()
            step = self._step()
            stepped_s = self._clock.monotonic() - began
            if step.paces_s and progress.step > self._first_step + 2:
                self._paces.add(step.paces_s)  # before that they tell of none, or of a warm-up
            logs = progress.step % self._settings.log_every == 0 or progress.step == 1
            if step.left_out:
                self._skipped, self._skipped_step = self._skipped + 1, progress.step
                self._reporter.left_out(progress.step, step.left_out, step.loss, step.norm)
            elif step.overflows:
                self._reporter.rescaled(progress.step, self._trained.loss_scale.scale)
            elif logs:
                self._log(step.norm, step.sums)
            self._pulse.beat(**self._news())
            now = self._clock.monotonic()
            self._landing.took(now - self._mark)
            self._time(now - self._mark)
            self._beside_s += now - self._mark - stepped_s
            self._pause()
            self._mark = self._clock.monotonic()
        self._feed.close()
        self._land(landing=outcome != "finished")
        if outcome == "stopped_paying" and self._landing.is_out_of_patience(progress.since_best):
            self._pulse.note(message=gate.words_of_patience(progress.since_best))
        if outcome != "landed_signal":
            self._score()
        return outcome

    # -- one step ---------------------------------------------------------------------------

    def _consult(self) -> str | None:
        progress = self._progress
        progress.trained_s = self._trained_before_s + self._clock.monotonic() - self._began
        verdict = self._landing.consult(
            progress.step,
            progress.cooldown,
            now=self._clock.epoch(),
            elapsed_s=progress.trained_s,
            data=self._feed.state(),
            worse=gate.is_worse(progress.evaluations),
            since_best=progress.since_best,
        )
        self._data_state, self._asked_to_save = verdict.data, verdict.save
        self._save_due = verdict.save_due and self._trained.soundness.is_settled
        if verdict.cooldown is not None:
            progress.cooldown = verdict.cooldown
            self._reporter.decided(progress.step, verdict.cooldown)
        return verdict.outcome

    def _has_data(self) -> bool:
        """Whether every rank has what the next step reads; where not, a moment has passed.

        Raises:
            DataError: it cannot come any more; saved and evaluated.
        """
        waiting = self._pulse.now.state == "waiting"
        if self._data_state == READY:
            if waiting:
                self._pulse.enter("training", **self._news())
                self._mark = self._clock.monotonic()
            return True
        if self._data_state == FAILED:
            self._feed.close()
            if self._progress.step:
                self._land(landing=True)
            raise self._feed.problem or DataError("data from another machine can no longer arrive")
        if waiting:
            self._pulse.beat()
        else:
            self._pulse.enter("waiting", **self._news())
        self._clock.sleep(_DATA_POLL_S)
        return False

    def _step(self) -> Step:
        progress = self._progress
        made = self._stepper.step(
            progress.step + 1,
            progress.updates,
            self._rate_at(progress.step),
            self._feed.batch,
        )
        if self._trained.average is not None and not (made.left_out or made.overflows):
            self._trained.average.update(progress.updates)
        progress.step += 1
        progress.samples += self._global_batch
        progress.tokens += self._global_batch * self._settings.sequence
        return made

    def _rate_at(self, step: int) -> float:
        return self._schedule.factor(step, self._cooldown(), self._progress.warm_from)

    def _cooldown(self) -> Cooldown | None:
        if self._progress.cooldown is not None or self._landing.is_timed:
            return self._progress.cooldown
        return self._schedule.own_cooldown

    def _cooled(self) -> bool:
        progress = self._progress
        return self._schedule.has_come_down(progress.step, self._cooldown(), progress.warm_from)

    def _cooldown_from(self) -> int | None:
        """The step at which the rate began to fall that the last step was taken with."""
        cooldown = self._cooldown()
        begun = cooldown is not None and self._progress.step > cooldown.first
        return cooldown.first if cooldown is not None and begun else None

    # -- log, evaluate, save ---------------------------------------------------------------

    def _time(self, step_s: float) -> None:
        """Report the pace of this attempt, once, as soon as it is steady."""
        progress, settings = self._progress, self._settings
        if self._meter is None or progress.step <= self._first_step + WARM_UP_STEPS:
            return
        pace = self._meter.add(step_s)
        if pace is None:
            return
        self._meter = None
        about, device = provenance(), self._world.device
        board = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        tokens = self._global_batch * settings.sequence
        told = replace(pace, tokens=tokens, processes=self._world.size, board=board[:80])
        self._reporter.paced(
            progress.step, replace(told, torch=about["torch"], code=about["code_sha256"])
        )

    def _log(self, gradient_norm: float, sums: ObjectiveSums) -> None:
        progress = self._progress
        told = sums.told(self._world)
        seconds = self._landing.step_s or self._clock.monotonic() - self._mark
        report = StepReport(
            step=progress.step,
            tokens=progress.tokens,
            loss=told.loss,
            parts=told.parts,
            step_losses=told.nats,
            diagnostics=self._model.diagnostics(told.nats),
            gradient_norm=gradient_norm,
            rate=self._rate_at(progress.step - 1),
            step_seconds=seconds,
            rank_seconds=self._paces.told(),
            data_wait_s=self._feed.waited_s / max(1, progress.step - self._logged_step),
            overhead_s=self._beside_s / max(1, progress.step - self._logged_step),
            tokens_per_second=self._global_batch * self._settings.sequence / seconds,
            gpu_memory_bytes=_gpu_memory_bytes(self._world.device),
        )
        self._feed.waited_s, self._logged_step = 0.0, progress.step
        self._beside_s = 0.0
        self._tell_what_is_left_out()
        self._last = report
        if self._curve.latest is None:
            self._take_curve()  # steps have a time only once some are taken
        self._reporter.trained(report)

    def _tell_what_is_left_out(self) -> None:
        if (left_out := self._feed.left_out + self._validation.left_out) > self._left_out:
            self._left_out = left_out
            self._reporter.texts_left_out(
                self._progress.step, self._feed.left_out, self._validation.left_out
            )

    def _pause(self) -> None:
        """The evaluation and save due after this step, and the save of a new best; a deadline too
        near leaves them to the landing, which does both."""
        settings, progress = self._settings, self._progress
        save = progress.step % settings.save_every == 0
        if not self._trained.soundness.is_settled:
            return  # what is saved last is what can be gone back to
        if not save and progress.step % settings.eval_every != 0:
            return
        if progress.step >= settings.steps:
            return
        if not self._has_time_for_a_pause():
            return
        if save:
            self._save_and_evaluate()
        else:
            self._timed_evaluation()
            if progress.is_new_best:
                self._save(is_best=True)

    def _has_time_for_a_pause(self) -> bool:
        """Whether an evaluation, the save that may follow it and what is still to be written would
        be done before the deadline; a collective call."""
        landing = self._landing
        cost = landing.evaluation_s + (landing.save_s or 0.0) * (1 + self._saver.owed)
        return landing.leaves_time_for(cost, self._clock.epoch())

    def _save_before_cooldown(self) -> None:
        """Save the step that a run with a raised budget continues from, where it is not saved
        anyway; a deadline too near leaves no time for it."""
        progress, cooldown, landing = self._progress, self._cooldown(), self._landing
        begins = cooldown is not None and cooldown.first == progress.step > 0
        if not begins:
            return
        if progress.saved_step == progress.step:
            self._saver.pin()
            return
        if not self._trained.soundness.is_settled:
            return
        if not landing.leaves_time_for(landing.save_s or 0.0, self._clock.epoch()):
            return
        self._save()
        self._mark = self._clock.monotonic()

    def _save_if_asked(self) -> None:
        """A checkpoint that was asked for, or is due by the clock, and its metric: before the next
        step, as if it were due by that.

        Before the first step there is nothing to save; where the deadline is too near the landing
        saves.
        """
        progress, landing = self._progress, self._landing
        if not (self._asked_to_save or self._save_due) or not progress.step:
            return
        if not self._has_time_for_a_pause():
            return
        if self._asked_to_save:
            landing.saved()
            self._requested += 1
        self._save_and_evaluate()
        self._mark = self._clock.monotonic()

    def _save_and_evaluate(self) -> None:
        if self._progress.saved_step != self._progress.step:
            self._save()
        else:
            self._saver.pin()
            self._pulse.tell(**self._news())
        self._timed_evaluation()

    def _timed_evaluation(self) -> None:
        if not self._progress.is_evaluated:
            began = self._clock.monotonic()
            self._evaluate()
            self._landing.evaluation_s = self._clock.monotonic() - began

    def _evaluate(self, landing: bool = False) -> None:
        """Validation bits per byte of this step, and, where its checkpoint was saved already, into
        that one's manifest.

        Raises:
            OSError: the manifest could not be replaced.
            _CutShort: only in a landing.
        """
        settings, progress = self._settings, self._progress
        began = self._clock.monotonic()

        def between() -> None:
            # Whatever ends this process in a long evaluation, what was saved before is kept.
            self._settle()
            if not landing or progress.saved_step != progress.step:
                return
            if not self._landing.can_evaluate_on(self._clock.epoch()):
                raise _CutShort

        with self._pulse.during("evaluating"), self._trained.judged():
            result = evaluate(
                self._model,
                self._data,
                self._validation,
                self._world,
                batch=settings.batch,
                eval_tokens=settings.eval_tokens,
                autocast=self._autocast,
                between=between,
            )
        seconds = self._clock.monotonic() - began
        self._landing.evaluation_s = seconds
        adapted = result.tallies if self._is_evaluated_here() else ()
        if adapted:
            self._model.adapt(adapted)
        finite = math.isfinite(result.bits_per_byte)
        warmed = progress.updates > settings.warmup_steps
        progress.note_metric(
            result.bits_per_byte if finite else None,
            result.step_losses if finite else (),
            is_on_curve=warmed and self._cooldown_from() is None,
        )
        if finite and progress.saved_step == progress.step:
            self._saver.add_metric(adapted)
        self._pulse.beat(**self._news())
        self._reporter.evaluated(
            progress.step,
            progress.tokens,
            result,
            diagnostics={
                **self._model.diagnostics(result.step_losses),
                **self._model.scores(result.tallies),
            },
            judged=self._model.judged,
            margin=self._model.margin,
            seconds=seconds,
            landing=landing,
            curve=self._take_curve(),
        )

    def _take_curve(self) -> gate.Curve | None:
        return self._curve.take(self._clock.monotonic() - self._began, cools=self._cools())

    def _cools(self) -> bool:
        cooldown = self._cooldown()
        return cooldown is not None and self._progress.step >= cooldown.first

    def _is_evaluated_here(self) -> bool:
        """Whether every run evaluates after this step: what a model adapts to is found here alone,
        so that a run that is resumed adapts as one that was not."""
        settings, step = self._settings, self._progress.step
        return step % settings.eval_every == 0 or step % settings.save_every == 0

    def _was_to_be_evaluated(self) -> bool:
        """Whether this attempt goes on from a checkpoint whose evaluation was cut short."""
        progress = self._progress
        is_resumed = progress.saved_step == progress.step and not progress.is_evaluated
        return is_resumed and self._is_evaluated_here()

    def _save(self, landing: bool = False, wait: bool = False, is_best: bool = False) -> None:
        """Begins to save this step, or with ``wait`` saves it. Where neither the disk nor memory
        has room for it yet, it waits for what was begun before."""
        world = self._world
        rows = world.gather(generator_states(world.device))
        self._landing.saving(self._clock.epoch())
        with self._pulse.during("saving"):
            self._settle_one()
            while not self._saver.can_begin(is_best=is_best):
                self._settle_one(wait=True)
            self._saver.begin(
                rows,
                cooled=self._cooled(),
                cooldown_from=self._cooldown_from(),
                landing=landing,
                is_best=is_best,
            )
            if wait:
                self._settle(wait=True)

    def _settle(self, wait: bool = False) -> None:
        """Tells of what was begun to be saved and is on disk; with ``wait`` all of it will be."""
        self._settle_one(wait)
        while wait and self._saver.owed:
            self._settle_one(wait)

    def _settle_one(self, wait: bool = False) -> None:
        if not self._saver.owed:
            return
        began = self._clock.monotonic()
        made = self._saver.settle(wait=wait)
        if made is None:
            return
        self._landing.save_s = made.seconds
        # At once: whatever ends this process in the evaluation, its agent knows of the checkpoint.
        seconds = round(self._landing.evaluation_s + made.seconds, 3)
        self._pulse.tell(**self._news(), landing_seconds=seconds)
        self._reporter.saved(made)
        now = self._clock.monotonic()
        # To tell of it is a part of the pause that the next one makes, and of no step.
        self._landing.stall_s = made.stall_s + now - began
        self._mark += now - began

    # -- the end ------------------------------------------------------------------------------

    def _land(self, *, landing: bool) -> None:
        """Saves and evaluates what is not yet saved and evaluated; an evaluation that the hard stop
        would cut off is left."""
        if landing:
            self._pulse.enter("landing", **self._news())
        self._settle(wait=True)
        if self._trained.soundness.not_finite and not self._progress.is_evaluated:
            self._evaluate(landing)
            if self._progress.val_bpb is None:
                raise FloatingPointError("the loss of these weights is no longer finite")
        if self._progress.saved_step != self._progress.step:
            self._save(landing, wait=True)
        if not self._progress.is_evaluated:
            try:
                self._evaluate(landing)
            except _CutShort:
                self._reporter.evaluation_cut_short(self._progress.step)

    def _score(self) -> None:
        """Score these weights on the tasks that the job names. An error is reported, and the saved
        training is kept."""
        scoring = self._scoring
        if scoring is None or self._score_tasks is None:
            return
        began = self._clock.epoch()
        until_at = max(began + scoring.within_s, self._landing.deadline_at or 0.0)

        def is_over() -> bool:
            self._pulse.beat(**self._news())
            return self._landing.is_asked_to_stop or self._clock.epoch() >= until_at

        try:
            with self._pulse.during("evaluating"), self._trained.judged():
                result = self._score_tasks(is_over)
        except TrmcloudError as error:
            self._reporter.not_scored(self._progress.step, scoring.suite, error)
            return
        self._reporter.scored(self._progress.step, result, self._clock.epoch() - began)

    def _news(self) -> dict[str, Any]:
        """Return the content of the next heartbeat."""
        progress, last = self._progress, self._last
        cooldown = self._cooldown()
        saved_step, best_bpb, best_step = self._saver.told
        news: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.tokens,
            "step_seconds": self._landing.median_step_s,
            "val_bpb": progress.val_bpb,
            "best_bpb": best_bpb,
            "best_step": best_step,
            "saved_step": saved_step,
            "saves": self._requested,
            "skipped": self._skipped,
            "skipped_step": self._skipped_step or None,
            "curve": None if self._cools() else self._curve.latest,
        }
        if cooldown is not None and progress.step >= cooldown.start:
            news["cooldown_from"] = cooldown.first
        if last is not None:
            news.update(
                tokens_per_second=last.tokens_per_second,
                loss=last.loss,
                grad_norm=last.gradient_norm,
                step_losses=tuple(last.step_losses),
                parts={name: each for name, each in last.parts.items() if math.isfinite(each)},
            )
        return news


def _gpu_memory_bytes(device: torch.device) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
