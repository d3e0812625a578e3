"""One process that asks a server at loopback for as long as it is told, by the budget of a home.

    python -m tests.contract.request_process URL HOME lists|ends SECONDS

Prints a line for each request: how long it took, in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from trmcloud.adapters.request_budget import RequestBudget
from trmcloud.core.catalog.providers import RequestLimit
from trmcloud.core.errors import ProviderError
from trmcloud.providers.vast.api import VastApi

LIMIT = RequestLimit(20, 2.0)


def main(url: str, home: str, kind: str, seconds: str) -> None:
    budget = RequestBudget(Path(home) / "requests.json", [LIMIT])
    api = VastApi("key", url, bound_s=5.0, budget=budget)
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            if kind == "ends":
                api.destroy("7")
            else:
                api.instances()
        except ProviderError as error:
            print(error, file=sys.stderr)
        print(time.monotonic() - began, flush=True)
        if kind == "ends":
            time.sleep(0.5)


if __name__ == "__main__":
    main(*sys.argv[1:])
