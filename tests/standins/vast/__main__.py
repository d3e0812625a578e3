"""python -m tests.standins.vast --folder DIR: a vast.ai to try trmcloud against."""

from __future__ import annotations

import argparse
import contextlib
import signal
from pathlib import Path

from tests.standins.runpod.machines import no_namespaces
from tests.standins.vast.standin import API_KEY, running


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.standins.vast", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--folder", type=Path, required=True, help="where instances keep files")
    parser.add_argument("--api-key", default=API_KEY)
    parser.add_argument("--credit", type=float, default=100.0, help="USD")
    parser.add_argument("--load-s", type=float, default=0.0, help="from create until it runs")
    parser.add_argument("--on-paper", action="store_true", help="instances run nothing")
    chosen = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with running(
        chosen.folder,
        real_pods=not (chosen.on_paper or no_namespaces()),
        api_key=chosen.api_key,
        credit=chosen.credit,
        port=chosen.port,
    ) as standin:
        standin.set(load_s=chosen.load_s)
        print(standin.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
