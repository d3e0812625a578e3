"""The process beside one interval of a trial where its executor is on another machine.

It starts the trial's process, passes on what the executor asks for by files of the trial's folder,
kills everything of the interval at its limit, or when the process that started it is gone. So an
interval costs no more than it may, whichever of the machines between executor and trial is lost.

    python -m trmcloud.pod.sweep.keeper ORDER PARENT

ORDER is the file of an ``Order``, PARENT the pid of the process that starts this one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.codec import from_json, to_json
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.job.process import kill_all
from trmcloud.pod.machine import processes

KEEPER = "trmcloud.pod.sweep.keeper"
_TICK_S = 0.1
_KILL_WITHIN_S = 10.0
_MOST_ORDER_BYTES = 1 << 20


class Order(Value):
    """One interval: what is started, in which folder, and when it is killed at the latest. It has
    the trial's environment, so that its file is the user's alone."""

    attempt: int
    words: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    kill_after_s: float | None = None


def write_order(order: Order) -> Path:
    """Write the order into its trial's folder; return the file.

    Raises:
        OSError: it cannot be written.
    """
    path = order_file(Path(order.folder), order.attempt)
    write_atomic(path, json.dumps(to_json(order)), mode=0o600)
    return path


def read_order(path: Path) -> Order:
    """
    Raises:
        OSError, ValueError: there is no such file here, or it is no order.
    """
    text = read_small(path, _MOST_ORDER_BYTES)
    if text is None:
        raise FileNotFoundError(f"{path} is not there")
    try:
        return from_json(Order, json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no order: {error!r}") from error


def order_file(folder: Path, attempt: int) -> Path:
    return folder / f"order-{attempt}.json"


def land_file(folder: Path, attempt: int) -> Path:
    """Return the file that asks an interval to land."""
    return folder / f"land-{attempt}"


def kill_file(folder: Path, attempt: int) -> Path:
    """Return the file that asks for the end of an interval and of all its processes."""
    return folder / f"kill-{attempt}"


def keep(order: Order, parent: int) -> int:
    """Run one interval to its end; return its exit code, 128 + N for a signal N.

    Raises:
        OSError: it cannot be started.
    """
    processes.adopt_orphans()
    folder = Path(order.folder)
    kill_at = time.monotonic() + (order.kill_after_s or math.inf)
    words = order.words
    if not os.path.exists(words[0]):  # this machine has its Python elsewhere
        words = (sys.executable, *words[1:])
    with open(folder / contract.TRAIN_LOG_NAME, "ab") as log:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=order.environment,
            cwd=folder,
            start_new_session=True,
        )
    landing = False
    try:
        while (code := child.poll()) is None:
            if os.getppid() != parent or time.monotonic() >= kill_at:
                break
            if kill_file(folder, order.attempt).exists():
                break
            if not landing and land_file(folder, order.attempt).exists():
                landing = True
                child.send_signal(signal.SIGTERM)
            time.sleep(_TICK_S)
    finally:
        kill_all(os.getpid(), _KILL_WITHIN_S)
    if code is None:
        code = -signal.SIGKILL
    return code if code >= 0 else 128 - code


def environment_here(order: Order, own: Mapping[str, str]) -> Order:
    """Return the order with what ``own``, this machine's environment, decides: its GPUs."""
    gpus = {key: own[key] for key in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS") if key in own}
    return replace(order, environment={**order.environment, **gpus})


def main() -> None:
    order = environment_here(read_order(Path(sys.argv[1])), os.environ)
    sys.exit(keep(order, int(sys.argv[2])))


if __name__ == "__main__":
    main()
