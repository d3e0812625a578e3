"""python -m tests.standins.runpod --folder DIR: a RunPod to try trmcloud against."""

from __future__ import annotations

import argparse
import contextlib
import signal
from pathlib import Path

from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import API_KEY, running


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.standins.runpod", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--folder", type=Path, required=True, help="where pods keep their files")
    parser.add_argument("--api-key", default=API_KEY)
    parser.add_argument("--balance", type=float, default=100.0, help="USD")
    parser.add_argument("--spend-limit", type=float, default=80.0, help="USD an hour")
    parser.add_argument("--boot-s", type=float, help="from create until the container runs")
    parser.add_argument("--lifelike", action="store_true", help="delays and quotas like RunPod's")
    parser.add_argument("--on-paper", action="store_true", help="pods run nothing")
    chosen = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with running(
        chosen.folder,
        real_pods=not (chosen.on_paper or no_namespaces()),
        api_key=chosen.api_key,
        balance=chosen.balance,
        spend_limit=chosen.spend_limit,
        quotas=(60, 3000, 50_000) if chosen.lifelike else (6000, 300_000, 5_000_000),
        port=chosen.port,
    ) as standin:
        if chosen.lifelike:
            standin.control.knobs.lifelike()
        if chosen.boot_s is not None:
            share = chosen.boot_s / 2
            standin.control.set(provisioning_s=share, starting_s=share)
        print(standin.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
