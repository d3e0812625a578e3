"""What a simulated pod's agent has ever told anybody: what others may know, by the truth."""

from __future__ import annotations

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import PhaseState
from trmcloud.core.contract.trainer_contract import DONE


class Said:
    """Everything that a pod's own agent has ever said, written or not."""

    def __init__(self) -> None:
        self.results: set[str] = set()
        self.finished: set[str] = set()
        self._phases: set[tuple[str, str, int | None]] = set()
        self._gates: set[tuple[str, bool]] = set()
        self._last: object = None
        self.uploaded: dict[str, float] = {}
        """Of each phase the best that was ever told to be in the bucket."""

    def hear(self, report: contract.AgentReport) -> None:
        for kept in report.uploaded:
            if kept.val_bpb is not None:
                best = min(kept.val_bpb, self.uploaded.get(kept.phase, kept.val_bpb))
                self.uploaded[kept.phase] = best
        if report.result is not None:
            self.results.add(report.result)
        if report.phases is self._last:
            return
        self._last = report.phases
        for phase in report.phases:
            if phase.state is PhaseState.ENDED:
                self._phases.add((phase.name, phase.outcome or "lost", phase.step))
                if phase.outcome in DONE:
                    self.finished.add(phase.name)
            if phase.gate is not None:
                self._gates.add((phase.name, phase.gate.passed))

    def phase(self, name: str, outcome: str, step: int | None) -> bool:
        return (name, outcome, step) in self._phases

    def gate(self, name: str, passed: bool) -> bool:
        return (name, passed) in self._gates
