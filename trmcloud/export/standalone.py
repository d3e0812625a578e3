"""The commands of an exported script: a launch's watchdog and agent, without a controller.

    python3 -m trmcloud.export.standalone begin --root DIR --spec FILE [--again]

``begin`` counts the deadline from the run's first start in ``DIR`` and starts a watchdog that
outlives the script. The script then fetches what is missing (``environment`` waits for the agent's
part of that), says ``ready``, and looks on with ``follow``; the agent trains, lands and stops as it
does on a pod that was launched. Exit codes are those of ``trmcloud launch``.

Everything stands in files below one folder, so that each step of the script can be a command of its
own, and a second start of the script finds what the first one did.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trmcloud.core.codec import from_json
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.gate import StopRules
from trmcloud.core.contract.manifest import MANIFEST_NAME
from trmcloud.core.contract.trainer_contract import DONE, PhaseJob
from trmcloud.core.control.events import PhaseEnded
from trmcloud.core.control.reason import MEANINGS
from trmcloud.core.control.renting import make_lease, phases_to_run
from trmcloud.core.control.run_state import Generation, RunState
from trmcloud.core.durations import duration
from trmcloud.core.errors import ConflictError, Outcome, TrmcloudError, UsageError
from trmcloud.core.spec.plan import Candidate, Plan, divide_among_nodes, plan_from_json
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.core.spec.sweep_wish import leased_command
from trmcloud.core.sweep.job import SWEEP_NAME, SweepJob, dump_job
from trmcloud.core.values import Value
from trmcloud.io.families import FamilyFolders
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.agent.attempts import (
    PAID,
    WALL,
    StandaloneAttempt,
    StandaloneAttempts,
    ended_at,
    read_lives,
    report_of,
    used_s,
    write_lives,
)
from trmcloud.pod.agent.follow import Follower
from trmcloud.pod.agent.nodes import Nodes, for_nodes, write_nodes
from trmcloud.pod.agent.terminate import SHUTDOWN, TERMINATION_NAME, SelfEnd, ways_of
from trmcloud.pod.agent.watchdog import (
    HARD_STOP,
    POD_NAME,
    TERMINATED,
    Watch,
    listen,
    spawn_watchdog,
    watchdog_of,
)
from trmcloud.pod.machine import processes
from trmcloud.pod.machine.environment import agent_environment, pod_environment, self_ends
from trmcloud.pod.machine.hardware import load_check
from trmcloud.pod.machine.prepare import PREPARED_NAME
from trmcloud.pod.storage.checkpoint_copy import ENV_KEEP, CheckpointCopier

SETTINGS_NAME = "settings.json"
"""The first phase's settings: what shapes the prepared data."""
_PHASES_NAME = "phases.json"
_SWEEP_DIR = "sweep"
_LOCK_NAME = ".standalone.lock"
_POLL_S = 0.25
_KEEP_EVERY_S = 10.0
_START_S = 30.0
_DONE_FOR_GOOD = (Outcome.FINISHED.value, Outcome.GATE_FAILED.value)


class Spec(Value):
    """The sources of the script: the plan as it was frozen, the hardware that must be found on the
    machine, and the clock that counts its time."""

    plan: Plan
    check: Mapping[str, Any]
    clock: str
    nodes: int = 1
    sweep: SweepJob | None = None
    """Of a script that searches settings."""

    @property
    def candidate(self) -> Candidate:
        chosen = self.plan.recommended
        assert chosen is not None
        return divide_among_nodes(chosen, self.nodes)


def read_spec(path: Path, nodes: int = 1) -> Spec:
    """The spec at ``path``, for this many machines.

    Raises:
        UsageError: it is not what an export writes.
    """
    try:
        data = json.loads(read_small(path) or "null")
        sweep = from_json(SweepJob, data["sweep"]) if data.get("sweep") else None
        spec = Spec(plan_from_json(data["plan"]), data["check"], data["clock"], nodes, sweep)
        load_check(json.dumps(spec.check))
        if data["version"] != 1 or spec.clock not in (WALL, PAID) or spec.plan.recommended is None:
            raise ValueError("not one of this version")
        return spec
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"the run's settings cannot be read: {error}",
            where=str(path),
            next_step="export the script again",
        ) from None


class RunEnded(Exception):
    """The run ended while something was waited for."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome, self.why = outcome, why


class StandaloneRun:
    """The run in ``root``. ``now`` is epoch seconds; ``token`` makes the run's names (n hex digits
    each time it is asked)."""

    def __init__(
        self,
        root: Path,
        *,
        now: Callable[[], float] = time.time,
        token: Callable[[int], str] = lambda digits: secrets.token_hex(digits // 2),
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self.root = root
        self._now, self._token, self._say = now, token, say

    # -- beginning ----------------------------------------------------------------------------

    def begin(self, spec: Spec, *, again: bool) -> Outcome | None:
        """Start the run, or go on with it; None where it runs now, else how it had ended.

        Raises:
            ConflictError: the folder holds a run of another recipe.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            lives = read_lives(self.root)
            if lives is None:
                lives = StandaloneAttempts(
                    f"r-{self._token(6)}", self._token(8), spec.plan.spec.recipe
                )
            elif lives.recipe != spec.plan.spec.recipe:
                raise ConflictError(
                    f"this folder has a run of {lives.recipe}, not of {spec.plan.spec.recipe}",
                    where=str(self.root),
                    next_step="use another folder: RUN_DIR=…",
                )
            last = lives.last
            if last is not None and not self.over(last):
                self._say(f"{lives.run_id} is already running: showing its progress")
                return None
            if last is not None:
                ended = self.outcome(last)
                if ended.value in _DONE_FOR_GOOD:
                    self._say(f"{lives.run_id} had ended: {MEANINGS[ended]}")
                    return ended
            return self._start(spec, lives, again=again and last is not None)

    def _start(self, spec: Spec, lives: StandaloneAttempts, *, again: bool) -> Outcome | None:
        chosen, now = spec.candidate, self._now()
        ends = {life.number: ended_at(self.root, lives, life) for life in lives.lives}
        used = 0.0 if again else used_s(lives, ends, spec.clock, now)
        left_s = chosen.hard_stop_s - used
        number = len(lives.lives) + 1
        name = contract.PodName(lives.ledger, lives.run_id, number, int(now + left_s))
        generation = Generation(
            number=number,
            pod_name=str(name),
            provider=chosen.provider,
            candidate_id=chosen.id,
            rate=chosen.rate,
            soft_stop_at=now + left_s - chosen.landing_s,
            hard_stop_at=now + left_s,
            intended_at=now,
        )
        run = RunState(lives.run_id, phases=self._done(lives))
        lease = make_lease(
            run,
            chosen,
            generation,
            epoch=number,
            granted_at=now,
            stop=StopRules(spec.plan.spec.patience),
            set_by_hand=[key for key, _ in spec.plan.spec.overrides],
            command=leased_command(None) if spec.sweep is not None else None,
        )
        lease = for_nodes(lease, spec.nodes)
        if lease.ready_within_s:
            # Everything is fetched from here: only what is left to train in ends the waiting.
            lease = replace(lease, ready_within_s=max(1.0, lease.soft_stop_at - now))
        last = lives.last
        if last is not None and lease.soft_stop_at - now <= lease.min_useful_s:
            ended = self.outcome(last)
            self._say(
                f"{lives.run_id}: {duration(left_s)} are left of its "
                f"{duration(chosen.hard_stop_s)}, too little to train; --again gives the full "
                f"time, for up to {chosen.worst_case} more"
            )
            return ended
        life = StandaloneAttempt(number, str(name), now, again=again)
        pod_dir = self._pod_dir(life)
        pod_dir.mkdir(parents=True, exist_ok=True)
        write_atomic(pod_dir / contract.LEASE_NAME, contract.dump(lease))
        write_atomic(pod_dir / contract.CHECK_NAME, json.dumps(dict(spec.check)))
        names = [phase.name for phase in phases_to_run(run, chosen)]
        write_atomic(pod_dir / _PHASES_NAME, json.dumps(names))
        settings = chosen.phases[0].settings.to_json()
        write_atomic(self.root / SETTINGS_NAME, json.dumps(settings, indent=1))
        # Before anything runs: a start that is cut off here has used its time all the same.
        write_lives(self.root, lives.with_life(life))
        self._spawn(life, chosen)
        self._say(
            f"{lives.run_id}: stops and saves in {duration(lease.soft_stop_at - now)}, killed in "
            f"{duration(left_s)}"
            + (f", at most {chosen.worst_case}" if chosen.rate else "")
            + (f" on {spec.nodes} nodes together" if spec.nodes > 1 else "")
        )
        return None

    def _done(self, lives: StandaloneAttempts) -> Mapping[str, PhaseEnded]:
        """Phases that need not run again: finished, and where another follows, past their gate."""
        done = {}
        for life in lives.lives:
            report = report_of(self.root, life)
            rows = report.phases if report is not None else ()
            for index, row in enumerate(rows):
                passed = index + 1 == len(rows) or (row.gate is not None and row.gate.passed)
                if row.outcome in DONE and passed:
                    done[row.name] = PhaseEnded(
                        life.number, row.name, row.outcome, row.step, row.val_bpb, row.seconds
                    )
        return done

    def _spawn(self, life: StandaloneAttempt, chosen: Candidate) -> None:
        pod_dir = self._pod_dir(life)
        environment = {**os.environ, contract.ENV_POD: life.pod, "PYTHONUNBUFFERED": "1"}
        words = (
            *(sys.executable, "-m", "trmcloud.export.standalone", "guard"),
            *("--root", str(self.root), "--pod", life.pod),
        )
        record = {
            "created_at": life.started_at,
            "rate_usd_per_hour": chosen.rate.plain(),
            **spawn_watchdog(words, pod_dir, environment),
        }
        write_atomic(pod_dir / POD_NAME, json.dumps(record))

    def hard_stop_at(self) -> float:
        """Epoch seconds at which everything of the current life is killed."""
        return _read_lease(self._pod_dir(self._current()[1])).hard_stop_at

    # -- between ------------------------------------------------------------------------------

    def environment(self) -> str:
        """Wait until the agent has checked the machine and installed what it lacks; the folder that
        it installed into, or empty where nothing was missing.

        Raises:
            RunEnded: the run ended instead.
        """
        _, life = self._current()
        shown = ""
        give_up_at = time.monotonic() + _START_S
        while True:
            report = report_of(self.root, life)
            if report is None and time.monotonic() > give_up_at:
                raise TrmcloudError("its agent did not start", where=str(self._pod_dir(life)))
            if self.over(life):
                raise RunEnded(self.outcome(life), self.why(life))
            if report is not None and report.waiting not in ("checking", "installing"):
                break
            if report is not None and report.waiting != shown:
                shown = report.waiting
                self._say(f"{shown} …")
            time.sleep(_POLL_S)
        return self._note(life, PREPARED_NAME, "packages")

    def ready(self, spec: Spec, code: Path, data: Path, nodes: Nodes) -> None:
        """All is there: the agent may train. ``code`` holds the trainer, ``data`` prepared data."""
        lives, life = self._current()
        pod_dir = self._pod_dir(life)
        names = json.loads(read_small(pod_dir / _PHASES_NAME) or "[]")
        for phase in spec.candidate.phases:
            if phase.name not in names:
                continue
            out_dir = self.root / contract.RUNS_DIR / lives.run_id / phase.name
            out_dir.mkdir(parents=True, exist_ok=True)
            command, code_dir = None, ""
            if spec.sweep is not None:
                command, code_dir = leased_command(None), str(self._lay_sweep(spec.sweep))
            job = PhaseJob(
                run_id=lives.run_id,
                phase=phase.name,
                settings=phase.settings.to_json(),
                data_dir=str(data),
                out_dir=str(out_dir),
                processes=spec.candidate.gpus,
                command=command,
                code_dir=code_dir,
            )
            write_atomic(out_dir / contract.JOB_NAME, contract.dump(job))
        write_nodes(pod_dir, nodes)
        write_atomic(pod_dir / contract.STAGED_NAME, contract.dump(contract.StagedFiles(str(code))))

    def _lay_sweep(self, sweep: SweepJob) -> Path:
        """Write the terms of a sweep where its executor looks for them; return that folder."""
        folder = self.root / _SWEEP_DIR
        folder.mkdir(exist_ok=True)
        write_atomic(folder / SWEEP_NAME, dump_job(sweep))
        return folder

    def follow(self, kept: Path | None = None) -> Outcome:
        """Show what agent and trainer write until the run has ended; how it ended. ``kept``: where
        finished checkpoints are copied meanwhile."""
        lives, life = self._current()
        run_dir = self.root / contract.RUNS_DIR / lives.run_id
        # A queue's or a cloud's log is a file: without flushing it shows nothing for minutes.
        follower = Follower(self._pod_dir(life), run_dir, lambda line: print(line, flush=True))
        keeper = CheckpointCopier(run_dir, kept, self._say) if kept is not None else None
        keep_at = 0.0
        while not self.over(life):
            follower.show()
            if keeper is not None and time.monotonic() >= keep_at:
                keeper.copy_new()
                keep_at = time.monotonic() + _KEEP_EVERY_S
            time.sleep(_POLL_S)
        follower.show()
        if keeper is not None:
            keeper.copy_new()
        return self.outcome(life)

    def land(self, reason: str) -> None:
        """Ask the agent to evaluate, save and end."""
        _, life = self._current()
        orders = contract.Orders(life.number, land=True, reason=reason)
        write_atomic(self._pod_dir(life) / contract.ORDERS_NAME, contract.dump(orders))

    def give_up(self, why: str) -> None:
        """The script cannot go on: end the run at once."""
        with self._locked():
            lives, life = self._current()
            watchdog = self.watchdog(life)
            if watchdog is None:
                return
            write_lives(self.root, lives.gave_up(why))
            processes.send(*watchdog, signal.SIGTERM)

    # -- looking ------------------------------------------------------------------------------

    def watchdog(self, life: StandaloneAttempt) -> tuple[int, str] | None:
        """The life's watchdog where it lives: (pid, start time)."""
        found = watchdog_of(self._pod_dir(life))
        return found if found is not None and processes.alive(*found) else None

    def over(self, life: StandaloneAttempt) -> bool:
        if (self._pod_dir(life) / contract.ENDED_NAME).exists():
            return True
        return self.watchdog(life) is None

    def outcome(self, life: StandaloneAttempt) -> Outcome:
        """Return the outcome of a life that is over."""
        if life.gave_up:
            return Outcome.FAILED
        report = report_of(self.root, life)
        with contextlib.suppress(ValueError):
            if report is not None and report.result is not None:
                return Outcome(report.result)
        return {HARD_STOP: Outcome.KILLED, TERMINATED: Outcome.STOPPED}.get(
            self._note(life, contract.ENDED_NAME, "reason"), Outcome.LOST
        )

    def why_last(self) -> str:
        return self.why(self._current()[1])

    def why(self, life: StandaloneAttempt) -> str:
        report = report_of(self.root, life)
        said = report.message if report is not None else ""
        return contract.strip_control(life.gave_up or said)

    def _note(self, life: StandaloneAttempt, name: str, key: str) -> str:
        """Return a value of one of the life's JSON files; empty where it has none."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(read_small(self._pod_dir(life) / name) or "null")[key])
        return ""

    def _current(self) -> tuple[StandaloneAttempts, StandaloneAttempt]:
        lives = read_lives(self.root)
        if lives is None or lives.last is None:
            raise ConflictError("no run was started here", where=str(self.root))
        return lives, lives.last

    def _pod_dir(self, life: StandaloneAttempt) -> Path:
        return self.root / contract.PODS_DIR / life.pod

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One start at a time in one folder."""
        with open(self.root / _LOCK_NAME, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _read_lease(pod_dir: Path) -> contract.Lease:
    return contract.load_lease(read_small(pod_dir / contract.LEASE_NAME) or "")


_FAMILIES = Path(__file__).resolve().parents[2] / "model" / "families"
ENV_AT_END = "TRMCLOUD_AT_END"
"""The action on the machine once everything is done: none, shutdown, or the provider whose way to
end it is used."""
UNTIL_HARD_STOP = "hard-stop"
"""In place of seconds to linger: what was saved may be fetched until then. Where nothing was, the
machine is of no more use."""

_LINGER_S = 15.0


def guard(root: Path, pod_name: str) -> None:
    """Be the run's first process until its end; then do with the machine what was asked for."""
    told = listen()
    environment = pod_environment(os.environ)
    watch = Watch(root, pod_name, told, environment=agent_environment(environment, pod_name))
    why = "its watchdog failed once"
    with contextlib.suppress(Exception):
        why = watch.run_on(_say)
    _say(f"the run ends: {why}")
    at_end = environment.get(ENV_AT_END) or "none"
    ways = ways_of({**environment, contract.ENV_PROVIDER: at_end})
    if not ways:
        return
    time.sleep(linger_s(root, pod_name, environment, time.time()))
    record = root / contract.PODS_DIR / pod_name / TERMINATION_NAME
    while True:
        with contextlib.suppress(Exception):
            SelfEnd(ways, record, why, tell=_say).run()
        time.sleep(1.0)


def linger_s(root: Path, pod_name: str, environment: Mapping[str, str], now: float) -> float:
    """Seconds in which the end can still be read by the user, and its results fetched."""
    wanted = environment.get(contract.ENV_LINGER_S, "")
    if wanted == UNTIL_HARD_STOP:
        with contextlib.suppress(ValueError):
            lease = _read_lease(root / contract.PODS_DIR / pod_name)
            run_dir = root / contract.RUNS_DIR / lease.run_id
            if any(run_dir.glob(f"*/{contract.CHECKPOINTS_DIR}/*/{MANIFEST_NAME}")):
                return max(_LINGER_S, lease.hard_stop_at - now)
        return _LINGER_S
    with contextlib.suppress(ValueError):
        return max(0.0, min(float(wanted), 3600.0))
    return _LINGER_S


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    FAMILIES.provide(FamilyFolders(lambda: _FAMILIES))
    run = StandaloneRun(asked.root.absolute())
    try:
        if asked.command == "guard":
            guard(run.root, asked.pod)
        elif asked.command == "begin":
            _check_at_end(os.environ)
            over = run.begin(read_spec(asked.spec, _nodes(asked).count), again=asked.again)
            print(f"running {run.hard_stop_at():.0f}" if over is None else f"over {over.exit_code}")
        elif asked.command == "environment":
            print(run.environment())
        elif asked.command == "ready":
            nodes = _nodes(asked)
            spec = read_spec(asked.spec, nodes.count)
            run.ready(spec, asked.code.absolute(), asked.data.absolute(), nodes)
        elif asked.command == "follow":
            kept = os.environ.get(ENV_KEEP)
            outcome = run.follow(Path(kept).expanduser() if kept else None)
            return _told(outcome, run.why_last(), run.root)
        elif asked.command == "land":
            run.land(asked.reason)
        elif asked.command == "give-up":
            run.give_up(asked.reason)
    except RunEnded as ended:
        return _told(ended.outcome, ended.why, run.root)
    except TrmcloudError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.next_step:
            print(f"  try: {error.next_step}", file=sys.stderr)
        return error.exit_code
    return 0


def _told(outcome: Outcome, why: str, root: Path) -> int:
    meaning = MEANINGS[outcome]
    if outcome is Outcome.FINISHED and (root / _SWEEP_DIR).is_dir():
        meaning = "the sweep has ended"
    print(f"{outcome.value}: {meaning}", file=sys.stderr)
    if why:
        print(f"  why: {why}", file=sys.stderr)
    print(f"  checkpoints are in {root / contract.RUNS_DIR}", file=sys.stderr)
    return outcome.exit_code


def _check_at_end(environment: Mapping[str, str]) -> None:
    at_end = environment.get(ENV_AT_END) or "none"
    known = ("none", SHUTDOWN, *self_ends())
    if at_end not in known:
        raise UsageError(
            f"{ENV_AT_END} must be one of {', '.join(known)}, not {at_end!r}",
            next_step=f"{ENV_AT_END}=shutdown powers this machine off at the end",
        )


def _nodes(asked: argparse.Namespace) -> Nodes:
    return Nodes(asked.nodes, asked.node, asked.head).check()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trmcloud.export.standalone")
    commands = parser.add_subparsers(dest="command", required=True)
    made = {
        name: commands.add_parser(name)
        for name in ("guard", "begin", "environment", "ready", "follow", "land", "give-up")
    }
    for command in made.values():
        command.add_argument("--root", type=Path, required=True)
    made["guard"].add_argument("--pod", required=True)
    for name in ("begin", "ready"):
        made[name].add_argument("--spec", type=Path, required=True)
        made[name].add_argument("--nodes", type=int, default=1)
        made[name].add_argument("--node", type=int, default=0)
        made[name].add_argument("--head", default="")
    made["begin"].add_argument("--again", action="store_true")
    made["ready"].add_argument("--code", type=Path, required=True)
    made["ready"].add_argument("--data", type=Path, required=True)
    for name in ("land", "give-up"):
        made[name].add_argument("--reason", default="asked to")
    return parser


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"{time.time():.3f} guard: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
