"""The trainer's checks on this machine: ``python -m model.smoke CHECKS.json``.

Each check is made by processes of its own, within a limit: one that hangs or dies has failed, and
the next one begins. A line about each is printed as soon as it is known
(``trmcloud.core.contract.training_checks``). The exit code is 0 however they ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.command import run_command
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command_terms import ENV_REPORTS
from trmcloud.core.contract.manifest import MANIFEST_NAME
from trmcloud.core.contract.records import ContractError, parse_lines
from trmcloud.core.contract.trainer_contract import (
    ENV_ATTEMPT,
    ENV_DEADLINE_AT,
    ENV_JOB,
    Heartbeat,
    PhaseJob,
    load_heartbeat,
)
from trmcloud.core.contract.training_checks import (
    LIMITS_S,
    NAMES,
    CheckResult,
    TrainingChecks,
    line_of,
    load_checks,
)
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import FLOAT8, SEGMENTS, PhaseRecipe

STEPS = {"cpu": 24, "cuda": 600}
"""Steps of a run that is killed after a third of them, and resumed: on a GPU so many that it does
not end before it is killed."""
MOST_GRAPHS = 64
"""Compiled graphs of all functions: with more, something is compiled again from step to step."""
SLOWEST = 1.5
"""Times the median rank's seconds, above which a rank holds up the others."""
SAME_LOSS = {"cpu": 1e-3, "cuda": 1e-2}
"""Relative difference of two last losses that sums in another order may make; on a GPU they are in
bfloat16, and in another order each time."""
SAME_FIRST_LOSS = 1e-2
"""Likewise of a first loss, compiled and not, in bfloat16."""
TELLS = 0.03
"""Share of a micro-batch's seconds below which a difference is noise."""
REPORT_DIR, REPORT_NAME = "smoke-report", "report.json"
_FREE_BYTES = 2e9
_TIMED = 5
_SPARE_S = 5.0
"""Seconds before the deadline at which every check is ended."""
_OPERATORS = ("aten.scaled_dot_product_attention", "aten._foreach_add")
_SUM_MB = {"cuda": 256, "cpu": 16}
_SIDE = {"cuda": 4096, "cpu": 512}
_POLL_S = 0.02
_RAISED = re.compile(r"(\[rank\d+\]: )?[\w.]*Error: ")


class Failed(Exception):
    """A check's processes did not do what they were started for."""


class NotHere(Exception):
    """The check cannot be made on this machine."""


Found = tuple[str, dict[str, float]]
"""A check's detail and its measurements."""


class Checks:
    """The checks of one job, made in ``folder``; ``deadline_at``: epoch s."""

    def __init__(
        self,
        wanted: TrainingChecks,
        folder: Path,
        environment: Mapping[str, str],
        deadline_at: float = math.inf,
    ) -> None:
        self._wanted, self._folder, self._deadline_at = wanted, folder, deadline_at
        self._environment = {
            **{
                name: value
                for name, value in environment.items()
                if not name.startswith("TRMCLOUD_")
            },
            "PYTHONPATH": os.pathsep.join(
                filter(None, [os.getcwd(), environment.get("PYTHONPATH")])
            ),
        }
        self._planned = PhaseRecipe.from_json(dict(wanted.planned))
        self._small = PhaseRecipe.from_json(dict(wanted.small))
        self._steps = STEPS[wanted.device]
        self._until = 0.0
        self._timed: dict[str, dict[str, Any]] = {}
        self._losses: dict[str, float] = {}

    def make(self) -> Iterator[CheckResult]:
        """Each check's result, as soon as it is known."""
        checks: Mapping[str, Callable[[], Found]] = {
            "machine": self._machine,
            "links": self._links,
            "compile": self._compile,
            "step": self._step,
            "checkpointing": self._checkpointing,
            "float8": self._float8,
            "ddp": lambda: self._trains("ddp"),
            "fsdp": lambda: self._trains("fsdp"),
        }
        is_as_planned = True
        for name in NAMES:
            began = time.monotonic()
            left_s = self._deadline_at - time.time() - _SPARE_S
            self._until = began + min(LIMITS_S[name], left_s)
            measured: dict[str, float] = {}
            passed: bool | None = True
            try:
                if not is_as_planned:
                    raise NotHere("the machine is not as planned")
                if left_s <= _SPARE_S:
                    raise NotHere("no time is left for it: a larger --max-usd")
                detail, measured = checks[name]()
            except NotHere as error:
                passed, detail = None, str(error)
            except Failed as error:
                passed, detail = False, str(error)
                is_as_planned = is_as_planned and name != "machine"
            yield CheckResult(name, passed, detail, time.monotonic() - began, measured)

    # -- processes ----------------------------------------------------------------------------

    def _run(self, *words: str) -> str:
        """Run the command ``words`` and return its output. All its processes are ended afterwards.

        Raises:
            Failed: they end with another code than 0, or not in time.
        """
        child = subprocess.Popen(
            words,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        limit_s = max(1.0, self._until - time.monotonic())
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            raise Failed(f"not within {limit_s:.0f} s") from None
        finally:
            _kill(child)
        if child.returncode:
            raise Failed(_last_words(err) or f"exit code {child.returncode}")
        return out

    def _ranks(self, *words: str) -> str:
        """Start one rank for each GPU and return the output of rank 0."""
        return self._run(*self._words(*words))

    def _words(self, *words: str) -> list[str]:
        """Return the command that starts one rank for each GPU: torchrun if there are several."""
        count = self._wanted.processes
        if count == 1:
            return [sys.executable, *words]
        together = ("-m", "torch.distributed.run", "--standalone", "--local_addr", "127.0.0.1")
        return [sys.executable, *together, "--nproc_per_node", str(count), *words]

    def _measure(
        self, name: str, settings: PhaseRecipe, *, together: bool = False
    ) -> dict[str, Any]:
        """Steps of ``settings``, timed once for all checks that ask for them by ``name``."""
        if name not in self._timed:
            path = self._folder / f"{name}.json"
            path.write_text(json.dumps(settings.to_json()), encoding="utf-8")
            words = ["-m", "model.check", str(path), "--steps", str(_TIMED)]
            words += ["--device", self._wanted.device]
            out = self._ranks(*words) if together else self._run(sys.executable, *words)
            self._timed[name] = json.loads(out.splitlines()[-1])
        return self._timed[name]

    # -- the checks ---------------------------------------------------------------------------

    def _machine(self) -> Found:
        said = json.loads(self._run(sys.executable, "-m", "model.smoke", "--machine"))
        wanted, free = self._wanted, shutil.disk_usage(tempfile.gettempdir()).free
        about = f"torch {said['torch']}, {said['count']} × {said['name']}"
        if said["device"] != wanted.device:
            raise Failed(f"{about}: no GPU was found")
        if said["count"] < wanted.processes:
            raise Failed(f"{about}: {wanted.processes} were planned")
        if said["memory_gb"] and said["memory_gb"] < 0.95 * wanted.memory_gb:
            raise Failed(
                f"{about}: {said['memory_gb']:.1f} GB of memory, {wanted.memory_gb:g} planned"
            )
        if said["lacks"]:
            raise Failed(f"{about}: it lacks {', '.join(said['lacks'])}")
        if free < _FREE_BYTES:
            raise Failed(f"{about}: {free / 1e9:.1f} GB free for compiled code, 2 needed")
        memory = f", {said['memory_gb']:.1f} GB each" if said["memory_gb"] else ""
        return f"{about}{memory}; {free / 1e9:.0f} GB free for compiled code", {
            "memory_gb": said["memory_gb"]
        }

    def _links(self) -> Found:
        if self._wanted.processes == 1:
            raise NotHere("one process has no links")
        said = json.loads(self._ranks("-m", "model.smoke", "--rank").splitlines()[-1])
        slowest = max(said["seconds"]) / statistics.median_low(said["seconds"])
        text = f"{self._wanted.processes} ranks met; a sum over them takes {said['gb_s']:.1f} GB/s"
        if slowest > SLOWEST:
            rank = said["seconds"].index(max(said["seconds"]))
            raise Failed(f"{text}; rank {rank} takes {slowest:.1f} × the others' time to compute")
        return f"{text}; slowest rank {slowest:.2f} × the median", {
            "gb_s": said["gb_s"],
            "slowest": slowest,
        }

    def _compile(self) -> Found:
        plain = self._measure("plain", replace(self._small, **_NONE, compile=False))
        made = self._measure("compiled", replace(self._small, **_NONE, compile=True))
        off = abs(made["first_loss"] / plain["first_loss"] - 1)
        faster = plain["micro_s"] / made["micro_s"]
        text = (
            f"{made['graphs']} graphs in {made['compile_s']:.0f} s; "
            f"{faster:.2f} × as fast as uncompiled; first losses differ by {off:.1e}"
        )
        if off > SAME_FIRST_LOSS:
            raise Failed(text)
        if made["graphs"] > MOST_GRAPHS:
            raise Failed(f"{text}: {MOST_GRAPHS} graphs at most")
        return text, {"graphs": made["graphs"], "compile_s": made["compile_s"], "faster": faster}

    def _step(self) -> Found:
        several = self._wanted.processes > 1
        made = self._measure("planned", self._planned, together=several)
        memory = f", {made['peak_gb']:.1f} GB at its peak" if made["peak_gb"] else ""
        share = f", {made['mfu']:.1%} of the GPUs' peak" if made["mfu"] else ""
        text = (
            f"{made['step_s']:.3g} s of {made['ranks']} × {made['batch']} rows in {made['dtype']}, "
            f"{made['tokens_per_s']:,.0f} tokens/s{share}{memory}"
        )
        if not made["last_loss"] < made["first_loss"]:
            raise Failed(f"{text}; loss {made['first_loss']:.3f} → {made['last_loss']:.3f}")
        numbers = ("step_s", "micro_s", "once_s", "tokens_per_s", "ranks", "mfu", "peak_gb")
        return text, {name: float(made[name]) for name in numbers if made[name] is not None}

    def _checkpointing(self) -> Found:
        shape = self._planned
        if not hasattr(shape, "selective_checkpointing"):
            raise NotHere(f"{shape.family} has no checkpointing")
        shape = replace(shape, compile=True, accumulation=1, sharding="ddp")
        none = self._micro_s("none", replace(shape, **_NONE))
        full = self._micro_s("full", replace(shape, **_FULL))
        some = self._micro_s("selective", replace(shape, **_SELECTIVE))
        if not math.isfinite(full):
            raise NotHere("the planned shape does not fit on one GPU")
        if not math.isfinite(none) or not math.isfinite(some):
            fits = (
                "only full fits"
                if not math.isfinite(some)
                else "selective fits, and none does not,"
            )
            return f"{fits} on one GPU", {"full_s": full}
        text = f"a micro-batch takes none {none:.3g}, selective {some:.3g}, full {full:.3g} s"
        if full < none * (1 + TELLS):
            raise NotHere(f"{text}: what is computed again takes too little to tell")
        if some > (none + full) / 2 + TELLS * none:
            if self._wanted.device != "cuda":
                raise NotHere(f"{text}: a processor that does other work tells nothing")
            raise Failed(f"{text}: more than half-way to full")
        return text, {"none_s": none, "selective_s": some, "full_s": full}

    def _micro_s(self, name: str, settings: PhaseRecipe) -> float:
        """Seconds of a micro-batch; infinite where it does not fit."""
        try:
            return float(self._measure(name, settings)["micro_s"])
        except Failed as error:
            if "out of memory" not in str(error).lower():
                raise
            return math.inf

    def _float8(self) -> Found:
        if self._wanted.device != "cuda":
            raise NotHere("a processor has no products in float8")
        shape = replace(self._planned, accumulation=1, sharding="ddp")
        wide = self._micro_s("bfloat16", replace(shape, dtype="bfloat16"))
        if not math.isfinite(wide):
            raise NotHere("the planned shape does not fit on one GPU")
        try:
            made = self._measure("float8", replace(shape, dtype=FLOAT8))
        except Failed as error:
            raise NotHere(str(error)) from None
        text = f"{wide / made['micro_s']:.2f} × bfloat16's speed by {made['dtype']}"
        if made["micro_s"] >= wide:
            raise Failed(text)
        return text, {"float8": wide / made["micro_s"]}

    def _trains(self, sharding: str) -> Found:
        """Runs of the trainer itself: one killed and resumed, beside one that is not."""
        if sharding == "fsdp" and self._wanted.processes == 1:
            raise NotHere("one process cannot share its weights")
        settings = replace(
            self._small,
            sharding=sharding,
            steps=self._steps,
            save_every=self._steps // 3,
            eval_every=self._steps,
            eval_tokens=self._small.tokens_per_step(self._wanted.processes),
            log_every=1,
            **(_SELECTIVE if sharding == "fsdp" else _NONE),
        )
        if sharding == "ddp":
            self._train("whole", settings)
            self._losses["whole"] = self._last_loss("whole")
        killed = f"{sharding}-killed"
        step = self._train(killed, settings, kill=True)
        self._train(killed, settings, attempt=2)
        loss = self._last_loss(killed)
        if "whole" not in self._losses:
            raise Failed("no run to compare it with: ddp failed")
        off = abs(loss / self._losses["whole"] - 1)
        text = (
            f"{_some_ranks(self._wanted.processes)}, killed at step {step} of {self._steps} "
            f"and resumed: "
            f"loss {loss:.4f}, {off:.1e} from the run that was not"
        )
        if not off <= SAME_LOSS[self._wanted.device]:
            raise Failed(text)
        seconds = [
            float(line["step_seconds"])
            for line in self._lines(killed)
            if line.get("kind") == "train" and line.get("step_seconds")
        ]
        return text, {"step_s": statistics.median(seconds), "steps": len(seconds)}

    def _train(
        self, name: str, settings: PhaseRecipe, *, attempt: int = 1, kill: bool = False
    ) -> int:
        """One attempt at ``settings`` in the folder ``name``; with ``kill``, until it has a
        checkpoint. Returns its last step."""
        out = self._folder / name
        out.mkdir(exist_ok=True)
        job = PhaseJob(
            run_id="smoke", phase=settings.phase, settings=settings.to_json(),
            data_dir=str(self._data()), out_dir=str(out), processes=self._wanted.processes,
        )  # fmt: skip
        path = out / contract.JOB_NAME
        path.write_text(contract.dump(job), encoding="utf-8")
        limit_s = max(1.0, self._until - time.monotonic())
        environment = {
            **self._environment,
            ENV_JOB: str(path),
            ENV_ATTEMPT: str(attempt),
            ENV_DEADLINE_AT: repr(time.time() + limit_s),
        }
        with open(out / "train.log", "ab") as log:
            child = subprocess.Popen(
                self._words("-m", "model.train"), env=environment, cwd=out,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                while child.poll() is None:
                    if time.monotonic() >= self._until:
                        raise Failed(f"{name}: not within {limit_s:.0f} s")
                    if kill and _has_checkpoint(out):
                        return self._last_step(name)
                    time.sleep(_POLL_S)
            finally:
                _kill(child)
        beat = _beat(out / contract.HEARTBEAT_NAME)
        if beat is None or beat.outcome != "finished":
            said = beat.message if beat is not None and beat.message else ""
            if beat is not None and beat.outcome == "bad_config":
                raise NotHere(said.partition(". Next: ")[0])
            log_text = (out / "train.log").read_text(errors="replace")
            raise Failed(f"{name}: {said or _last_words(log_text) or 'it gave no reason'}")
        if kill:
            raise Failed(f"{name}: it ended before it could be killed")
        return self._last_step(name)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / name / contract.METRICS_NAME
        return list(parse_lines(path.read_bytes().splitlines())) if path.exists() else []

    def _last_step(self, name: str) -> int:
        steps = [int(line["step"]) for line in self._lines(name) if line.get("kind") == "train"]
        return max(steps, default=0)

    def _last_loss(self, name: str) -> float:
        found = [
            float(line["loss"])
            for line in self._lines(name)
            if line.get("kind") == "train" and line.get("step") == self._steps
        ]
        if not found:
            raise Failed(f"{name}: no loss of step {self._steps} was logged")
        return found[-1]

    def _data(self) -> Path:
        """Made-up sentences, prepared for the small shape."""
        folder = self._folder / "data"
        if self._small.rows == SEGMENTS:
            raise NotHere("its data are questions with answers, and none are made up here")
        if self._small.file_layout:
            raise NotHere(f"its data are {self._small.file_layout}, and none are made up here")
        if not folder.exists():
            text = self._folder / "text.txt"
            text.write_text(_sentences(), encoding="utf-8")
            settings = self._folder / "small.json"
            settings.write_text(json.dumps(self._small.to_json()), encoding="utf-8")
            self._run(
                sys.executable,
                "-m",
                "model.smoke",
                "--data",
                str(folder),
                str(text),
                str(settings),
            )
        return folder


_NONE: Mapping[str, Any] = {"activation_checkpointing": False, "selective_checkpointing": False}
_FULL: Mapping[str, Any] = {"activation_checkpointing": True, "selective_checkpointing": False}
_SELECTIVE: Mapping[str, Any] = {"activation_checkpointing": True, "selective_checkpointing": True}


def _sentences() -> str:
    """About 2 MB, always the same: a vocabulary that some thousand byte pairs are found in."""
    chosen = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chosen.choices(letters, k=chosen.randint(2, 9))) for _ in range(6000)]
    lines = (" ".join(chosen.choices(words, k=chosen.randint(5, 14))) for _ in range(32_000))
    return ".\n".join(lines) + ".\n"


def _some_ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _kill(child: subprocess.Popen[Any]) -> None:
    """It, and all that it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)


def _last_words(err: str) -> str:
    """The line that says why: the error of ours, or a traceback's last, which may be a rank's."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("error: ")]
    kinds = [line for line in lines if _RAISED.match(line) and ".elastic." not in line]
    return (ours or kinds or lines or [""])[-1][:300]


def _has_checkpoint(out: Path) -> bool:
    return any((out / contract.CHECKPOINTS_DIR).glob(f"step-*/{MANIFEST_NAME}"))


def _beat(path: Path) -> Heartbeat | None:
    try:
        return load_heartbeat(path.read_bytes())
    except (OSError, ContractError):
        return None


def report(results: Sequence[CheckResult], folder: Path, reports: str) -> None:
    """Writes the results so far into ``folder``. Where the command is watched, each check is a step
    whose metric is how many have failed, and the last one's folder is kept like a checkpoint."""
    folder.mkdir(exist_ok=True)
    (folder / REPORT_NAME).write_text("[" + ",\n".join(map(contract.dump, results)) + "]\n")
    if not reports:
        return
    failed = sum(each.passed is False for each in results)
    lines = [{"step": len(results), "metrics": {"failed": failed}}]
    if len(results) == len(NAMES):
        lines.append({"checkpoint": folder.name, "step": len(results), "metric": failed})
    with open(reports, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def describe_machine() -> dict[str, Any]:
    """torch's version, and what it finds: processors or GPUs, and what of itself it lacks."""
    import torch

    cuda = torch.cuda.is_available()
    lacks = []
    for name in _OPERATORS:
        module, operator = name.split(".")
        if not hasattr(getattr(torch.ops, module), operator):
            lacks.append(name)
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        lacks.append("torch.distributed.fsdp.fully_shard")
    memory = min(
        (torch.cuda.mem_get_info(n)[1] for n in range(torch.cuda.device_count())), default=0
    )
    return {
        "torch": torch.__version__,
        "device": "cuda" if cuda else "cpu",
        "name": torch.cuda.get_device_name(0) if cuda else "processor core",
        "count": torch.cuda.device_count() if cuda else len(os.sched_getaffinity(0)),
        "memory_gb": memory / 1e9 if cuda else 0.0,
        "lacks": lacks,
    }


def measure_links() -> dict[str, Any] | None:
    """Each rank's seconds for products of its own, and GB/s of a sum over all of them; None on the
    ranks that do not say so. A processor's are its own time: other programs' share is no fault."""
    import torch
    import torch.distributed as dist

    from model.machine.distributed import join_world

    world = join_world()
    kind, n = world.device.type, _SIDE[world.device.type]
    matrix = torch.randn(n, n, device=world.device)
    values = torch.ones(_SUM_MB[kind] * (1 << 20) // 4, device=world.device)

    def seconds(act: Callable[[], object], clock: Callable[[], float]) -> float:
        times = []
        for _ in range(_TIMED):
            if kind == "cuda":
                torch.cuda.synchronize()
            began = clock()
            act()
            if kind == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - began)
        return min(times)

    own_clock = time.perf_counter if kind == "cuda" else time.process_time
    own = seconds(lambda: matrix @ matrix, own_clock)
    world.part()
    took = seconds(lambda: dist.all_reduce(values), time.perf_counter)
    every = [float(each) for each in world.gather(torch.tensor([own], dtype=torch.float64))]
    world.part()
    if not world.is_main:
        return None
    return {"seconds": every, "gb_s": values.numel() * 4 / 1e9 / took}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.smoke", description=__doc__)
    parser.add_argument("checks", nargs="?", type=Path, help="what to check, as JSON")
    parser.add_argument("--machine", action="store_true", help="print what torch finds here")
    parser.add_argument("--rank", action="store_true", help="be one rank of those that are timed")
    parser.add_argument(
        "--data", nargs=3, metavar=("FOLDER", "TEXT", "SETTINGS"), help="prepare a text"
    )
    chosen = parser.parse_args(arguments)

    def command() -> None:
        if chosen.machine:
            print(json.dumps(describe_machine()), flush=True)
        elif chosen.rank:
            if (found := measure_links()) is not None:
                print(json.dumps(found), flush=True)
            # Taking down the process groups' threads may abort a rank that has done its work.
            os._exit(0)
        elif chosen.data:
            from model.preparing.whole import prepare

            folder, text, settings = chosen.data
            prepare(
                text, PhaseRecipe.from_json(json.loads(Path(settings).read_bytes())), Path(folder)
            )
        elif chosen.checks is None:
            raise UsageError("there is nothing to check", next_step="python -m model.smoke CHECKS")
        else:
            try:
                wanted = load_checks(chosen.checks.read_bytes())
                deadline_at = float(os.environ.get(ENV_DEADLINE_AT, "inf"))
                with tempfile.TemporaryDirectory(prefix="trmcloud-smoke-") as folder:
                    checks = Checks(wanted, Path(folder), os.environ, deadline_at)
                    results: list[CheckResult] = []
                    for result in checks.make():
                        print(line_of(result), flush=True)
                        results.append(result)
                        report(results, Path.cwd() / REPORT_DIR, os.environ.get(ENV_REPORTS, ""))
            except (OSError, ValueError, TypeError) as error:
                raise UsageError(
                    f"the checks cannot be read: {error}", where=str(chosen.checks)
                ) from None

    return run_command(command)


if __name__ == "__main__":
    raise SystemExit(main())
