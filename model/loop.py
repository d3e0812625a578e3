"""The training loop: ask, step, log, save, evaluate; and land.

A checkpoint is saved before it is evaluated, so that an evaluation that fails costs none; its
metric is added to its manifest then.

Read from the top: ``Trainer.run`` is the course of one attempt, the methods below are its parts
in the order of use. All ranks go through all of them together; only rank 0 writes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from model.checkpoint import CheckpointFolder
from model.data.feed import FAILED, READY, Feed
from model.data.folder import PreparedData
from model.distributed import World
from model.evaluate import evaluate
from model.landing import Landing
from model.precision import autocast
from model.progress import generator_states
from model.reporting import Reporter, StepReport
from model.saver import Saver, Trained
from model.schedule import Cooldown, Schedule
from model.stepping import Stepper, Sums
from model.telemetry import Clock, Pulse
from trmcloud.core.errors import DataError
from trmcloud.core.pod_contract import PhaseJob
from trmcloud.core.recipe import PhaseRecipe

_DATA_POLL_S = 0.2


@dataclass(frozen=True)
class Outlets:
    """Where a run tells of itself."""

    checkpoints: CheckpointFolder
    reporter: Reporter
    pulse: Pulse
    clock: Clock


class Trainer:
    """One attempt at one phase."""

    def __init__(
        self,
        job: PhaseJob,
        settings: PhaseRecipe,
        world: World,
        data: PreparedData,
        trained: Trained,
        parallel_model: nn.Module,
        landing: Landing,
        outlets: Outlets,
    ) -> None:
        self._settings, self._world, self._data = settings, world, data
        self._trained = trained
        self._model, self._progress = trained.model, trained.progress
        self._landing, self._reporter = landing, outlets.reporter
        self._pulse, self._clock = outlets.pulse, outlets.clock
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
            settings, world, parallel_model, trained.optimizer, trained.loss_scale
        )
        self._saver = Saver(
            *(job, settings, world, data, trained, self._feed, outlets.checkpoints),
            outlets.clock.epoch,
        )
        self._data_state = READY
        self._asked_to_save = False
        self._requested = 0
        self._logged_step = trained.progress.step
        self._global_batch = settings.global_batch(world.size)
        self._last: StepReport | None = None
        self._trained_before_s = trained.progress.trained_s
        self._began = self._mark = outlets.clock.monotonic()

    def run(self) -> str:
        """Trains until something ends it; returns the outcome, everything being saved.

        Raises:
            FloatingPointError: loss or gradients became NaN or infinite; nothing is saved then.
            OSError: a checkpoint could not be written.
            DataError: what is to be read next cannot come any more; what was trained is saved.
        """
        progress = self._progress
        self._pulse.enter("training", **self._news())
        self._began = self._clock.monotonic()
        if progress.evaluated_step is None:
            self._evaluate()
        self._mark = self._clock.monotonic()
        while (outcome := self._consult()) is None:
            self._save_if_asked()
            if not self._has_data():
                continue
            gradient_norm, sums = self._step()
            if progress.step % self._settings.log_every == 0 or progress.step == 1:
                self._log(gradient_norm, sums)
            self._pulse.beat(**self._news())
            now = self._clock.monotonic()
            self._landing.took(now - self._mark)
            self._pause()
            self._mark = self._clock.monotonic()
        self._feed.close()
        self._land(landing=outcome != "finished")
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
        )
        self._data_state, self._asked_to_save = verdict.data, verdict.save
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
            raise self._feed.problem or DataError("another machine's data cannot come any more")
        if waiting:
            self._pulse.beat()
        else:
            self._pulse.enter("waiting", **self._news())
        self._clock.sleep(_DATA_POLL_S)
        return False

    def _step(self) -> tuple[float, Sums]:
        progress = self._progress
        norm, sums = self._stepper.step(
            progress.step, self._rate_at(progress.step), self._feed.batch
        )
        if self._trained.average is not None:
            self._trained.average.update(progress.step)
        progress.step += 1
        progress.samples += self._global_batch
        progress.tokens += self._global_batch * self._settings.sequence
        return norm, sums

    def _rate_at(self, step: int) -> float:
        return self._schedule.factor(step, self._cooldown(), self._progress.warm_from)

    def _cooldown(self) -> Cooldown | None:
        if self._progress.cooldown is not None or self._landing.is_timed:
            return self._progress.cooldown
        return self._schedule.own_cooldown

    def _cooled(self) -> bool:
        progress = self._progress
        return self._schedule.has_come_down(progress.step, self._cooldown(), progress.warm_from)

    # -- log, evaluate, save ---------------------------------------------------------------

    def _log(self, gradient_norm: float, sums: Sums) -> None:
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
            data_wait_s=self._feed.waited_s / max(1, progress.step - self._logged_step),
            tokens_per_second=self._global_batch * self._settings.sequence / seconds,
        )
        if not math.isfinite(report.loss):
            raise FloatingPointError(f"the loss is {report.loss}")
        self._feed.waited_s, self._logged_step = 0.0, progress.step
        self._last = report
        self._reporter.trained(report)

    def _pause(self) -> None:
        """The evaluation and save due after this step; a deadline too near leaves them to the
        landing, which does both."""
        settings, progress = self._settings, self._progress
        save = progress.step % settings.save_every == 0
        if not save and progress.step % settings.eval_every != 0:
            return
        if progress.step >= settings.steps:
            return
        cost = self._landing.evaluation_s + (self._landing.save_s or 0.0) * save
        if not self._landing.leaves_time_for(cost, self._clock.epoch()):
            return
        self._save_and_evaluate() if save else self._timed_evaluation()

    def _save_if_asked(self) -> None:
        """A checkpoint that was asked for, and its metric: before the next step, as if it were due.

        Before the first step there is nothing to save; where the deadline is too near the landing
        saves.
        """
        progress, landing = self._progress, self._landing
        if not self._asked_to_save or not progress.step:
            return
        cost = landing.evaluation_s + (landing.save_s or 0.0)
        if not landing.leaves_time_for(cost, self._clock.epoch()):
            return
        landing.saved()
        self._requested += 1
        self._save_and_evaluate()
        self._mark = self._clock.monotonic()

    def _save_and_evaluate(self) -> None:
        if self._progress.saved_step != self._progress.step:
            began = self._clock.monotonic()
            self._save()
            # The whole pause counts when the cooldown is planned, not its core alone.
            self._landing.save_s = self._clock.monotonic() - began
        else:
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
        """
        settings, progress = self._settings, self._progress
        began = self._clock.monotonic()
        with self._pulse.during("evaluating"), self._trained.judged():
            result = evaluate(
                self._model,
                self._data,
                self._validation,
                self._world,
                batch=settings.batch,
                eval_tokens=settings.eval_tokens,
                autocast=self._autocast,
            )
        seconds = self._clock.monotonic() - began
        self._landing.evaluation_s = seconds
        finite = math.isfinite(result.bits_per_byte)
        progress.note_metric(
            result.bits_per_byte if finite else None, result.step_losses if finite else ()
        )
        if finite and progress.saved_step == progress.step:
            self._saver.add_metric()
        self._pulse.beat(**self._news())
        self._reporter.evaluated(
            *(progress.step, progress.tokens, result),
            diagnostics=self._model.diagnostics(result.step_losses),
            first_loss=self._model.first_loss,
            seconds=seconds,
            landing=landing,
        )

    def _save(self, landing: bool = False) -> None:
        progress, world = self._progress, self._world
        rows = world.gather(generator_states(world.device))
        began = self._clock.monotonic()
        with self._pulse.during("saving"):
            size = self._saver.save(rows, cooled=self._cooled())
        seconds = self._clock.monotonic() - began
        self._landing.save_s = seconds
        # At once: whatever ends this process in the evaluation, its agent knows of the checkpoint.
        self._pulse.tell(
            **self._news(), landing_seconds=round(self._landing.evaluation_s + seconds, 3)
        )
        bpb = progress.val_bpb if progress.is_evaluated else None
        self._reporter.saved(progress.step, size, bpb, seconds=seconds, landing=landing)

    # -- the end ------------------------------------------------------------------------------

    def _land(self, *, landing: bool) -> None:
        """Saves and evaluates what is not yet saved and evaluated."""
        if landing:
            self._pulse.enter("landing", **self._news())
        if self._progress.saved_step != self._progress.step:
            self._save(landing)
        if not self._progress.is_evaluated:
            self._evaluate(landing)

    def _news(self) -> dict[str, Any]:
        """What the next heartbeat says."""
        progress, last = self._progress, self._last
        cooldown = self._cooldown()
        news: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.tokens,
            "step_seconds": self._landing.median_step_s,
            "val_bpb": progress.val_bpb,
            "best_bpb": progress.best_bpb,
            "best_step": progress.best_step,
            "saved_step": progress.saved_step,
            "saves": self._requested,
        }
        if cooldown is not None and progress.step >= cooldown.start:
            news["cooldown_from"] = cooldown.start
        if last is not None:
            news.update(
                tokens_per_second=last.tokens_per_second,
                loss=last.loss,
                grad_norm=last.gradient_norm,
                step_losses=tuple(last.step_losses),
            )
        return news
