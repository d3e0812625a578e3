"""``trmcloud`` that is killed by SIGKILL once a launch is on record, before it asks for a machine.

python -m tests.e2e.killed_launch launch …
"""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from trmcloud.cli.main import main
from trmcloud.operations.driving.drive import RunDriver


def _killed(*args: Any, **kwargs: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    setattr(RunDriver, "until", _killed)  # noqa: B010  mypy knows it as a method
    main()
