"""The agent's decisions and its state, without a file, a process or a clock of its own."""

from __future__ import annotations

import math

from trmcloud.core.clock import Anchor, Instant
from trmcloud.core.contract import gate, phase_account, supervisor
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import Uploads, unstored
from trmcloud.core.contract.trainer_contract import CLEAN, Heartbeat
from trmcloud.core.values import replace
from trmcloud.pod.agent.host import Host, Trainer
from trmcloud.pod.agent.lease_clock import anchor_note

REPORT_EVERY_S = 2.0
LAST_REPORT_S = 15.0
"""The longest time that a pod whose work is done stays for its last report to reach the bucket."""


class AgentLoop:
    """One pod's agent: it looks, asks ``supervise``, acts and reports. ``process`` gives it the
    pod's files and processes, the simulator others. What it must remember across its own death is
    kept through ``body``, so that a new one continues where it was killed, trainer included."""

    def __init__(self, body: Host, pod_name: str) -> None:
        """
        Raises:
            ValueError: there is no lease that can be read.
        """
        self._body = body
        self._pod_name = pod_name
        now = body.now()
        lease = body.read_lease()
        if lease is None:
            raise ValueError(f"no lease for {pod_name}")
        self.lease = lease
        self._orders = contract.Orders(epoch=lease.epoch)
        self._anchors = self._read_anchors(now)
        self.report = self._first_report(now)
        self._trainer = body.read_trainer()
        self._written_boot = -1e9
        self._refusal = ""
        if self._trainer is not None:
            self._trainer.last_progress_boot = self._trainer.saved_boot = now.boot
            self._take_up(self._trainer)
            self._move_deadline(now)  # which a killed agent may not have done
        else:
            body.kill_trainer()  # one that a killed agent started and could not note down
        self._uploads = Uploads()
        self._owing: tuple[tuple[contract.CheckpointRef, ...], Uploads, bool] = (
            (),
            self._uploads,
            False,
        )
        """The kept checkpoints, the uploads, and whether any upload is open."""
        self._owing_boot: float | None = None
        self._done_boot: float | None = None
        self.telling = False
        """Whether it stays only for its last report, which is on its way to the bucket."""

    def hard_left_s(self) -> float:
        """Seconds until the hard stop, by the earlier of both clocks."""
        return self._anchors[1].seconds_left(self._body.now())

    def write_report(self, *, force: bool = False) -> None:
        now = self._body.now()
        if not force and now.boot - self._written_boot < REPORT_EVERY_S:
            return
        self._written_boot = now.boot
        self._note_kept(now)
        self.report = replace(
            self.report,
            at=now.wall,
            epoch=self.lease.epoch,
            soft_stop_at=self.lease.soft_stop_at,
            hard_stop_at=self.lease.hard_stop_at,
        )
        self._body.write_report(self.report, durable=force)

    # -- its lease and orders ---------------------------------------------------------------------

    def _reread(self, now: Instant) -> None:
        """Take a newer lease or newer orders, if any; text that is neither is passed over."""
        lease = self._body.read_lease()
        if lease is not None and lease.epoch > self.lease.epoch:
            self.lease = lease
            self._anchors = self._read_anchors(now)
            self._move_deadline(now)
        orders = self._body.read_orders()
        if orders is not None and orders.epoch >= self._orders.epoch:
            self._orders = orders
            self._pass_over(orders.finished)
            later = self.lease.extended(orders)
            if later is not None:
                self._body.write_lease(later)  # and read again: the watchdog knows no other

    def _move_deadline(self, now: Instant) -> None:
        if self._trainer is not None:
            left_s = min(self._anchors[0].seconds_left(now), self._share_left_s(now))
            self._body.move_deadline(self._trainer, now.wall + left_s)

    def _pass_over(self, finished: tuple[str, ...]) -> None:
        """Before this pod lost its disk it had finished these, as the controller knows."""
        phases = tuple(
            phase
            for phase in self.report.phases
            if phase.name not in finished
            or phase.attempts
            or phase.state is not contract.PhaseState.WAITING
        )
        if phases != self.report.phases:
            self._body.log(f"finished before: {', '.join(finished)}")
            self.report = replace(self.report, phases=phases)

    def _read_anchors(self, now: Instant) -> tuple[Anchor, Anchor]:
        """Soft and hard stop, anchored at the moment this lease was first seen on this pod."""
        lease = self.lease
        granted_at = lease.granted_at
        self._noted = note = anchor_note(self._body, lease, now)
        return (
            note.anchor(lease.soft_stop_at, granted_at),
            note.anchor(lease.hard_stop_at, granted_at),
        )

    def _first_report(self, now: Instant) -> contract.AgentReport:
        """A new report, or the one a killed agent left, taken over."""
        left = self._body.read_report()
        if left is not None and left.pod_name == self._pod_name:
            return replace(left, pid=self._body.pid(), restarts=left.restarts + 1)
        return contract.AgentReport(
            run_id=self.lease.run_id,
            pod_name=self._pod_name,
            epoch=self.lease.epoch,
            pid=self._body.pid(),
            started_at=now.wall,
            at=now.wall,
            phases=tuple(contract.PhaseReport(phase.name) for phase in self.lease.phases),
            soft_stop_at=self.lease.soft_stop_at,
            hard_stop_at=self.lease.hard_stop_at,
            saves=contract.SaveAnswers(),
        )

    # -- its trainer ------------------------------------------------------------------------------

    def _running(self) -> bool:
        return self._trainer is not None and self._body.trainer_runs(self._trainer)

    def _heartbeat(self) -> Heartbeat | None:
        """This attempt's heartbeat; None before its first, or where it cannot be understood."""
        trainer = self._trainer
        if trainer is None:
            return None
        beat = self._body.read_heartbeat(trainer.phase)
        return beat if beat is not None and beat.attempt == trainer.attempt else None

    def _last_beat(self, running: contract.PhaseReport) -> Heartbeat | None:
        """Return the last heartbeat of a trainer that has ended, whether or not it is still noted:
        an agent may be killed between forgetting it and reporting its end."""
        beat = self._body.read_heartbeat(running.name)
        return beat if beat is not None and beat.attempt == running.attempts else None

    # -- its report -------------------------------------------------------------------------------

    def _phase(self, name: str) -> contract.PhaseReport:
        return next(p for p in self.report.phases if p.name == name)

    def _set_phase(self, phase: contract.PhaseReport) -> None:
        phases = tuple(phase if p.name == phase.name else p for p in self.report.phases)
        self.report = replace(self.report, phases=phases)

    def _answer(self, phase: str, step: int | None, why: str) -> None:
        saves = contract.SaveAnswers(self._orders.save, phase, step, why)
        self.report = replace(self.report, saves=saves)
        self._body.log(f"asked to save: {why or f'{phase} step {step} is saved'}")
        self.write_report(force=True)

    def _note_kept(self, now: Instant) -> None:
        if not self.lease.ready_within_s and not self.lease.uploads:
            return  # on the user's own machine: nothing has to be pulled from it
        kept = self._body.kept(now)
        if kept != self.report.kept:
            self.report = replace(self.report, kept=kept)

    def _take_up(self, trainer: Trainer) -> None:
        """One that a killed agent noted down and could not report is its phase's attempt now."""
        phase = self._phase(trainer.phase)
        if phase.state is not contract.PhaseState.RUNNING or phase.attempts != trainer.attempt:
            self._set_running(phase, trainer.attempt, trainer.started_at)

    def tick(self) -> None:
        """Look, decide, act, report: once."""
        now = self._body.now()
        self._reread(now)
        self._close_ended(now)
        self._note_saves()
        if self.lease.uploads:
            self._note_uploads(now)
        if not self._began:
            self._prepare(now)
        # What the bucket has of its tokens is brought first.
        if self.report.result is None and (not self.lease.uploads or self._uploads.fetched):
            self._body.make_data(now, tuple(phase.name for phase in self.lease.phases))
        before = self.report.phases
        view = self._view(now)
        beat = view.heartbeat
        self._body.watch_gpus(now, trains=beat is not None and beat.state == "training")
        act = supervisor.supervise(self.lease, self.report.phases, view)
        self._carry_out(act, now)
        # What a phase has come to must not be asked again by an agent that is started anew.
        self.write_report(force=self.report.phases is not before)

    def linger(self) -> bool:
        """After the result: whether to stay and ask again.

        The watchdog ends the pod. Where there is none any more this agent does, as its last duty;
        and where the pod is held for the controller to pull from, it is there until the hard stop.
        Where it uploads it stays for a moment, until its last report is in the bucket.
        """
        now = self._body.now()
        self._reread(now)
        hard = self._anchors[1]
        if self.lease.hold and hard.seconds_left(now) > 0:
            self._note_kept(now)
            self.write_report()
            return True
        self.telling = self._owes_report(now)
        if self.telling:
            return True
        if self._body.has_watchdog():
            return False
        return not self._body.end_pod()

    def _owes_report(self, now: Instant) -> bool:
        """Whether the bucket lacks the report with the result, and that is still worth the wait: a
        store that does not answer must not hold the pod."""
        granted = self.lease.uploads and self.report.granted_until is not None
        if not granted or self._anchors[1].seconds_left(now) <= 0:
            return False
        if self._done_boot is None:
            self._done_boot = now.boot
        if now.boot - self._done_boot >= LAST_REPORT_S:
            return False
        self._body.uploads(now)  # the process that brings it there is kept running
        return self._body.stored_result() != self.report.result

    # -- looking ------------------------------------------------------------------------------

    def _prepare(self, now: Instant) -> None:
        waiting, self._refusal = self._body.prepare(now)
        if self.lease.uploads and not waiting and not self._refusal:
            if self.report.granted_until is None:
                waiting = "grants"
            elif not self._uploads.fetched:
                waiting = "data"
        if waiting != self.report.waiting:
            self.report = replace(self.report, waiting=waiting)
            self._body.log(f"waiting: {waiting}" if waiting else "ready to train")
            self.write_report(force=True)

    @property
    def _began(self) -> bool:
        """Whether a phase was started: by then the machine had been found fit, and ready."""
        return any(phase.attempts for phase in self.report.phases)

    def _note_saves(self) -> None:
        """Note that the trainer has saved since the request, or cannot be asked."""
        asked, saves = self._orders.save, self.report.saves or contract.SaveAnswers()
        if asked <= saves.answered:
            return
        trainer, beat = self._trainer, self._heartbeat()
        if trainer is None or beat is None:
            return
        if beat.saves is None:
            if beat.state != "starting":
                self._answer(trainer.phase, None, "its trainer is of a version that cannot")
        elif trainer.save_told == asked and beat.saves > trainer.saves_before:
            self._answer(trainer.phase, beat.saved_step, "")

    def _note_uploads(self, now: Instant) -> None:
        until, uploads = self._body.uploads(now)
        if uploads is not self._uploads and uploads != self._uploads:
            self._uploads = uploads
        self._note_kept(now)
        before = self.report
        told = uploads.uploaded, until, uploads.trouble
        if told != (before.uploaded, before.granted_until, before.trouble):
            uploaded, granted_until, trouble = told
            self.report = replace(
                before, uploaded=uploaded, granted_until=granted_until, trouble=trouble
            )
        if not self._unstored():
            self._owing_boot = None
        elif self._owing_boot is None:
            self._owing_boot = now.boot

    def _unstored(self) -> bool:
        """Whether something of worth is not in the bucket yet and could still come there."""
        kept, done = self.report.kept, self._uploads
        if kept is not self._owing[0] or done is not self._owing[1]:
            self._owing = kept, done, bool(unstored(kept, done.uploaded, done.given_up))
        return self._owing[2]

    def _upload_idle_s(self, now: Instant) -> float:
        since = max(self._uploads.moved_boot, self._owing_boot or now.boot)
        return max(0.0, now.boot - since)

    def _view(self, now: Instant) -> supervisor.TrainerView:
        soft, hard = self._anchors
        beat = self._heartbeat()
        trainer = self._trainer
        age = told = None
        if trainer is not None:
            progress = f"{beat.state}/{beat.step}" if beat is not None else ""
            if beat is not None and beat.state == "waiting":
                progress += f"/{beat.at}"  # for data: its step stays, its heartbeats come
            if beat is not None and beat.signs:
                progress += f"/{beat.signs}"
            if progress != trainer.last_beat:
                trainer.last_beat = progress
                trainer.last_progress_boot = now.boot
            age = now.boot - trainer.last_progress_boot
            if trainer.told_boot is not None:
                told = now.boot - trainer.told_boot
            self._note_saved(trainer, beat, now)
        return supervisor.TrainerView(
            heartbeat=beat,
            heartbeat_age_s=age or 0.0,
            soft_left_s=soft.seconds_left(now),
            hard_left_s=hard.seconds_left(now),
            told_to_land_s=told,
            land_ordered=self._orders.land,
            land_reason=self._orders.reason,
            save_owed=self._save_owed(),
            finish_told=trainer is not None and trainer.finish_told,
            share_left_s=self._share_left_s(now),
            memory_share=self._body.memory_share(),
            waiting="" if self._began else self.report.waiting,
            refusal=self._refusal,
            age_s=self._noted.age_s(now),
            unstored=self._uploads.fetched and self._unstored(),
            upload_idle_s=self._upload_idle_s(now),
        )

    def _share_left_s(self, now: Instant) -> float:
        """Of what its lease gives the phase, from the attempt's start on; infinite without one."""
        trainer = self._trainer
        if trainer is None:
            return math.inf
        allowed_s = phase_account.lease_of(self.lease, trainer.phase).allowed_s
        if not allowed_s:
            return math.inf
        return trainer.started_at + allowed_s - now.wall

    def _note_saved(self, trainer: Trainer, beat: Heartbeat | None, now: Instant) -> None:
        """When it saved last: what it has done since is lost with it."""
        saved = beat.saved_step if beat is not None else None
        # What it began from is none of its own; a damaged one gives way to an older one.
        before = trainer.saved_step or self._phase(trainer.phase).saved_step or 0
        if saved is not None and saved != before:
            trainer.saved_step, trainer.saved_boot = saved, now.boot

    def _save_owed(self) -> bool:
        answered = self.report.saves.answered if self.report.saves is not None else 0
        told = self._trainer.save_told if self._trainer is not None else 0
        return self._orders.save > max(answered, told)

    # -- acting -------------------------------------------------------------------------------

    def _carry_out(self, act: supervisor.Act, now: Instant) -> None:
        if isinstance(act, supervisor.Wait):
            return
        if isinstance(act, supervisor.StartPhase):
            self._start(act, now)
        elif isinstance(act, supervisor.LandTrainer):
            self._land(act.reason, now)
        elif isinstance(act, supervisor.SaveNow):
            self._save()
        elif isinstance(act, supervisor.FinishTrainer):
            self._finish(act.reason)
        elif isinstance(act, supervisor.ClimbTrainer):
            self._climb(act.level, now)
        elif isinstance(act, supervisor.KillTrainer):
            self._body.log(f"killing the trainer: {act.reason}")
            self._body.kill_trainer()
            if self._trainer is not None:
                self._set_phase(replace(self._phase(self._trainer.phase), message=act.reason))
        elif isinstance(act, supervisor.JudgeGate):
            self._judge(act.phase)
        elif isinstance(act, supervisor.AwaitUploads):
            if not self.report.uploading:
                self._body.log("its work is done; the result waits for uploads")
                self.report = replace(self.report, uploading=True)
        elif isinstance(act, supervisor.EndPod):
            self._body.kill_trainer()
            self._body.stop_data()
            self.report = replace(self.report, uploading=False)
            self.report = replace(self.report, result=act.result, message=act.message)

    def _start(self, act: supervisor.StartPhase, now: Instant) -> None:
        phase, attempt = act.phase, act.attempt
        share = next(p for p in self.lease.phases if p.name == phase)
        soft, _ = self._anchors
        left_s = soft.seconds_left(now)
        if share.allowed_s:
            left_s = min(left_s, share.allowed_s)
        # One that a killed agent started, and could not write down, is still about.
        self._body.kill_trainer()
        pid, started = self._body.start_trainer(phase, attempt, now.wall + left_s, act.overrides)
        self._trainer = Trainer(
            pid=pid,
            started=started,
            phase=phase,
            attempt=attempt,
            started_at=now.wall,
            last_progress_boot=now.boot,
            saved_boot=now.boot,
        )
        self._body.write_trainer(self._trainer)
        self._body.log(f"started {phase}, attempt {attempt}, {left_s:.0f} s to its deadline")
        if act.overrides:
            self._body.log(f"with {contract.dump(act.overrides)}")
        self._set_running(self._phase(phase), attempt, now.wall)

    def _set_running(self, before: contract.PhaseReport, attempt: int, at: float) -> None:
        self._set_phase(phase_account.start_attempt(self.lease, before, attempt, at))

    def _land(self, reason: str, now: Instant) -> None:
        trainer = self._trainer
        if trainer is None:
            return
        self._body.ask_to_land(trainer, self._heartbeat())
        trainer.told_boot = now.boot
        self.report = replace(self.report, landing=True)
        self._body.log(f"told the trainer to land: {reason}")

    def _save(self) -> None:
        trainer, beat = self._trainer, self._heartbeat()
        if trainer is None or beat is None:
            return
        trainer.save_told, trainer.saves_before = self._orders.save, beat.saves or 0
        self._body.ask_to_save(trainer, beat)
        self._body.log("told the trainer to save")

    def _finish(self, reason: str) -> None:
        trainer, beat = self._trainer, self._heartbeat()
        if trainer is None or beat is None:
            return
        # On the report first: whatever ends this agent, what follows is known to be by the rule.
        self._set_phase(replace(self._phase(trainer.phase), stopping=reason))
        self.write_report(force=True)
        self._body.ask_to_finish(trainer, beat)
        trainer.finish_told = True
        self._body.log(f"told the trainer to come to an end: {reason}")

    def _climb(self, level: str, now: Instant) -> None:
        trainer = self._trainer
        if trainer is None:
            return
        # On the report first: whatever ends this agent, the phase continues once it has landed.
        self._set_phase(replace(self._phase(trainer.phase), climbing=level))
        self.write_report(force=True)
        self._body.ask_to_land(trainer, self._heartbeat())
        trainer.told_boot = now.boot
        self._body.log(f"memory is free: asked the trainer to land, then continue ({level})")

    def _judge(self, phase: str) -> None:
        verdict = gate.judge(phase, self._body.read_metrics(phase))
        self._set_phase(replace(self._phase(phase), gate=verdict))
        self._body.log(f"gate after {phase}: {'passed' if verdict.passed else 'failed'}")

    def _close_ended(self, now: Instant) -> None:
        """Turn a trainer that is no more into its phase's account."""
        running = next(
            (p for p in self.report.phases if p.state is contract.PhaseState.RUNNING), None
        )
        if running is None or self._running():
            return
        self._body.kill_trainer()
        lost_s = now.boot - self._trainer.saved_boot if self._trainer is not None else 0.0
        last = self._last_beat(running)
        closed = phase_account.close_attempt(running, last, now.wall, lost_s)
        self._set_phase(closed)
        saves = self.report.saves or contract.SaveAnswers()
        if closed.outcome in CLEAN and self._orders.save > saves.answered:
            self._answer(closed.name, last.saved_step if last is not None else None, "")
        self._trainer = None
        self._owing_boot = None  # what it leaves has a fresh share of patience
        self._body.write_trainer(None)
        self._body.log(f"{closed.name} ended: {closed.outcome} {closed.message}".rstrip())
        self.write_report(force=True)
