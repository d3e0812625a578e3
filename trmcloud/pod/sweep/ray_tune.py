"""Trials on a user's own cluster: Ray Tune executes them, by its public API.

The executor and the core behind it stay what they are. A ``Searcher`` gives Tune a trial when the
core begins one, a ``TrialScheduler`` pauses it at the end of its interval, by a checkpoint, and
resumes it when the core continues it. Tune and Ray choose nodes and GPUs, start workers, see them
die, and keep the experiment's record (``ray/`` in the sweep's folder).

Every node has to see the sweep's folder, the data and this Python by the same paths. What a trial
saves stays in its folder there; Tune's own checkpoints say which one it is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointManifest, pick_best, pick_latest
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob
from trmcloud.core.errors import MissingExtra, ProviderError, UsageError
from trmcloud.core.sweep.terms import Goal, SweepTerms
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.io.files import write_atomic
from trmcloud.io.installation import install_command
from trmcloud.pod.sweep.children import (
    Child,
    MachineLost,
    TrialProcesses,
    TrialStart,
    manifests_in,
    trial_name,
)
from trmcloud.pod.sweep.keeper import (
    KEEPER,
    Order,
    kill_file,
    land_file,
    order_file,
    read_order,
    write_order,
)

EXPERIMENTS_DIR = "ray"
"""Below the sweep's folder: Tune's record, an experiment for each attempt of the executor."""
LOST = -256
"""In place of an exit code: the interval is gone with its node. No signal has this number."""
EXIT_CODE, PROBLEM, STEP = "exit_code", "problem", "step"
"""Keys of a result in Tune's record, beside the metric's."""
_TICK_S = 0.2
_SLOTS_WITHIN_S = 60.0
"""A cluster that is in use, or grows, is waited for so long."""
_CLOSE_WITHIN_S = 10.0
_TOKEN_BYTES = 32
_TUNES: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
"""Ray's settings: nothing is sent to its makers, and nothing is printed between our lines."""


class Wanted(Value):
    """An interval that the executor has asked for."""

    trial: int
    attempt: int
    config: Mapping[str, Any]


class Desk:
    """What the executor's thread and Tune's tell each other: intervals that are wanted, and how
    they ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: deque[Wanted] = deque()
        self._ended: dict[tuple[int, int], int] = {}
        self._problems: dict[int, str] = {}
        self.closing = False
        self.failure = ""
        """Why Tune's thread has ended before it was asked to; empty while it runs."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Tune keeps a copy of its experiment, to restore it; ours is restored from the journal."""
        return Desk, ()

    def ask(self, wanted: Wanted) -> None:
        with self._lock:
            self._wanted.append(wanted)

    def take(self, fits: Callable[[int], bool]) -> Wanted | None:
        """Return the first wanted interval whose trial ``fits``, and forget it."""
        with self._lock:
            for wanted in self._wanted:
                if fits(wanted.trial):
                    self._wanted.remove(wanted)
                    return wanted
        return None

    def withdraw(self, trial: int, attempt: int) -> None:
        """Take back an interval that was not taken."""
        with self._lock:
            left = [w for w in self._wanted if (w.trial, w.attempt) != (trial, attempt)]
            if len(left) < len(self._wanted):
                self._wanted = deque(left)
                self._ended[trial, attempt] = LOST

    def end(self, trial: int, attempt: int, code: int, problem: str = "") -> None:
        with self._lock:
            self._ended.setdefault((trial, attempt), code)
            if problem:
                self._problems[trial] = problem

    def code(self, trial: int, attempt: int) -> int | None:
        with self._lock:
            return self._ended.get((trial, attempt))

    def problem(self, trial: int) -> str:
        """Return why a trial could not be started on its node, once; else empty."""
        with self._lock:
            return self._problems.pop(trial, "")


class RayTrials:
    """The trials of a sweep on Ray's nodes, while this context lasts. ``attempt`` is the
    executor's, ``environment`` its own; ``address`` is that of the cluster, empty for a Ray of this
    machine alone that is started for the sweep."""

    def __init__(
        self,
        job: PhaseJob,
        terms: SweepTerms,
        environment: Mapping[str, str],
        attempt: int,
        address: str = "",
    ) -> None:
        self._job, self._terms, self._attempt = job, terms, attempt
        self._environment = {
            key: value for key, value in environment.items() if not key.startswith("RAY_")
        }
        self._address = address
        self._processes = TrialProcesses(job, terms.slots, self._environment, 1)
        self._root = Path(job.out_dir) / EXPERIMENTS_DIR
        self._desk = Desk()
        self._thread: threading.Thread | None = None
        self._ray: Any = None

    # -- Ray ----------------------------------------------------------------------------------

    def __enter__(self) -> RayTrials:
        """
        Raises:
            MissingExtra: Ray is not installed. UsageError: the cluster has too few slots.
            ProviderError: the cluster cannot be reached.
        """
        os.environ.update(_TUNES)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._terms.slots)
        if not self._address:
            # Ray listens at all addresses of this machine: only who has the token may speak to it.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(_TOKEN_BYTES)
        self._ray, tune = load_ray()
        try:
            resources = self._connect()
            tuner = _tuner(tune, self._desk, self._terms, resources, self._root, self._attempt)
        except BaseException:
            self._leave()
            raise
        cores = max(1, int(resources["CPU"])) * self._terms.slots
        self._processes = TrialProcesses(self._job, self._terms.slots, self._environment, cores)
        self._thread = threading.Thread(target=self._fit, args=(tuner,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._desk.closing = True
        if self._thread is not None:
            self._thread.join(_CLOSE_WITHIN_S)
        self._leave()
        for order in self.folder(0).parent.glob("*/order-*.json"):
            order.unlink(missing_ok=True)

    def _leave(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        sys.excepthook = sys.__excepthook__  # Ray's waits a minute for a Ray that is gone

    def _connect(self) -> dict[str, float]:
        """Join the cluster, or start one; return what one slot takes of it."""
        try:
            self._ray.init(
                address=self._address or "local",
                **({} if self._address else {"include_dashboard": False}),
                runtime_env={"env_vars": {"PYTHONPATH": self._environment.get("PYTHONPATH", "")}},
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
            return self._resources()
        except (OSError, ValueError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise ProviderError(
                one_line(f"Ray at {self._address or 'this machine'} did not answer: {error}")[:300],
                next_step="ray status; RAY_ADDRESS names another cluster",
            ) from None

    def _resources(self) -> dict[str, float]:
        """Return what one slot takes of the cluster, once it has that for all of them.

        Raises:
            UsageError: it does not have it in time.
        """
        slots = self._terms.slots
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        each = slot_resources(nodes, slots, max(1, self._job.processes // slots))
        groups = importlib.import_module("ray.util.placement_group")
        probe = groups.placement_group([each] * slots)
        try:
            if not probe.wait(_SLOTS_WITHIN_S):
                asked = " and ".join(f"{value:g} {name}" for name, value in each.items())
                raise UsageError(
                    f"Ray has no room for {slots} trials at a time, each with {asked}",
                    next_step="fewer --slots, or wait until the cluster is free; ray status",
                )
        finally:
            groups.remove_placement_group(probe)
        return each

    def _fit(self, tuner: Any) -> None:
        """Tune's thread."""
        try:
            tuner.fit()
            if not self._desk.closing:
                self._desk.failure = "Ray Tune has ended before the sweep"
        except BaseException as error:
            self._desk.failure = one_line(f"Ray Tune has ended: {error}")[:300]

    # -- what the executor asks -----------------------------------------------------------------

    def start(self, start: TrialStart) -> Child:
        """
        Raises:
            OSError: its folder cannot be written. ProviderError: Ray is gone.
        """
        self._require_ray()
        made = self._processes.prepare(start)
        for old in made.folder.glob("order-*.json"):  # each has the environment
            old.unlink(missing_ok=True)
        for file in (land_file, kill_file):
            file(made.folder, start.attempt).unlink(missing_ok=True)
        limit_s = start.most_s if math.isfinite(start.most_s) else None
        order = write_order(
            Order(start.attempt, made.words, dict(made.environment), str(made.folder), limit_s)
        )
        command = self._job.command
        config = {
            **{name: value for name, value in start.values.items() if name != "trial"},
            "trial": start.trial,
            "trmcloud": {
                "order": str(order),
                "python_path": self._environment.get("PYTHONPATH", ""),
                "metric": self._terms.metric,
                "negate": command is not None and command.higher_is_better,
            },
        }
        self._desk.ask(Wanted(start.trial, start.attempt, config))
        return RayChild(self, made.folder, start.trial, start.attempt)

    def code(self, trial: int, attempt: int) -> int | None:
        """Return how an interval has ended, as ``Child.poll`` does.

        Raises:
            MachineLost: with its node. ProviderError: Ray is gone.
        """
        code = self._desk.code(trial, attempt)
        if code is None:
            self._require_ray()
            return None
        folder = self.folder(trial)
        order_file(folder, attempt).unlink(missing_ok=True)
        if problem := self._desk.problem(trial):
            with open(folder / contract.TRAIN_LOG_NAME, "a", encoding="utf-8") as log:
                log.write(f"{problem}\n")
        if code == LOST:
            raise MachineLost("Ray has lost its node")
        return code

    def withdraw(self, trial: int, attempt: int) -> None:
        self._desk.withdraw(trial, attempt)

    def beat(self, trial: int) -> Heartbeat | None:
        return self._processes.beat(trial)

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        return self._processes.manifests(trial)

    def folder(self, trial: int) -> Path:
        return self._processes.folder(trial)

    def _require_ray(self) -> None:
        if self._desk.failure:
            raise ProviderError(self._desk.failure, next_step="ray status; then trmcloud resume")


class RayChild:
    """An interval on some node."""

    def __init__(self, trials: RayTrials, folder: Path, trial: int, attempt: int) -> None:
        self._trials, self._folder, self._trial, self._attempt = trials, folder, trial, attempt

    def poll(self) -> int | None:
        return self._trials.code(self._trial, self._attempt)

    def land(self) -> None:
        with contextlib.suppress(OSError):
            land_file(self._folder, self._attempt).touch()

    def kill(self) -> None:
        self._trials.withdraw(self._trial, self._attempt)
        with contextlib.suppress(OSError):
            kill_file(self._folder, self._attempt).touch()


def load_ray() -> tuple[Any, Any]:
    """Return the modules ``ray`` and ``ray.tune``.

    Raises:
        MissingExtra: they are not installed here.
    """
    try:
        return importlib.import_module("ray"), importlib.import_module("ray.tune")
    except ImportError:
        raise MissingExtra("--on ray", "ray", install_command("ray")) from None


def slot_resources(
    nodes: Sequence[Mapping[str, float]], slots: int, ranks: int
) -> dict[str, float]:
    """Return what each of ``slots`` trials asks of Ray: a GPU for each of its ``ranks`` where the
    ``nodes`` have any, else as many CPUs as all of them can have; a trial runs on one node."""
    if any(node.get("GPU") for node in nodes):
        return {"CPU": float(ranks), "GPU": float(ranks)}
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    for each in range(max(1, sum(cpus) // slots), 0, -1):
        if sum(count // each for count in cpus) >= slots:
            return {"CPU": float(each)}
    return {"CPU": max(0.01, math.floor(100 * sum(cpus) / slots) / 100)}


# -- in Tune's thread -----------------------------------------------------------------------------


def _tuner(
    tune: Any,
    desk: Desk,
    terms: SweepTerms,
    resources: Mapping[str, float],
    root: Path,
    attempt: int,
) -> Any:
    """Return the experiment of one attempt of the executor."""
    mode = "min" if terms.goal is Goal.MIN else "max"
    searcher, scheduler = _classes(tune)
    known: dict[int, Any] = {}
    loggers = importlib.import_module("ray.tune.logger")
    return tune.Tuner(
        tune.with_resources(run_interval, dict(resources)),
        tune_config=tune.TuneConfig(
            metric=terms.metric,
            mode=mode,
            search_alg=searcher(desk, known),
            scheduler=scheduler(desk, known),
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=lambda trial: trial_name(trial.config["trial"]),
            trial_dirname_creator=lambda trial: (
                f"{trial_name(trial.config['trial'])}-{trial.trial_id}"
            ),
        ),
        run_config=tune.RunConfig(
            name=f"attempt-{attempt}",
            storage_path=str(root),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),
            callbacks=[loggers.JsonLoggerCallback(), loggers.CSVLoggerCallback()],
        ),
    )


def _classes(tune: Any) -> tuple[Any, Any]:
    """Return the searcher and the scheduler: classes of Ray's, which may not be installed."""
    search = importlib.import_module("ray.tune.search")
    schedulers = importlib.import_module("ray.tune.schedulers")
    exceptions = importlib.import_module("ray.exceptions")
    base: Any = schedulers.TrialScheduler
    paused, over = "PAUSED", ("ERROR", "TERMINATED")

    class CoreSearcher(search.Searcher):  # type: ignore[misc, name-defined]
        """Gives Tune the trials that the core begins; the others wait."""

        def __init__(self, desk: Desk, known: dict[int, Any]) -> None:
            super().__init__()
            self._desk, self._known = desk, known

        def set_search_properties(self, metric: Any, mode: Any, config: Any, **spec: Any) -> bool:
            return True

        def suggest(self, trial_id: str) -> Any:
            if self._desk.closing:
                return search.Searcher.FINISHED
            wanted = self._desk.take(self._is_new)
            return None if wanted is None else dict(wanted.config)

        def _is_new(self, trial: int) -> bool:
            return trial not in self._known or self._known[trial].status in over

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """The executor knows."""

        def save(self, checkpoint_path: str) -> None:
            """Its state is the sweep's journal."""

        def restore(self, checkpoint_path: str) -> None:
            """Its state is the sweep's journal."""

    class CoreScheduler(base):  # type: ignore[misc]
        """Pauses a trial at the end of its interval, and resumes it when the core continues it."""

        def __init__(self, desk: Desk, known: dict[int, Any]) -> None:
            super().__init__()
            self._desk, self._known = desk, known

        def set_search_properties(self, metric: Any, mode: Any, **spec: Any) -> bool:
            return True

        def on_trial_add(self, controller: Any, trial: Any) -> None:
            self._known[trial.config["trial"]] = trial

        def on_trial_result(self, controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
            self._desk.end(
                trial.config["trial"], _attempt_of(trial), int(result.get(EXIT_CODE, 1)),
                str(result.get(PROBLEM, "")),
            )  # fmt: skip
            return str(base.STOP if self._desk.closing else base.PAUSE)

        def on_trial_error(self, controller: Any, trial: Any) -> None:
            error = trial.get_pickled_error()
            number, attempt = trial.config["trial"], _attempt_of(trial)
            if isinstance(error, exceptions.RayTaskError):  # of ours, not of the machine
                self._desk.end(number, attempt, 1, one_line(str(error.cause))[:300])
            else:
                self._desk.end(number, attempt, LOST, one_line(str(error))[:300])

        def on_trial_complete(self, controller: Any, trial: Any, result: Any) -> None:
            """Its result was seen before."""

        def on_trial_remove(self, controller: Any, trial: Any) -> None:
            """It was paused, and the sweep has ended."""

        def choose_trial_to_run(self, controller: Any) -> Any:
            trials = list(controller.get_trials())
            if self._desk.closing:
                for trial in trials:
                    if trial.status == paused:
                        controller.stop_trial(trial)
                return None
            wanted = self._desk.take(self._is_paused)
            if wanted is not None:
                trial = self._known[wanted.trial]
                trial.set_config(dict(wanted.config))
                return trial
            return next((trial for trial in trials if trial.status == "PENDING"), None)

        def _is_paused(self, trial: int) -> bool:
            return trial in self._known and self._known[trial].status == paused

        def debug_string(self) -> str:
            return "trmcloud"

    return CoreSearcher, CoreScheduler


def _attempt_of(trial: Any) -> int:
    order = str(trial.config["trmcloud"]["order"])
    return int(order.rpartition("-")[2].removesuffix(".json"))


# -- on a worker ----------------------------------------------------------------------------------


def run_interval(config: Mapping[str, Any]) -> None:
    """Tune's function: run one interval of a trial beside this process, and report how it ended."""
    about = config["trmcloud"]
    code, problem, order = 1, "", None
    try:
        order = read_order(Path(about["order"]))
        code = _kept(Path(about["order"]), about["python_path"])
    except (OSError, ValueError) as error:
        problem = one_line(f"on {os.uname().nodename}: {error}")[:300]
        problem += "; every node has to see the sweep's folder by the same path"
    _report(about, code, problem, order)


def _kept(order: Path, python_path: str) -> int:
    """Run the keeper to its end; return the exit code of what it kept, −N for a signal N."""
    words = (sys.executable, "-m", KEEPER, str(order), str(os.getpid()))
    environment = {**os.environ, "PYTHONPATH": python_path}
    keeper = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment)
    try:
        while keeper.poll() is None:
            time.sleep(_TICK_S)
    finally:
        if keeper.poll() is None:
            keeper.kill()
    return 128 - keeper.returncode if keeper.returncode > 128 else keeper.returncode


def _report(about: Mapping[str, Any], code: int, problem: str, order: Order | None) -> None:
    tune = importlib.import_module("ray.tune")
    result: dict[str, Any] = {EXIT_CODE: code, PROBLEM: problem, STEP: 0}
    result[about["metric"]] = math.nan
    if order is None:
        tune.report(result)
        return
    folder = Path(order.folder)
    made = manifests_in(folder / contract.CHECKPOINTS_DIR)
    latest, judged = pick_latest(made), pick_best(made) or pick_latest(made)
    if judged is not None and judged.val_bpb is not None:
        result[about["metric"]] = -judged.val_bpb if about["negate"] else judged.val_bpb
    if latest is not None:
        result[STEP] = latest.step
    pointer = folder / "tune"
    pointer.mkdir(exist_ok=True)
    record = {
        "folder": str(folder),
        "step": result[STEP],
        "sha256": latest.sha256 if latest is not None else None,
    }
    write_atomic(pointer / "trial.json", json.dumps(record), durable=False)
    tune.report(result, checkpoint=tune.Checkpoint.from_directory(str(pointer)))
