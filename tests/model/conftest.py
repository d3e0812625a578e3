"""A text, its prepared data, and ways to train on it: in this process, or under torchrun."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from model.command import wait_asleep
from model.machine import signals
from model.machine.signals import SignalFlag
from model.machine.telemetry import Clock
from model.preparing import crew
from tests.plans import small_recipe
from tests.settings import changed
from tests.waiting import deadline_s
from trmcloud.core.contract.manifest import CheckpointManifest, from_json
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob, load_heartbeat
from trmcloud.core.spec.settings import PhaseRecipe

wait_asleep()  # torch is imported late here, too

SMALL: Any = small_recipe()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _fork_workers() -> None:
    """Preparations' processes are forked from one that has imported their modules; those that
    ``model.prepare`` starts as a command are spawned, as a user's are."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload(["tests.model.forked_workers"])
    contexts = SimpleNamespace(get_context=lambda method: forked)
    crew.multiprocessing = contexts  # type: ignore[attr-defined, assignment]


@pytest.fixture
def keep_generator() -> Iterator[None]:
    """Training seeds the global generator: other tests shall not notice."""
    import torch

    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.fixture(scope="session")
def settings() -> PhaseRecipe:
    """A model so small that a step takes milliseconds."""
    return SMALL


@pytest.fixture(scope="session")
def text() -> str:
    """About 20 kB of made-up sentences, the same every time."""
    chosen = random.Random(7)
    words = ("the", "a", "small", "dog", "cat", "ünder", "oven", "sees", "eats", "漢字", "blue")
    lines = (" ".join(chosen.choices(words, k=chosen.randint(4, 12))) for _ in range(500))
    return ".\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def data_dir(text: str, settings: PhaseRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text, prepared."""
    from model.preparing.whole import prepare

    folder = tmp_path_factory.mktemp("prepared")
    source = folder / "text.txt"
    source.write_text(text, encoding="utf-8")
    prepare(str(source), settings, folder / "data")
    return folder / "data"


def torchrun(
    processes: int, module: str, *words: str, forked: bool = True, stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE, **environment: str,
) -> subprocess.Popen[str]:  # fmt: skip
    """Starts a module under torchrun, in a process group of its own."""
    root = Path(__file__).parents[2]
    folders = [root / "tests" / "standins" / "ranks", root] if forked else [root]
    path = [*map(str, folders), environment.pop("PYTHONPATH", "")]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc_per_node", str(processes), "-m", module, *words),
        ],
        stdout=stdout, stderr=stderr, text=True, start_new_session=True, cwd=root,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "OMP_NUM_THREADS": "1", **environment,
        },
    )  # fmt: skip


def output_of(process: subprocess.Popen[str], timeout_s: float = 300.0) -> str:
    """Return what a process printed; fail where its exit status is not 0."""
    try:
        out, err = process.communicate(timeout=deadline_s(timeout_s))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, err[-4000:]
    return out


@dataclass
class Run:
    """One phase's folder, and what stands in it."""

    job: PhaseJob

    @property
    def out(self) -> Path:
        return Path(self.job.out_dir)

    @property
    def heartbeat(self) -> Heartbeat:
        return load_heartbeat((self.out / "heartbeat.json").read_bytes())

    def metrics(self, *kinds: str) -> list[dict[str, Any]]:
        path = self.out / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        every = [json.loads(line) for line in lines]
        return [line for line in every if not kinds or line["kind"] in kinds]

    def exact_metrics(self) -> list[dict[str, Any]]:
        """What two equal runs agree on to the last bit: no timings, no landings."""
        timed = (
            *(
                "at",
                "seconds",
                "step_seconds",
                "data_wait_s",
                "overhead_s",
                "tokens_per_second",
                "landing",
                "rank_seconds",
            ),
        )
        return [
            {key: value for key, value in line.items() if key not in timed}
            for line in self.metrics("train", "eval")
            if not line.get("landing")
        ]

    def manifests(self) -> dict[int, CheckpointManifest]:
        found = {}
        for path in (self.out / "checkpoints").glob("step-*/manifest.json"):
            manifest = from_json(path.read_bytes(), where=str(path))
            found[manifest.step] = manifest
        return found

    def weights_at(self, step: int) -> str:
        """SHA-256 of the weights that were saved there."""
        return self.manifests()[step].sha256

    def train_here(
        self,
        attempt: int = 1,
        clock: Clock | None = None,
        flag: SignalFlag | None = None,
        **environment: str,
    ) -> str:
        """One attempt in this process; returns the outcome. ``flag``: what signals raise."""
        from model.train import run_attempt

        made = PhaseRecipe.from_json(self.job.settings)
        # As one process of many on this machine it takes one core: the tests share the others.
        environment = {"LOCAL_WORLD_SIZE": "64", **environment}
        flag = flag or signals.SignalFlag()
        return run_attempt(self.job, made, attempt, flag, environment, clock or Clock())

    def torchrun(
        self,
        processes: int = 2,
        attempt: int = 1,
        *,
        forked: bool = True,
        fault: str = "",
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Starts ``torchrun`` on this job; its output goes to ``train.log``. ``forked``: its ranks
        begin sooner, and with ``fault``, as ``tests/standins/ranks`` says."""
        self.out.mkdir(parents=True, exist_ok=True)
        job_path = self.out / "job.json"
        job_path.write_text(dump(self.job))
        with open(self.out / "train.log", "a") as log:
            return torchrun(
                processes, "model.train", forked=forked, stdout=log, stderr=log,
                TRMCLOUD_JOB=str(job_path), TRMCLOUD_ATTEMPT=str(attempt),
                TRMCLOUD_TEST_FAULT=fault, **environment,
            )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 120.0) -> int:
        """Waits for the end; a run that hangs is killed with all its ranks."""
        try:
            return process.wait(deadline_s(timeout_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    def wait_for_step(self, step: int, process: subprocess.Popen[str]) -> None:
        """Until the training has logged ``step``; fails where it ends before."""
        while not any(line["step"] >= step for line in self.metrics_so_far("train")):
            assert process.poll() is None, (self.out / "train.log").read_text()
            time.sleep(0.01)

    def metrics_so_far(self, kind: str) -> list[dict[str, Any]]:
        """Metrics of a run that may be writing its next line just now."""
        path = self.out / "metrics.jsonl"
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [made for line in whole if (made := json.loads(line))["kind"] == kind]


@pytest.fixture(scope="session")
def run_in(settings: PhaseRecipe, data_dir: Path) -> Callable[..., Run]:
    """A factory: ``run_in(folder, steps=5)`` is a job that trains there."""

    def make(
        folder: Path, *, initial_weights: str = "", prepared: Path | None = None, **changes: Any
    ) -> Run:
        made = changed(settings, **changes)
        job = PhaseJob(
            run_id="r1", phase=made.phase, settings=made.to_json(), out_dir=str(folder),
            data_dir=str(prepared or data_dir), processes=2, initial_weights=initial_weights,
        )  # fmt: skip
        return Run(job)

    return make


@pytest.fixture
def new_run(run_in: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """A factory: ``new_run("name", steps=5)`` is a job in a folder of its own."""

    def make(name: str = "run", **changes: Any) -> Run:
        return run_in(tmp_path / name, **changes)

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, run_in: Callable[..., Run]) -> Run:
    """A finished run of 40 steps, to be read."""
    run = run_in(tmp_path_factory.mktemp("trained"), steps=40, eval_every=40)
    assert run.train_here() == "finished"
    return run


@pytest.fixture(scope="session")
def checkpoint(trained: Run) -> Path:
    """Its last checkpoint."""
    return trained.out / "checkpoints" / "step-00000040"


@pytest.fixture(scope="session")
def loaded(checkpoint: Path) -> Any:
    from model.training.load import load_model

    return load_model(checkpoint)


@pytest.fixture
def slow(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, ``loaded`` takes a step in 20 ms."""
    free = threading.Event()
    real: Any = loaded.model.decode

    def decode(*arguments: Any) -> Any:
        free.wait(0.02)
        return real(*arguments)

    monkeypatch.setattr(loaded.model, "decode", decode)
    return free
