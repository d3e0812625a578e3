"""A command's processes are found wherever they went, and not looked for where none was started."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.pod.job import offspring
from trmcloud.pod.job.process import Job


def test_a_child_of_a_child_in_a_session_of_its_own_is_found() -> None:
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '60'], start_new_session=True);"
        "print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= set(offspring.offspring(os.getpid()))
        assert offspring.kill_all(child.pid, 10.0)
    assert grandchild not in offspring.offspring(os.getpid())


def test_a_new_process_is_the_newest() -> None:
    before = offspring.newest()
    assert before is not None
    subprocess.run(["true"], check=True)
    assert offspring.newest() != before


@pytest.mark.parametrize("text", ["", "\n", "0.0 0.0 0.0 0/0 0\n", "0.1 0.1 0.1 1/2 x\n"])
def test_a_kernel_that_does_not_tell(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offspring, "open", lambda *a, **k: io.StringIO(text), raising=False)
    assert offspring.newest() is None


@pytest.mark.parametrize(
    ("newest", "probing", "looks"),
    [(["7", "7", "7"], None, 1), (["7", "8", "8"], None, 2), ([None] * 3, None, 3),
     (["7", "7", "7"], SimpleNamespace(look=len), 3)],
)  # fmt: skip
def test_all_processes_are_looked_through_only_where_one_was_started(
    newest: list[Any], probing: Any, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(newest)
    found: list[int] = []

    def look(root: int) -> dict[int, str]:
        found.append(root)
        return {}

    monkeypatch.setattr(offspring, "newest", lambda: next(told))
    monkeypatch.setattr(offspring, "offspring", look)
    job = SimpleNamespace(_newest=None, _looked_at=0.0, _probing=probing, _offspring={})
    began = time.monotonic()
    for second in range(3):
        Job._note_offspring(job, began + second)  # type: ignore[arg-type]
    assert len(found) == looks
    monkeypatch.setattr(offspring, "newest", lambda: newest[-1])
    Job._note_offspring(job, began + 60)  # type: ignore[arg-type]
    assert len(found) == looks + 1, "now and then in any case"
