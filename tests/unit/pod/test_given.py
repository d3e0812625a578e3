"""Values that a command's pod was given are deleted at its end, and those of pods long past."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from trmcloud.core.contract.command import GIVEN_NAME
from trmcloud.core.contract.pod_contract import PODS_DIR, PodName

ROOT = Path(__file__).resolve().parents[3]
WATCH = """
import sys
from pathlib import Path
from trmcloud.pod.agent.watchdog_process import Watch
Watch(Path(sys.argv[1]), sys.argv[2], [15]).run()
"""


def test_a_pods_end_deletes_what_it_was_given_and_what_a_volume_kept(tmp_path: Path) -> None:
    """A pod whose machine was lost has left its values on a network volume."""
    now = int(time.time())
    own, lost, live = (
        str(PodName("0a1b2c3d", run, 1, hard_stop_at))
        for run, hard_stop_at in (("r1", now + 600), ("r2", now - 5), ("r3", now + 600))
    )
    given = {name: tmp_path / PODS_DIR / name / GIVEN_NAME for name in (own, lost, live)}
    for path in given.values():
        path.parent.mkdir(parents=True)
        path.write_text('{"TOKEN": "open-sesame"}')
    subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path), own], cwd=ROOT, check=True, timeout=60
    )
    assert not given[own].exists()
    assert not given[lost].exists()
    assert given[live].exists(), "another pod of this volume still needs it"
    assert (given[own].parent / "ended.json").exists()
