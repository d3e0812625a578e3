"""The commands of an exported script: a launch's watchdog and agent, without a controller.

    python3 -m trmcloud.export.standalone begin --root DIR --spec FILE [--again]

``begin`` counts the deadline from the run's first start in ``DIR`` and starts a watchdog that
outlives the script. The script then fetches what is missing (``environment`` waits for the agent's
part of that), says ``ready``, and looks on with ``follow``; the agent trains, lands and stops as it
does on a pod that was launched. Exit codes are those of ``trmcloud launch``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import MANIFEST_NAME
from trmcloud.core.control.outcome_words import MEANINGS
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.core.outcome import Outcome
from trmcloud.core.spec.settings import FAMILIES
from trmcloud.export.standalone_run import Ended, Standalone, read_spec
from trmcloud.io.families import FamilyFolders
from trmcloud.io.files import read_small
from trmcloud.pod.agent.nodes import Nodes
from trmcloud.pod.agent.terminate import TERMINATION_NAME, Chain, ways_of
from trmcloud.pod.agent.watchdog_process import Watch, listen
from trmcloud.pod.machine.environment import for_trainers, pod_environment
from trmcloud.pod.storage.checkpoint_copy import ENV_KEEP

ENV_AT_END = "TRMCLOUD_AT_END"
"""What becomes of the machine once nothing more will happen: none, shutdown, runpod or skypilot."""
AT_ENDS = ("none", "shutdown", "runpod", "skypilot")
UNTIL_HARD_STOP = "hard-stop"
"""In place of seconds to linger: what was saved may be fetched until then. Where nothing was, the
machine is of no more use."""

_FAMILIES = Path(__file__).resolve().parents[2] / "model" / "families"
_LINGER_S = 15.0
_GUARD_TRIES = 3


def guard(root: Path, pod_name: str) -> None:
    """Be the run's first process until its end; then do with the machine what was asked for."""
    told = listen()
    environment = pod_environment(os.environ)
    watch = Watch(root, pod_name, told, environment=_agent_environment(environment, pod_name))
    why = "its guard failed"
    for left in reversed(range(_GUARD_TRIES)):
        try:
            why = watch.run()
            break
        except Exception as error:
            _say(f"the guard stumbled: {type(error).__name__}: {error}")
            watch.kill() if left else watch.end(why)
    _say(f"the run ends: {why}")
    at_end = environment.get(ENV_AT_END) or "none"
    ways = ways_of({**environment, contract.ENV_PROVIDER: at_end})
    if not ways:
        return
    time.sleep(linger_s(root, pod_name, environment, time.time()))
    record = root / contract.PODS_DIR / pod_name / TERMINATION_NAME
    while True:
        with contextlib.suppress(Exception):
            Chain(ways, record, why, tell=_say).run()
        time.sleep(1.0)


def _agent_environment(environment: Mapping[str, str], pod_name: str) -> dict[str, str]:
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **for_trainers(environment),
        contract.ENV_POD: pod_name,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "PYTHONUNBUFFERED": "1",
    }


def linger_s(root: Path, pod_name: str, environment: Mapping[str, str], now: float) -> float:
    """Seconds in which the end can still be read by whoever looks on, and its results fetched."""
    wanted = environment.get(contract.ENV_LINGER_S, "")
    if wanted == UNTIL_HARD_STOP:
        with contextlib.suppress(ValueError):
            lease = contract.load_lease(
                read_small(root / contract.PODS_DIR / pod_name / contract.LEASE_NAME) or ""
            )
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
    run = Standalone(asked.root.absolute())
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
    except Ended as ended:
        return _told(ended.outcome, ended.why, run.root)
    except TrmcloudError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.next_step:
            print(f"  try: {error.next_step}", file=sys.stderr)
        return error.exit_code
    return 0


def _told(outcome: Outcome, why: str, root: Path) -> int:
    print(f"{outcome.value}: {MEANINGS[outcome]}", file=sys.stderr)
    if why:
        print(f"  why: {why}", file=sys.stderr)
    print(f"  checkpoints lie below {root / contract.RUNS_DIR}", file=sys.stderr)
    return outcome.exit_code


def _check_at_end(environment: Mapping[str, str]) -> None:
    at_end = environment.get(ENV_AT_END) or "none"
    if at_end not in AT_ENDS:
        raise UsageError(
            f"{ENV_AT_END} is one of {', '.join(AT_ENDS)}, not {at_end!r}",
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
