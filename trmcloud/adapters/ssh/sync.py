"""State of rented pods, kept here for local readers; further machines of one pod."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.records import whole
from trmcloud.core.contract.trainer_contract import load_heartbeat
from trmcloud.core.errors import CheckpointError, LinkError, Outcome
from trmcloud.core.spec.settings import PHASE_NAMES
from trmcloud.io.files import read_small, write_atomic

# The further machines of a pod that has several, and their agents' last reports.
#
# The first one's agent speaks for the pod. That another cannot be trained on, or that its part
# has failed, is reported in its place: the first would wait until it took its own trainer for hung.

ASK_EVERY_S = 10.0
_TIMEOUT_S = 5.0
_PATIENCE_S = 30.0
"""The first machine's own account of a failure is the better one: it gets so long to come."""
HEAD_LOST_S = 120.0
"""A first machine that does not answer for so long is not waited for: what a restart may take."""
_TELLING = (Outcome.UNFIT.value, Outcome.FAILED.value)


@dataclass
class _MachineAnswer:
    at: float
    word: contract.AgentReport | None = None
    machine: int = 0


class PeerMachines:
    """``connections`` gives one to each further machine of a pod; ``now`` is epoch seconds."""

    def __init__(
        self, connections: Callable[[str], Sequence[SshConnection]], now: Callable[[], float]
    ) -> None:
        self._connections, self._now = connections, now
        self._asked: dict[str, _MachineAnswer] = {}

    def judge(self, report: contract.AgentReport, folder: str) -> contract.AgentReport:
        """Return ``report``, the first machine's, with the result of another one where that failed.
        ``folder`` is the pod's own, on each."""
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
        """Return another machine's report once the first one has been silent for so long that it is
        lost: its own part has failed, as all of theirs must have. None where there is no such word.

        Nothing is left to be pulled: checkpoints lay on the first one's disk.
        """
        if silent_s < HEAD_LOST_S:
            return None
        asked = self._word(pod_name, folder)
        if asked.word is None:
            return None
        said = contract.strip_control(asked.word.message)
        message = f"the first machine was lost; machine {asked.machine}: {said}"
        return replace(asked.word, message=message, kept=(), uploaded=())

    def _word(self, pod_name: str, folder: str) -> _MachineAnswer:
        asked = self._asked.get(pod_name)
        if asked is not None and (asked.word or 0 <= self._now() - asked.at < ASK_EVERY_S):
            return asked
        asked = self._asked[pod_name] = _MachineAnswer(self._now())
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


# Reports, logs and metrics of a rented pod, kept where every local reader looks for them.
#
# One question brings all that changed since the last; the answer is lines of base64, each with a
# name that was asked for. Small records are written only after the contract's own loader has
# accepted them; logs and metrics grow by what is new, up to a cap, and their readers treat them
# as hostile; so many manifests are kept and no more. Nothing in an answer names a path here.

MANIFESTS_DIR = "manifests"
MAX_ANSWER_BYTES = 12 << 20
_MAX_NEW_BYTES = 1 << 20
_MAX_KEPT_BYTES = {
    contract.METRICS_NAME: contract.MAX_METRICS_BYTES,
    contract.TRAIN_LOG_NAME: 1 << 28,
}
MOST_MANIFESTS = 512
"""Of one phase: more than any recipe keeps, and few enough that a pod cannot fill a disk."""
MAX_MANIFESTS_BYTES = 32 << 20
_MOST_SENT = 16
"""Manifests of one phase in one answer."""
_MOST_LINES = 1 << 13
_OVERLAP = 256
_VERSION = re.compile(r"[0-9]{1,10}-[0-9]{1,12}")
_KEPT_MANIFEST = re.compile(r"(step-[0-9]{8})\.([0-9]+-[0-9]+)\.json")

_ASK = """
cd "$ROOT" 2>/dev/null || exit 0
plain() { [ -f "$1" ] && [ ! -L "$1" ] && [ -r "$1" ]; }
small() {
  plain "$2" && [ "$(wc -c < "$2")" -le 1048576 ] || return 0
  printf '%s ' "$1"; base64 < "$2" | tr -d '\\n'; echo
}
grown() {
  plain "$2" || return 0
  printf '%s %d ' "$1" "$(wc -c < "$2")"
  tail -c +$(( $3 + 1 )) "$2" | head -c "$4" | base64 | tr -d '\\n'; echo
}
manifests() {
  sent=0
  for path in "runs/$RUN/$1/checkpoints"/step-*/manifest.json; do
    plain "$path" || continue
    step=${path%/manifest.json}; step=${step##*/}
    version=$(stat -c '%s-%Y' "$path") || continue
    case " $KNOWN " in
      *" $1/$step.$version "*) echo "manifest/$1 $step $version" ;;
      *) [ $sent -lt $MOST ] && [ "$(wc -c < "$path")" -le 1048576 ] || continue
         sent=$(( sent + 1 ))
         printf '%s ' "manifest/$1 $step $version"; base64 < "$path" | tr -d '\\n'; echo ;;
    esac
  done
  echo "manifests/$1"
}
small agent "pods/$POD/agent.json"
"""


@dataclass
class Mirror:
    """The files of one pod and its run below ``home``."""

    home: Path
    pod_name: str
    run_id: str
    _again: set[str] = field(default_factory=set)
    """Files that are no longer what they were there: to be brought from their beginning."""

    def offsets(self) -> dict[str, int]:
        """From where each growing file is asked for, by its label."""
        return {
            f"{name}/{phase}": start
            for phase in PHASE_NAMES
            for name in _MAX_KEPT_BYTES
            if (start := self._start(phase, name)) is not None
        }

    def question(self, root: str, offsets: Mapping[str, int]) -> str:
        """The script that asks for all that is new, of growing files from ``offsets`` on."""
        lines = []
        for phase in PHASE_NAMES:
            lines.append(f"small heartbeat/{phase} runs/$RUN/{phase}/{contract.HEARTBEAT_NAME}")
            lines.append(f"manifests {phase}")
        for label, start in offsets.items():
            name, _, phase = label.partition("/")
            lines.append(f"grown {label} runs/$RUN/{phase}/{name} {start} {_MAX_NEW_BYTES}")
        known = " ".join(
            f"{phase}/{step}.{version}"
            for phase in PHASE_NAMES
            for step, version, _ in self._kept_manifests(phase)
        )
        values = {"ROOT": root, "POD": self.pod_name, "RUN": self.run_id, "KNOWN": known}
        values["MOST"] = str(_MOST_SENT)
        head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
        return head + _ASK + "\n".join(lines) + "\nexit 0\n"

    def take(self, answer: bytes, asked: Mapping[str, int]) -> contract.AgentReport | None:
        """Keep what came; the agent's report if one came that is this pod's and this run's.

        ``asked`` are the offsets of the question.
        """
        report: contract.AgentReport | None = None
        seen: dict[str, set[str]] = {}
        complete: set[str] = set()
        sent = dict.fromkeys(PHASE_NAMES, 0)
        for line in answer.decode("ascii", "replace").split("\n", _MOST_LINES)[:_MOST_LINES]:
            label, *words = line.split(" ")
            kind, _, phase = label.partition("/")
            if kind == "agent" and len(words) == 1:
                report = self._agent(words[0]) or report
            if phase not in PHASE_NAMES:
                continue
            if kind == "heartbeat" and len(words) == 1:
                self._heartbeat(phase, words[0])
            elif kind in _MAX_KEPT_BYTES and len(words) == 2:
                size = whole(words[0])
                if size is not None:
                    self._grow(phase, kind, size, _decoded(words[1]), asked.get(label))
            elif kind == "manifest" and len(words) in (2, 3) and _VERSION.fullmatch(words[1]):
                sent[phase] += len(words) == 3
                if sent[phase] <= _MOST_SENT:
                    self._manifest(phase, *words)
                seen.setdefault(phase, set()).add(f"{words[0]}.{words[1]}")
            elif kind == "manifests" and not words:
                complete.add(phase)
        for phase in complete:
            # What the pod has pruned is not on offer any more.
            for step, version, path in self._kept_manifests(phase):
                if f"{step}.{version}" not in seen.get(phase, set()):
                    path.unlink(missing_ok=True)
        for phase in seen:
            self._bound_manifests(phase)
        return report

    # -- kinds of file ------------------------------------------------------------------------

    def _agent(self, text: str) -> contract.AgentReport | None:
        with contextlib.suppress(ValueError, OSError):
            report = contract.load_report(_decoded(text))
            if (report.pod_name, report.run_id) == (self.pod_name, self.run_id):
                folder = self.home / contract.PODS_DIR / self.pod_name
                folder.mkdir(parents=True, exist_ok=True)
                write_atomic(folder / contract.REPORT_NAME, contract.dump(report), durable=False)
                return report
        return None

    def _heartbeat(self, phase: str, text: str) -> None:
        with contextlib.suppress(ValueError, OSError):
            beat = load_heartbeat(_decoded(text))
            if (beat.run_id, beat.phase) == (self.run_id, phase):
                path = self._folder(phase) / contract.HEARTBEAT_NAME
                write_atomic(path, contract.dump(beat), durable=False)

    def _grow(self, phase: str, name: str, size: int, new: bytes, start: int | None) -> None:
        """Append what is new, if what we have is still the beginning of what is there."""
        path = self._folder(phase) / name
        label = f"{name}/{phase}"
        if start is None or len(new) > _MAX_NEW_BYTES:
            return
        with contextlib.suppress(OSError):
            if label in self._again:
                write_atomic(path, new, durable=False)
                self._again.discard(label)
                return
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                have = os.fstat(handle).st_size
                overlap = os.pread(handle, _OVERLAP, start)
                if have - start > _OVERLAP:
                    return  # another process has brought more since we asked
                if size < have or new[: len(overlap)] != overlap:
                    self._again.add(label)
                    return
                os.pwrite(handle, new[len(overlap) :], have)
            finally:
                os.close(handle)

    def _manifest(self, phase: str, step: str, version: str, text: str = "") -> None:
        if not text or mf.parse_step_dir(step) is None:
            return
        with contextlib.suppress(ValueError, OSError, CheckpointError):
            made = mf.from_json(_decoded(text), f"{phase}/{step}")
            if (made.run_id, made.phase, mf.step_dir_name(made.step)) == (self.run_id, phase, step):
                folder = self._folder(phase) / MANIFESTS_DIR
                folder.mkdir(exist_ok=True)
                write_atomic(folder / f"{step}.{version}.json", mf.to_json(made), durable=False)

    def _bound_manifests(self, phase: str) -> None:
        """Latest steps first, as many as there may be: the rest is as if it were not there."""
        room = MAX_MANIFESTS_BYTES
        for number, (_, _, path) in enumerate(reversed(self._kept_manifests(phase))):
            with contextlib.suppress(OSError):
                room -= path.stat().st_size
                if number >= MOST_MANIFESTS or room < 0:
                    path.unlink(missing_ok=True)

    # -- where they are -----------------------------------------------------------------------

    def _folder(self, phase: str) -> Path:
        folder = self.home / contract.RUNS_DIR / self.run_id / phase
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _start(self, phase: str, name: str) -> int | None:
        """From where to ask; None where enough is kept."""
        if f"{name}/{phase}" in self._again:
            return 0
        path = self.home / contract.RUNS_DIR / self.run_id / phase / name
        try:
            have = path.stat().st_size
        except OSError:
            have = 0
        return max(0, have - _OVERLAP) if have < _MAX_KEPT_BYTES[name] else None

    def _kept_manifests(self, phase: str) -> list[tuple[str, str, Path]]:
        folder = self.home / contract.RUNS_DIR / self.run_id / phase / MANIFESTS_DIR
        found = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            match = _KEPT_MANIFEST.fullmatch(path.name)
            if match:
                found.append((match.group(1), match.group(2), path))
        return found


def remote_manifests(
    home: Path, run_id: str, kept: contract.CheckpointRef | None = None
) -> list[CheckpointManifest]:
    """Checkpoints that the run's pod had when it was last asked; those of ``kept``'s step alone
    where it is given."""
    found = []
    pattern = "*" if kept is None else f"{mf.step_dir_name(kept.step)}.*"
    for phase in PHASE_NAMES if kept is None else {kept.phase} & set(PHASE_NAMES):
        folder = home / contract.RUNS_DIR / run_id / phase / MANIFESTS_DIR
        for path in sorted(folder.glob(pattern)):
            with contextlib.suppress(ValueError, CheckpointError):
                text = read_small(path, mf.MAX_MANIFEST_BYTES)
                if text is not None and _KEPT_MANIFEST.fullmatch(path.name):
                    found.append(mf.from_json(text, str(path)))
    return found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
