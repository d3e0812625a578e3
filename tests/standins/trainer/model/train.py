"""The stand-in's training loop: rank 0 keeps the contract, the others wait for it to leave."""

import hashlib
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pace import PACE, PaceMeter
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
    load_job,
)
from trmcloud.core.spec.settings import FAMILIES, PhaseRecipe
from trmcloud.core.sweep.job import ENV_TRIAL

STEP_S = 0.02
HOLD_AT = 40
"""From here on it trains only once the file that ``TRMCLOUD_STANDIN_HOLD`` names is gone."""


def write(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Trainer:
    def __init__(self, job: PhaseJob) -> None:
        self.job = job
        FAMILIES.provide({})  # it needs no more than what every family has
        self.settings = PhaseRecipe.from_json(job.settings)
        trial = json.loads(os.environ.get(ENV_TRIAL) or "{}")
        self.worse = abs(math.log10(trial["lr"]) + 2) if "lr" in trial else 0.0
        if trial.get("lr", 0) >= 10:
            raise FloatingPointError("the loss is not finite")
        self.out = Path(job.out_dir)
        self.deadline = float(os.environ[ENV_DEADLINE_AT])
        self.attempt = int(os.environ[ENV_ATTEMPT])
        self.fault, _, at = os.environ.get("TRMCLOUD_STANDIN_FAULT", "").partition("@")
        self.fault_at = int(at or -1)
        hold = os.environ.get("TRMCLOUD_STANDIN_HOLD", "")
        self.hold = Path(hold) if hold else None
        self.seconds: dict[str, float] = {}
        self.marked = time.time()
        self.told: list[int] = []
        self.asked: list[int] = []
        self.saves = 0
        self.step = self.latest_step()
        self.bpb: float | None = None
        self.best: tuple[float, int] | None = None
        self.saved: int | None = self.step or None
        self.evaluated = -1
        self.beaten = 0.0
        self.deadline_file = Path(os.environ[ENV_JOB]).with_name(contract.DEADLINE_NAME)
        self.meter: PaceMeter | None = PaceMeter() if self.fault == "slow" else None
        self.step_s = 4 * STEP_S if self.fault == "slow" else STEP_S

    def latest_step(self) -> int:
        folder = self.out / contract.CHECKPOINTS_DIR
        steps = [0]
        for entry in folder.iterdir() if folder.is_dir() else ():
            if mf.parse_step_dir(entry.name) and (entry / mf.MANIFEST_NAME).exists():
                steps.append(mf.parse_step_dir(entry.name) or 0)
        return max(steps)

    def spend(self, state: str) -> None:
        now = time.time()
        self.seconds[state] = self.seconds.get(state, 0.0) + now - self.marked
        self.marked = now

    def losses(self) -> tuple[float, ...]:
        base = 3.0 / (1 + self.step / 50) + self.worse
        if self.fault == "fail-gate":
            return (base, base + 0.1, base + 0.2, base + 0.3)
        return (base + 0.3, base + 0.2, base + 0.1, base)

    def beat(self, state: str, outcome: str | None = None, *, force: bool = False) -> None:
        if not force and outcome is None and time.time() - self.beaten < 0.05:
            return
        self.beaten = time.time()
        beat = Heartbeat(
            run_id=self.job.run_id,
            phase=self.job.phase,
            attempt=self.attempt,
            pid=os.getpid(),
            pid_started=Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19],
            at=time.time(),
            state=state,
            step=self.step,
            steps=self.settings.steps,
            outcome=outcome,
            step_seconds=self.step_s,
            landing_seconds=0.05,
            val_bpb=self.bpb,
            step_losses=self.losses(),
            best_bpb=self.best[0] if self.best else None,
            best_step=self.best[1] if self.best else None,
            saved_step=self.saved,
            seconds=dict(self.seconds),
            saves=self.saves,
        )
        write(self.out / contract.HEARTBEAT_NAME, contract.dump(beat).encode())

    def log(self, **line: object) -> None:
        with open(self.out / contract.METRICS_NAME, "a") as file:
            file.write(json.dumps({**line, "at": time.time()}) + "\n")

    def evaluate(self) -> None:
        if self.evaluated == self.step:
            return
        self.evaluated = self.step
        self.bpb = self.losses()[-1]
        if self.best is None or self.bpb < self.best[0]:
            self.best = (self.bpb, self.step)
        self.log(kind="eval", step=self.step, val_bpb=self.bpb, val_step_losses=list(self.losses()))
        self.spend("evaluating")

    def save(self) -> None:
        """First the checkpoint, then its metric, as the real one does."""
        if self.saved != self.step:
            self.write_checkpoint()
            self.beat("saving", force=True)
            self.spend("saving")
        if self.fault == "out-of-memory" and self.step == self.fault_at:
            raise MemoryError
        self.evaluate()
        folder = self.out / contract.CHECKPOINTS_DIR / mf.step_dir_name(self.step)
        made = mf.from_json((folder / mf.MANIFEST_NAME).read_text(), "here")
        if made.val_bpb is None and self.bpb is not None:
            scored = mf.with_metric(made, self.bpb, self.losses())
            write(folder / mf.MANIFEST_NAME, mf.to_json(scored).encode())

    def write_checkpoint(self) -> None:
        parent = self.out / contract.CHECKPOINTS_DIR
        folder = parent / mf.step_dir_name(self.step)
        if (folder / mf.MANIFEST_NAME).exists():
            return
        building = parent / f".{folder.name}.{os.getpid()}"
        building.mkdir(parents=True, exist_ok=True)
        weights = hashlib.sha256(f"{self.settings.seed} {self.step}".encode()).digest() * 2000
        optimizer = weights[::-1]
        files = []
        for name, kind, data in (
            ("weights.safetensors", "weights", weights),
            ("optimizer.safetensors", "optimizer", optimizer),
        ):
            write(building / name, data)
            digest = hashlib.sha256(data).hexdigest()
            files.append(mf.CheckpointFile(name, kind, len(data), digest))
        made = mf.CheckpointManifest(
            run_id=self.job.run_id,
            phase=self.job.phase,
            step=self.step,
            tokens=self.step * 1000,
            created_at=time.time(),
            recipe=self.settings.recipe,
            settings=dict(self.job.settings),
            world_size=self.job.processes,
            val_bpb=self.bpb if self.evaluated == self.step else None,
            step_losses=self.losses() if self.evaluated == self.step else (),
            cooled=False,
            data_sha256="0" * 64,
            tokenizer_sha256="0" * 64,
            files=tuple(files),
        )
        write(building / mf.MANIFEST_NAME, mf.to_json(made).encode())
        os.replace(building, folder)
        self.saved = self.step
        self.log(kind="save", step=self.step)

    def tell_pace(self, step_s: float) -> None:
        """Once it is steady, as the real one does."""
        told = self.meter.add(step_s) if self.meter is not None else None
        if told is not None:
            self.meter = None
            self.log(**{**vars(told), "kind": PACE, "step": self.step})

    def train(self) -> str:
        signal.signal(signal.SIGTERM, lambda *_: self.told.append(1))
        signal.signal(signal.SIGUSR1, lambda *_: self.asked.append(1))
        self.beat("starting", force=True)
        self.evaluate()
        self.spend("startup")
        while self.step < self.settings.steps:
            if self.told and self.fault != "deaf":
                return "landed_signal"
            if self.deadline_file.exists():
                self.deadline = float(self.deadline_file.read_text())
            if time.time() >= self.deadline and self.fault != "deaf":
                return "landed_deadline"
            if self.step == self.fault_at:
                if self.fault == "crash" and self.attempt == 1:
                    os._exit(13)
                if self.fault == "nan":
                    return "non_finite"
                while self.fault == "hang" or (self.fault == "stall" and self.attempt == 1):
                    time.sleep(0.05)
            if self.asked and self.step:
                self.asked.clear()
                self.saves += 1
                self.save()
                self.beat("training", force=True)
            time.sleep(self.step_s)
            if self.step >= HOLD_AT and self.hold is not None and self.hold.exists():
                self.beat("training")
                continue
            self.step += 1
            self.tell_pace(self.step_s)
            self.spend("training")
            self.beat("training")
            if self.step % self.settings.log_every == 0:
                losses = list(self.losses())
                told = {"loss": losses[-1], "step_losses": losses, "tokens_per_second": 50_000.0}
                self.log(kind="train", step=self.step, **told, grad_norm=1.0)
            if self.step % self.settings.eval_every == 0:
                self.evaluate()
            if self.step % self.settings.save_every == 0:
                self.save()
        return "finished"

    def run(self) -> None:
        try:
            outcome = self.train()
            if outcome != "non_finite":
                self.beat("landing", force=True)
                self.save()
        except MemoryError:
            outcome = "out_of_memory"
        self.beat("ended", outcome, force=True)


def main() -> None:
    job = load_job(Path(os.environ[ENV_JOB]).read_text())
    if os.environ.get("RANK", "0") == "0":
        Trainer(job).run()
        return
    # Another rank: lives as long as rank 0 does, and dies with it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
        beat = Path(job.out_dir) / contract.HEARTBEAT_NAME
        if beat.exists():
            said = load_heartbeat(beat.read_text())
            if said.outcome and said.attempt == int(os.environ[ENV_ATTEMPT]):
                sys.exit(0)


if __name__ == "__main__":
    main()
