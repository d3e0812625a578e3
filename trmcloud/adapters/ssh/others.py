"""The further machines of a pod that has several: the ways there, and their agents' last word.

The first one's agent speaks for the pod. That another cannot be trained on, or that its part has
failed, is told in its place: the first would wait for it until it took its own trainer for hung.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core import pod_contract as contract
from trmcloud.core.errors import LinkError
from trmcloud.core.outcome import Outcome

ASK_EVERY_S = 10.0
_TIMEOUT_S = 5.0
_PATIENCE_S = 30.0
"""The first machine's own account of a failure is the better one: it gets so long to come."""
_TELLING = (Outcome.UNFIT.value, Outcome.FAILED.value)


@dataclass
class _Asked:
    at: float
    word: contract.AgentReport | None = None
    machine: int = 0


class Others:
    """``connections`` gives one to each further machine of a pod; ``now`` is epoch seconds."""

    def __init__(
        self, connections: Callable[[str], Sequence[SshConnection]], now: Callable[[], float]
    ) -> None:
        self._connections, self._now = connections, now
        self._asked: dict[str, _Asked] = {}

    def told(self, report: contract.AgentReport, folder: str) -> contract.AgentReport:
        """``report``, which is the first machine's, or what it must be taken for. ``folder`` is
        the pod's own, on each."""
        if report.result is not None:
            return report
        word = self._word(report.pod_name, folder)
        if word.word is None:
            return report
        if word.word.result == Outcome.FAILED.value and self._now() - word.at < _PATIENCE_S:
            return report
        message = contract.strip_control(word.word.message)
        return replace(
            report, result=word.word.result, message=f"machine {word.machine}: {message}"
        )

    def _word(self, pod_name: str, folder: str) -> _Asked:
        asked = self._asked.get(pod_name)
        if asked is not None and (asked.word or 0 <= self._now() - asked.at < ASK_EVERY_S):
            return asked
        asked = self._asked[pod_name] = _Asked(self._now())
        path = shlex.quote(f"{folder}/{contract.REPORT_NAME}")
        try:
            for machine, connection in enumerate(self._connections(pod_name), 1):
                answer = connection.run(
                    f"head -c {contract.MAX_JSON_BYTES} {path} 2>/dev/null", timeout_s=_TIMEOUT_S
                )
                word = contract.load_report(answer.out) if answer.out else None
                if word is not None and word.pod_name == pod_name and word.result in _TELLING:
                    asked.word, asked.machine = word, machine
                    break
        except (LinkError, contract.ContractError):
            pass  # no word; the first machine's own will do until the next time
        return asked
