"""The further machines of a pod that has several: the ways there, and their agents' last word.

The first one's agent speaks for the pod. That another cannot be trained on, or that its part has
failed, is told in its place: the first would wait for it until it took its own trainer for hung.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import LinkError, Outcome

ASK_EVERY_S = 10.0
_TIMEOUT_S = 5.0
_PATIENCE_S = 30.0
"""The first machine's own account of a failure is the better one: it gets so long to come."""
HEAD_LOST_S = 120.0
"""A first machine that does not answer for so long is not waited for: what a restart may take."""
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

    def instead(self, pod_name: str, folder: str, silent_s: float) -> contract.AgentReport | None:
        """What another machine says once the first one has been silent for so long that it is lost:
        that its own part has failed, as all of theirs must have. None where there is no such word.

        Nothing is left to be pulled: checkpoints lay on the first one's disk.
        """
        if silent_s < HEAD_LOST_S:
            return None
        asked = self._word(pod_name, folder)
        if asked.word is None:
            return None
        said = contract.strip_control(asked.word.message)
        message = f"the first machine is lost; machine {asked.machine}: {said}"
        return replace(asked.word, message=message, kept=(), uploaded=())

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
