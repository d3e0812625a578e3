"""Families of models as files: two threads of one process may ask for the same one at once."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from trmcloud.io.families import FamilyFolders

SLOW = """
import slow_family_gate as gate

gate.began.set()
gate.go.wait(30)


class Settings:
    pass
"""


def test_a_family_that_another_thread_is_loading_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = ModuleType("slow_family_gate")
    began, go = threading.Event(), threading.Event()
    vars(gate).update(began=began, go=go)
    monkeypatch.setitem(sys.modules, "slow_family_gate", gate)
    monkeypatch.delitem(sys.modules, "model.families.slow.plan", raising=False)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "plan.py").write_text(SLOW)
    one, other = FamilyFolders(lambda: tmp_path), FamilyFolders(lambda: tmp_path)
    asked = threading.Event()

    def ask_meanwhile() -> object:
        assert began.wait(30)
        asked.set()
        return other["slow"]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(lambda: one["slow"]), pool.submit(ask_meanwhile)
        assert asked.wait(30)
        assert not second.done() or second.exception() is None, second.exception()
        go.set()
        assert first.result(30) is second.result(30)
    monkeypatch.delitem(sys.modules, "model.families.slow.plan")
