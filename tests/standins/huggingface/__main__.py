"""python -m tests.standins.huggingface --folder DIR: a Hub with jobs to try trmcloud against."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from pathlib import Path

from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.machines import JobMachines
from tests.standins.huggingface.server import serving
from tests.standins.runpod.machines import no_namespaces


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.standins.huggingface", description=__doc__
    )
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--folder", type=Path, required=True, help="where jobs keep their files")
    parser.add_argument("--scheduling-s", type=float, default=1.0, help="until a job starts")
    parser.add_argument("--on-paper", action="store_true", help="jobs run nothing")
    chosen = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    real = None if chosen.on_paper or no_namespaces() else JobMachines(chosen.folder, time.time)
    hub = Hub(time.time, real)
    hub.knobs.scheduling_s = chosen.scheduling_s
    if real is not None:
        real.hub = hub
    with serving(hub, chosen.port) as standin:
        if real is not None:
            real.api_url = standin.url
        print(standin.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
