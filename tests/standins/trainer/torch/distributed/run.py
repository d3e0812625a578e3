"""As much of torchrun as the agent uses: N ranks of a module; one that fails ends all."""

import argparse
import os
import signal
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--local_addr")
    parser.add_argument("--nproc_per_node", type=int, default=1)
    parser.add_argument("-m", dest="module", required=True)
    arguments = parser.parse_args()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", arguments.module],
            env={**os.environ, "LOCAL_RANK": str(rank), "RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(arguments.nproc_per_node)
    ]
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    while True:
        codes = [rank.poll() for rank in ranks]
        if told or any(code not in (None, 0) for code in codes):
            for rank in ranks:
                rank.terminate()
            return 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
