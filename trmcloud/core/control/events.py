"""The events of a ledger and the keys of the actions that they record. A run is a fold over
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from trmcloud.core.clock import Instant
from trmcloud.core.contract.bucket import CachedFile
from trmcloud.core.control.reason import Reason, ReasonKind
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import Value, replace

# How an action is named, and how one can fail. Pure.
#
# The text of a key is what the ledger keeps and what users see; it is written and read here
# alone.

_TEXT = re.compile(r"([^/]+)/g([0-9]+)/([a-z]+)(?:-([^/]+))?/([0-9]+)")


class ActionKey(Value):
    """Which try of which action for which pod of a run: issuing the same one again is safe.

    ``item`` stands beside a verb that may be wanted more than once of a pod: which checkpoint is
    pulled, the how many-eth one is asked for.
    """

    run_id: str
    generation: int
    verb: str
    attempt: int
    item: str = ""

    def __str__(self) -> str:
        name = f"{self.verb}-{self.item}" if self.item else self.verb
        return f"{self.run_id}/g{self.generation}/{name}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> ActionKey:
        """
        Raises:
            ValueError: it is no action's.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r:.200} names no action")
        run_id, generation, verb, item, attempt = match.groups()
        return cls(run_id, int(generation), verb, int(attempt), item or "")


class FailureKind(str, Enum):
    """The kind of an action's failure, which decides what follows."""

    REFUSED = "refused"
    """Nothing happened."""
    NO_CAPACITY = "no_capacity"
    """The create's provider has none left."""
    FINAL = "final"
    """The create of every other candidate of its provider would fail as well; files could not be
    sent, and never will be."""
    THROTTLED = "throttled"
    """Likewise, for now: the provider asks to be asked later."""
    AMBIGUOUS = "ambiguous"
    """It may have happened all the same."""
    DAMAGED = "damaged"
    """A pull brought other bits than the manifest names: the link was not to blame."""
    ERROR = "error"
    """Anything else; it may be tried again."""


# The events a ledger keeps. A run is a fold over them: see ``run_state``.
#
# Events are facts in the past tense. They are written once, never changed, and read back by any
# later version; money in them is a string, so that JSON cannot bend it.


class Event(Value):
    """A fact that a ledger keeps."""


class RunEvent(Event):
    """An event of one run."""


class LedgerEvent(Event):
    """An event of the whole ledger: it belongs to no run."""


class Note(LedgerEvent):
    """An event of the whole ledger that any process may record."""


class RunPlanned(RunEvent):
    """A plan was accepted; ``plan`` is its JSON, ``cap`` the most the whole run may cost.

    ``key`` is the idempotency key of the launch, empty for none, and ``request`` the SHA-256 of its
    arguments: no other run of the ledger bears that key.
    """

    plan: Mapping[str, Any]
    cap: Usd
    project: str
    detached: bool = False
    name: str = ""
    """The user's own name for it, which no other live run has; empty for none."""
    tags: tuple[tuple[str, str], ...] = ()
    key: str = ""
    request: str = ""
    principal: str = ""
    """Who it is for, and whose grant pays for it; empty: the ledger's owner, who needs none."""


class Reserved(RunEvent):
    """``amount`` is held for the next generation, until it is settled."""

    amount: Usd


class WaitStarted(RunEvent):
    """Where no machine can be had, the run keeps its reservation and asks again until ``until_at``
    (epoch s), at no more than ``most_rate`` USD an hour; None: at what each candidate reserves.
    ``boot_usd`` is the most that boots that fail may cost."""

    until_at: float
    boot_usd: Usd
    most_rate: Usd | None = None
    boot: float = 0.0
    boot_id: str = ""
    """When it was put on record, by a clock that cannot be set: see ``clock.Instant``."""


class PodIntended(RunEvent):
    """About to ask a provider for a pod. Written before asking, so that no pod is ever unknown."""

    generation: int
    pod_name: str
    provider: str
    candidate_id: str
    rate: Usd
    soft_stop_at: float
    hard_stop_at: float
    boot: float = 0.0
    boot_id: str = ""
    """When it was put on record, by a clock that cannot be set: see ``clock.Instant``."""
    limit_at: float = 0.0
    """The latest that ``Extended`` may move its hard stop to (epoch s), which its name tells; 0:
    it is not moved."""


class Extended(RunEvent):
    """By its measured pace the work needs more time: the generation's hard stop is moved to
    ``hard_stop_at`` (epoch s), and its soft stop by as much; for all of it ``amount`` is held in
    the place of what was reserved."""

    generation: int
    hard_stop_at: float
    amount: Usd


class MoveStarted(RunEvent):
    """``amount`` is held, beside what the working machine holds, for one of ``candidate_id`` that
    stands by until the run moves there. The rest of the work costs ``stays`` USD where it is, and
    ``saves`` USD less by moving, where the new machine is billed at ``rate`` USD/h or less.

    Earlier versions wrote this event and the two that follow; they are only read."""

    candidate_id: str
    rate: Usd
    amount: Usd
    stays: Usd
    saves: Usd


class HandedOver(RunEvent):
    """The machine that stands by is checked and holds a checkpoint: that of ``generation``, which
    works, lands for it."""

    generation: int


class Moved(RunEvent):
    """The machine before is gone and settled: that of ``generation``, which stood by, is the run's
    machine from now on."""

    generation: int


class ActionStarted(RunEvent):
    action_id: str
    verb: str


class ActionFinished(RunEvent):
    """``taken``: whether the provider said that it does what it was asked to; ``detail``: what it
    answered to a create; ``reason``: why a pod was told to land or to end."""

    action_id: str
    verb: str
    detail: str = ""
    taken: bool = False
    reason: Reason | None = None


class ActionFailed(RunEvent):
    """``retry_s``: in so many seconds it may be tried again, by the provider; 0: not said."""

    action_id: str
    verb: str
    kind: FailureKind
    error: str
    retry_s: float = 0.0


class PodUp(RunEvent):
    """The pod stands in the provider's list; ``rate`` is what the provider says it bills."""

    generation: int
    pod_id: str
    rate: Usd


class PodNotMade(RunEvent):
    """No pod of this generation exists or will: a refusal, absence proven by listing, or the word
    of a provider that took the create, may have listed the pod, and then had none to give."""

    generation: int
    reason: Reason


class PodMissed(RunEvent):
    """A fresh list did not hold the pod, which proves nothing until it has lasted."""

    generation: int
    boot: float = 0.0
    boot_id: str = ""
    """When it was put on record, by a clock that cannot be set: see ``clock.Instant``."""
    heard_at: float = 0.0
    """The date of its agent's last report then, epoch s by the pod's clock; 0: none was at hand."""


class PodFound(RunEvent):
    """A pod that was missed stands in the list again, or its agent has reported since."""

    generation: int


class AgentUp(RunEvent):
    generation: int


class PhaseEnded(RunEvent):
    """One phase's account, from the agent's report."""

    generation: int
    phase: str
    outcome: str
    step: int | None
    val_bpb: float | None
    seconds: Mapping[str, float]
    attempts: int = 1


class GateJudged(RunEvent):
    generation: int
    phase: str
    passed: bool
    verdict: Mapping[str, Any]


class StopRequested(RunEvent):
    by: str
    reason: Reason

    @property
    def at_once(self) -> bool:
        """Whether its pod is to be ended without landing."""
        return self.reason.kind in (ReasonKind.STOP_NOW, ReasonKind.GRANT_REVOKED_NOW)


class SaveRequested(RunEvent):
    """A checkpoint is asked for, now, of the pod that trains: the run continues."""

    generation: int
    by: str


class StopLowering(RunEvent):
    """The generation's machine is to end at ``hard_stop_at`` (epoch s), earlier than before; its
    orders say so. Its stops on record stay until its agent reports the earlier one.

    Earlier versions wrote this event and the two that follow; they are only read."""

    generation: int
    hard_stop_at: float
    by: str


class StopKnown(RunEvent):
    """The machine itself reports the earlier hard stop: that is its hard stop from now on, for all
    that end it, and its soft stop lies as much earlier. All that was reserved stays reserved."""

    generation: int


class StopLowered(RunEvent):
    """``layer``, which does not depend on the machine, ends it at the earlier hard stop: of what
    was reserved for it ``amount`` stays, and the rest is free."""

    generation: int
    amount: Usd
    layer: str


class ResultKnown(RunEvent):
    """The run's result, in ``run_state.Outcome``'s words, before its pod is gone."""

    result: str
    reason: Reason | None = None


class LateReport(RunEvent):
    """The result of a machine's work, read after its end from its volume."""

    generation: int
    result: str
    reason: Reason | None = None


class BoardFound(RunEvent):
    """The generation's machine has another board than was planned, and trains on it: a slower one,
    for which the work was planned again and fits, or one that is faster or not known."""

    generation: int
    reason: Reason


class PaceMeasured(RunEvent):
    """The generation's machine has timed ``steps`` steps of ``phase``: ``step_s`` is their median,
    of which a tenth took less than ``fast_s`` and a tenth more than ``slow_s``; ``planned_s`` is
    the plan's P50. At that pace the whole run takes ``hours`` (``least_hours`` to ``most_hours``)
    and ``usd``, and comes to step ``steps_fit`` of the phase before the soft stop. ``step`` is the
    step after which that was known.

    ``doubt``: why the pace is not believed; nothing follows from it then. ``slow``: how it is
    slower than planned; ``follows`` is what is done about that, see ``spec.SLOW_POLICIES``, and
    ``instead``, of earlier versions, why that is not what was asked for. What the machine said of
    itself are its torch, its board and the SHA-256 of its trainer's sources.
    """

    generation: int
    phase: str
    steps: int
    step_s: float
    fast_s: float
    slow_s: float
    planned_s: float
    hours: float
    least_hours: float
    most_hours: float
    usd: Usd
    steps_fit: int
    step: int = 0
    tokens: int = 0
    torch: str = ""
    board: str = ""
    code: str = ""
    doubt: Reason | None = None
    slow: Reason | None = None
    follows: str = ""
    instead: Reason | None = None


class PodGone(RunEvent):
    """Proven: the pod no longer exists, and cost nothing after ``ended_at``."""

    generation: int
    ended_at: float
    boot: float = 0.0
    boot_id: str = ""
    """When it was put on record, by a clock that cannot be set: see ``clock.Instant``."""


class Settled(RunEvent):
    """The generation's cost; the reservation is released. ``billed`` is the provider's own final
    figure, None while there is none: ``amount`` is then an estimate, until ``Billed``."""

    generation: int
    amount: Usd
    billed: Usd | None


class Billed(RunEvent):
    """The provider's final figure for a generation that was settled at an estimate."""

    generation: int
    amount: Usd


class BucketSwept(RunEvent):
    """No pod up to ``generation`` can upload any more. In the bucket, beyond all that they were
    granted, were ``size_bytes``, which are deleted next; what was found since the generation before
    has cost ``amount`` at most. 0: nothing of it is left."""

    generation: int
    size_bytes: int
    amount: Usd


class Closed(RunEvent):
    outcome: str
    reason: Reason | None = None


class Reopened(RunEvent):
    """A closed run continues, within ``cap`` for the whole of it.

    ``errand``: a candidate's JSON, for a machine that trains nothing and from which what an earlier
    one left is brought home; the run keeps its outcome.
    """

    cap: Usd
    errand: Mapping[str, Any] | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By phase: what takes the place of the plan's from now on. A phase that is named here is
    trained, though it may have finished before."""
    accepted: Mapping[str, Any] | None = None
    """By name, [before, after] of what decides what is trained and differs from the checkpoint that
    is gone on from: the user accepted that. None: nothing was."""
    processes: int = 0
    """So many train from now on, on the user's own machine; 0: as many as before."""
    balance: str = ""
    """What follows from now on where the provider's balance will not last: see
    ``spec.BALANCE_POLICIES``. Empty: as the plan has it."""
    key: str = ""
    request: str = ""
    """As in ``RunPlanned``, of what reopened it."""
    principal: str = ""
    """Whose grant pays for what is reserved from now on; empty: the ledger's owner."""


class PlanRevised(RunEvent):
    """A later candidate or another price, never above the reservation."""

    candidate_id: str
    reason: Reason


class Pulled(RunEvent):
    """A checkpoint was copied from its pod to where the run's files are kept, hashes verified.

    ``val_bpb``: its metric, None where it had none then. Once that is added on its pod the
    checkpoint is pulled again, which brings its manifest alone.
    """

    generation: int
    phase: str
    step: int
    sha256: str
    val_bpb: float | None = None


class Fetched(RunEvent):
    """A checkpoint was copied here and every hash verified."""

    phase: str
    step: int
    sha256: str
    path: str


class CapSet(LedgerEvent):
    """A budget level's cap was set or, with None, removed. Ledger-wide: it belongs to no run."""

    level: str
    key: str
    cap: Usd | None
    by: str = ""


class GrantTerms(Value):
    """What a grant allows: ``total`` USD for everything, ``per_run`` for each run, ``per_day`` for
    each UTC day and ``per_month`` for each UTC month; None: as much as there is. ``runs_at_once``
    0: any number; ``hardware`` and ``providers``: those alone, empty: any. Nothing is reserved from
    ``expires_at`` (epoch s) on. A run is ended that has made no step for ``idle_s`` s; 0: it is
    not. ``buckets``: s3:// places at or below which it may keep checkpoints, beside the one that
    this machine is configured with."""

    total: Usd
    per_run: Usd | None = None
    per_day: Usd | None = None
    runs_at_once: int = 0
    hardware: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    expires_at: float | None = None
    idle_s: float = 0.0
    per_month: Usd | None = None
    buckets: tuple[str, ...] = ()


class GrantGiven(LedgerEvent):
    """``principal``, a person, an agent or a CI job, may spend what ``terms`` say, from now on.
    What an earlier grant of theirs paid for does not count. Ledger-wide."""

    principal: str
    terms: GrantTerms
    by: str = ""


class GrantRaised(LedgerEvent):
    """``terms`` take the place of those of the principal's grant, which allowed no more.
    Ledger-wide."""

    principal: str
    terms: GrantTerms
    by: str = ""


class GrantRevoked(LedgerEvent):
    """Nothing is reserved under the principal's grant any more; its runs land, or, ``at_once``, end
    without that. Ledger-wide."""

    principal: str
    by: str = ""
    at_once: bool = False


class ApprovalAsked(LedgerEvent):
    """The principal asks for ``more`` USD in total, and for at least so much of the rest; what is
    empty, None or 0 is not asked for. ``id`` is new in the ledger; ``by`` is the user whose
    process asked. Ledger-wide."""

    id: str
    principal: str
    why: str = ""
    more: Usd = ZERO
    per_run: Usd | None = None
    per_day: Usd | None = None
    runs_at_once: int = 0
    hardware: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    expires_at: float | None = None
    per_month: Usd | None = None
    by: str = ""


class ApprovalGiven(LedgerEvent):
    """The principal's grant allows what was asked for from now on. Ledger-wide."""

    id: str
    by: str = ""


class ApprovalDenied(LedgerEvent):
    """It does not. Ledger-wide."""

    id: str
    by: str = ""


GrantEvent = (
    GrantGiven | GrantRaised | GrantRevoked | ApprovalAsked | ApprovalGiven | ApprovalDenied
)


class LayerVerified(LedgerEvent):
    """A kill layer of this account was seen to work: ``how`` says by what. Ledger-wide."""

    provider: str
    layer: str
    how: str


class StrayCharged(Note):
    """A pod of ours that nothing here owns was found, and is charged with the most that it can
    have cost: made at ``since`` (epoch s) or later. Again, with more, while it lives.
    Ledger-wide; ``run_id`` is the run that it was made for, where this ledger knows it."""

    provider: str
    pod_id: str
    pod_name: str
    run_id: str
    since: float
    amount: Usd


class StrayBilled(Note):
    """The provider's final figure for such a pod."""

    provider: str
    pod_id: str
    amount: Usd


class VolumeDeleted(Note):
    """The ledger's network volume in ``place`` was deleted: its rent ended. ``by``: at whose word.
    Ledger-wide."""

    provider: str
    place: str
    by: str


class TokensPinned(Note):
    """Files of a token cache in ``bucket`` below ``key`` were first seen: later pods are given
    these hashes, and no others. Ledger-wide."""

    bucket: str
    key: str
    files: tuple[CachedFile, ...]


class DataPinned(Note):
    """A data set's files are those of ``revision`` of its host's repository, which ``branch``
    pointed to; ``hashes`` is the SHA-256 of their published hashes, empty where none are
    published. Ledger-wide."""

    source: str
    repository: str
    branch: str
    revision: str
    hashes: str


class BalanceLow(Note):
    """An account's balance, read at ``read_at``, lasts for fewer than ``hours`` at ``spending`` USD
    an hour, the account's whole, and ends at ``ends_at``; both are epoch s. ``hours`` 0: it lasts
    again; ``ends_at`` is 0 then where nothing is spent. Ledger-wide."""

    provider: str
    hours: int
    balance: Usd
    spending: Usd
    read_at: float
    ends_at: float


class LedgerRestored(LedgerEvent):
    """An older copy of this ledger was accepted, which knows nothing after ``since`` (epoch s)."""

    since: float


class LedgerReconciled(Note):
    """Every provider was asked since, and what the older copy had forgotten is charged."""


class DamageSettled(Note):
    """A user's word on what damaged records stand for: ``of`` is a run, or ``#12`` for record 12 of
    the whole ledger; ``amount`` counts as spent from now on. Ledger-wide."""

    of: str
    amount: Usd
    by: str = ""


EVENT_TYPES: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for base in (RunEvent, LedgerEvent, Note)
    for kind in base.__subclasses__()
    if kind is not Note
}


class Record(Value):
    """An event as the ledger keeps it: numbered, dated, and by which controller's epoch."""

    seq: int
    run_id: str
    """Empty for events of the whole ledger."""
    epoch: int
    at: float
    event: Event


def stamp_events(events: Iterable[RunEvent], now: Instant) -> list[RunEvent]:
    """Add both clocks' readings to events that bound a pod's life or its absence: how long it
    lived, or was missing, must not depend on a clock that can be set meanwhile."""
    return [
        replace(event, boot=now.boot, boot_id=now.boot_id)
        if isinstance(event, (WaitStarted, PodIntended, PodMissed, PodGone))
        else event
        for event in events
    ]
