"""A rented run's way, in words: its stages, what is being carried, what is waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trmcloud.app.run_queries import Errand, ending_was_asked
from trmcloud.cli.views.reasons import FOLLOWS, sentence
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.action_key import ActionKey
from trmcloud.core.control.blockers import Waiting
from trmcloud.core.control.pod_liveness import absence_needed_s
from trmcloud.core.control.run_state import GRANT, STAGE, RunState, State

SENDING = "Sending code and data"
MAKING_DATA = "Making data"
PULLING = "Pulling checkpoints"
UPLOADING = "Uploading checkpoints"
GONE = "Making sure it is gone"
_STATES: Mapping[State, str] = {
    State.RESERVED: "Reserved",
    State.RENTING: "Renting",
    State.BOOTING: "Booting",
    State.RUNNING: "Starting the trainer",
    State.ENDING: "Ending the pod",
    State.SETTLING: "Settling",
}
_WAITING = {
    "checking": "Checking the machine",
    "installing": "Installing",
    "files": SENDING,
    "grants": "Granting uploads",
    "data": "Fetching data",
}
_TRAINER = {
    "starting": _STATES[State.RUNNING],
    "waiting": MAKING_DATA,
    "compiling": "Compiling",
    "landing": "Landing",
}
_SPEED_OVER_S = 10.0


def stage_of(
    run: RunState,
    beat: Heartbeat | None,
    report: AgentReport | None,
    before: str,
    *,
    pulls: bool = False,
) -> str:
    """The stage's name; ``before`` is the last one, which goes on where nothing else is said.
    ``pulls``: a checkpoint is being brought here now."""
    if run.state is State.ENDING:
        if run.generation is not None and run.generation.missed_at:
            return GONE
        between_pulls = before == PULLING and not ending_was_asked(run)
        return PULLING if pulls or between_pulls else _STATES[State.ENDING]
    if report is not None and report.uploading:
        return UPLOADING
    if run.state is not State.RUNNING:
        return _STATES.get(run.state, "")
    if beat is not None:
        if beat.state == "training":
            return f"Training {beat.phase}"
        return _TRAINER.get(beat.state, before or _STATES[State.RUNNING])
    if report is not None and report.waiting:
        return _WAITING.get(report.waiting, _STATES[State.RUNNING])
    return _STATES[State.RUNNING]


@dataclass
class Speed:
    """How fast each errand goes, over the last few seconds."""

    _seen: dict[ActionKey, deque[tuple[float, int]]] = field(default_factory=dict)

    def words(self, errand: Errand, now: float) -> str:
        """``12.0 of 40.0 MB · 8.1 MB/s · 3 s left``, as much of it as is known."""
        seen = self._seen.setdefault(errand.key, deque())
        seen.append((now, errand.done))
        while seen[0][0] < now - _SPEED_OVER_S:
            seen.popleft()
        if not errand.size:
            return ""
        words = f"{errand.done / 1e6:,.1f} of {errand.size / 1e6:,.1f} MB"
        (first_at, first), rate = seen[0], 0.0
        if now > first_at:
            rate = (errand.done - first) / (now - first_at)
        if rate > 0:
            left = duration((errand.size - errand.done) / rate)
            words += f" · {rate / 1e6:,.1f} MB/s · {left} left"
        return words


def carried(errands: Sequence[Errand], speed: Speed, now: float) -> tuple[str, list[str]]:
    """(what is said of files being sent, a line for each checkpoint being pulled)."""
    sending, pulling = "", []
    for errand in errands:
        words = speed.words(errand, now)
        if errand.what in (STAGE, GRANT):
            sending = words
        else:
            pulling.append(" · ".join(filter(None, (f"pulling {errand.what}", words))))
    return sending, pulling


def where(run: RunState) -> str:
    """``8xA100-80GB-SXM at runpod EU-RO-1`` of the candidate that is being tried."""
    generation = run.generation
    if generation is None:
        return ""
    chosen = run.candidate(generation.candidate_id)
    region = chosen.region if chosen is not None and chosen.region != "any" else ""
    place = " ".join(filter(None, (generation.provider, region)))
    return f"{chosen.hardware} at {place}" if chosen is not None else place


def absence(run: RunState, now: float) -> str:
    """How long the pod has been off its provider's list, and how long that must last."""
    generation = run.generation
    if generation is None or generation.missed_at is None:
        return ""
    needed = duration(absence_needed_s(run, traits_of(generation.provider)))
    since = duration(now - generation.missed_at)
    return f"off {generation.provider}'s list for {since}; {needed} prove it"


def waiting_words(waiting: Waiting, now: float) -> str:
    """``runpod to list the pod …; 9 min 40 s more, then it counts as never made``."""
    what = sentence(waiting.what)
    if waiting.until_at is None:
        return what
    return f"{what}; {duration(waiting.until_at - now)} more, then {FOLLOWS[waiting.what.kind]}"
