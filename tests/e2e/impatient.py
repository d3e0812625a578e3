"""``trmcloud`` with limits of seconds where providers' traits have minutes: how long a pod must be
missing from RunPod's lists, how long it may take to end there, how long its bill is waited for, and
how long a trainer on this machine may stand still.

python -m tests.e2e.impatient status
"""

from __future__ import annotations

from dataclasses import replace

import trmcloud.providers.registry  # noqa: F401  fills the traits
from trmcloud.cli.main import main
from trmcloud.core.catalog import providers

ABSENT_S = 2.0
KILL_LATENCY_S = 10.0
BILL_WAIT_S = 2.0
HANG_AFTER_S = 20.0


def shorten() -> None:
    traits = providers.TRAITS
    traits["runpod"] = replace(
        traits["runpod"],
        absence=replace(traits["runpod"].absence, missing_s=ABSENT_S, deleted_s=ABSENT_S),
        kill_latency_s=KILL_LATENCY_S,
        bill_wait_s=BILL_WAIT_S,
    )
    traits["local"] = replace(traits["local"], hang_after_s=HANG_AFTER_S)


if __name__ == "__main__":
    shorten()
    main()
