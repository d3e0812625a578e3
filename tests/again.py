"""A second look at what failed, alone: ``make test`` ends with it.

    python -m tests.again

Five workers share two cores, and what starts real processes may wait in vain there for what comes
in time anywhere else. So at most three such tests are run once more, one after another, with the
machine to themselves. Each that passes then is named as unsteady, for somebody to mend; one that
fails again has failed. What only computes comes to the same end each time, and more than three are
no accident: neither gets a second look.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.scheduling import starts_processes

_ROOT = Path(__file__).resolve().parents[1]
_FAILED = _ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
MOST = 3


def judged(
    failed: Sequence[str], passes: Callable[[str], bool], tell: Callable[[str], None]
) -> bool:
    """Whether all is well after a second look; ``passes`` runs a test by its id, alone."""
    settled = [nodeid for nodeid in failed if not starts_processes(nodeid)]
    if not failed or settled or len(failed) > MOST:
        tell(f"no second look: {len(failed)} failed, {len(settled)} of them start no process")
        return False
    again = [nodeid for nodeid in failed if not passes(nodeid)]
    for nodeid in failed:
        tell(f"{'FAILED AGAIN' if nodeid in again else 'UNSTEADY'} {nodeid}")
    return not again


def _passes_alone(nodeid: str) -> bool:
    return subprocess.run([sys.executable, "-m", "pytest", "-n", "0", nodeid]).returncode == 0


def main() -> int:
    failed = sorted(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    return 0 if judged(failed, _passes_alone, print) else 1


if __name__ == "__main__":
    sys.exit(main())
