"""Notes of the pod's first process for the agent's report.

The report is the agent's own file while the agent lives. What its parent knows (whether sshd runs,
how the pod tried to end itself) goes into ``notes.json``; the agent adds it to each report, and
once the agent has ended the first process does so itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.values import replace
from trmcloud.io.files import load_small, write_atomic

_NAME = "notes.json"
_MAX_TEXT = 500


class BootMessages:
    """Short texts by topic. A disk that is full, or not there, must not stop who tells."""

    def __init__(self, pod_dir: Path) -> None:
        self._pod_dir = pod_dir
        self._texts: dict[str, str] = {}

    def tell(self, topic: str, text: str) -> None:
        text = contract.strip_control(text)[:_MAX_TEXT]
        if self._texts.get(topic) == text:
            return
        self._texts[topic] = text
        with contextlib.suppress(OSError):
            write_atomic(self._pod_dir / _NAME, json.dumps(self._texts), durable=False)

    def into_report(self) -> None:
        """Rewrite the report that an ended agent left, with these notes in it."""
        path = self._pod_dir / contract.REPORT_NAME
        report = load_small(path, contract.load_report)
        if report is not None:
            with contextlib.suppress(OSError):
                write_atomic(path, contract.dump(replace(report, notes=dict(self._texts))))


def read_notes(pod_dir: Path) -> Mapping[str, str]:
    """The notes of a pod; none where there are none that can be read."""
    data = load_small(pod_dir / _NAME, json.loads)
    items = data.items() if isinstance(data, dict) else ()
    return {key: text for key, text in items if isinstance(text, str)}
