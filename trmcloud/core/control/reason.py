"""Reasons as data, and the words of each outcome for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import Value

# What each outcome means, in words for people: apart from the outcomes, for no pod needs them.

MEANINGS: Mapping[Outcome, str] = {
    Outcome.FINISHED: "every step was trained",
    Outcome.LANDED: "stopped at its budget or time limit, evaluated and saved",
    Outcome.STOPPED: "stopped on request, evaluated and saved",
    Outcome.GATE_FAILED: "the gate after the fast phase failed",
    Outcome.NEXT_PHASE_REFUSED: "the next phase did not fit into the rest of the budget",
    Outcome.FAILED: "training failed and could not be restarted",
    Outcome.KILLED: "killed at the hard stop; the last checkpoint is kept",
    Outcome.LOST: "the machine was lost; the last checkpoint is kept",
    Outcome.NOT_STARTED: "no machine could be rented; nothing was spent",
    Outcome.NO_MACHINE: "no machine was available in time; at most the boot budget was spent",
    Outcome.UNREPORTED: "its machine ended before reporting; stored checkpoints are safe",
    Outcome.UNFIT: "every machine failed the hardware check",
}

_OF_A_COMMAND: Mapping[Outcome, str] = {
    Outcome.FINISHED: "the command ended normally",
    Outcome.LANDED: "stopped at its budget or time limit; its checkpoints are kept",
    Outcome.STOPPED: "stopped on request; its checkpoints are kept",
    Outcome.FAILED: "the command failed",
}
_OF_A_SWEEP: Mapping[Outcome, str] = {
    Outcome.FINISHED: "the sweep has ended",
    Outcome.LANDED: "stopped at its budget or time limit; its checkpoints are kept",
    Outcome.STOPPED: "stopped on request; its checkpoints are kept",
    Outcome.FAILED: "the sweep has no result",
}
COMMAND, SWEEP = "command", "sweep"
OF_KINDS: Mapping[str, Mapping[Outcome, str]] = {
    "": {}, COMMAND: _OF_A_COMMAND, SWEEP: _OF_A_SWEEP,
}  # fmt: skip
"""By what a run trains, the meanings that differ: nothing is known of what a command trains, nor
whether it was evaluated."""


def kind_of(spec: RunSpec) -> str:
    """What a run trains, as ``OF_KINDS`` has it; empty of a recipe."""
    return SWEEP if spec.sweep is not None else COMMAND if spec.command is not None else ""


# Why something is as it is, as data: one kind of a fixed set, and the facts that belong to it.
#
# Made here, kept in ledgers, and code that acts on one asks for its kind. The sentence that a user
# reads is written in ``operations/reasons`` alone, and no code searches in it.

Fact = str | int | float
"""JSON as it is. Money is text, so that JSON cannot bend it; names carry units."""


class ReasonKind(str, Enum):
    """The kind of a reason in the ledger: no member's value changes, and none that was written
    goes."""

    # In somebody else's words.
    SAID = "said"
    """By a version that kept sentences."""
    AGENT_SAID = "agent_said"
    PROVIDER_SAID = "provider_said"
    LINK_FAILED = "link_failed"
    LIST_FAILED = "list_failed"
    # Why a run is to land.
    STOP_COMMAND = "stop_command"
    INTERRUPTED = "interrupted"
    STOP_NOW = "stop_now"
    """Without landing: what is not saved is lost."""
    BUDGET_CUT = "budget_cut"
    ORPHANS_COST = "orphans_cost"
    BUDGET_REFUSED = "budget_refused"
    BALANCE_ENDS = "balance_ends"
    LAUNCH_KILLED = "launch_killed"
    GRANT_REVOKED = "grant_revoked"
    GRANT_REVOKED_NOW = "grant_revoked_now"
    """Without landing."""
    IDLE = "idle"
    GPUS_IDLE = "gpus_idle"
    # Why there is no pod.
    NO_CANDIDATE = "no_candidate"
    NOT_ASKED_FOR = "not_asked_for"
    NEVER_APPEARED = "never_appeared"
    WAIT_OVER = "wait_over"
    BOOTS_SPENT = "boots_spent"
    # Why a pod is ended.
    HARD_STOP = "hard_stop"
    WORK_DONE = "work_done"
    SAVED_HERE = "saved_here"
    NO_AGENT = "no_agent"
    BOOT_FAILED = "boot_failed"
    HOST_STOPPED = "host_stopped"
    STRANGER_ANSWERS = "stranger_answers"
    DID_NOT_LAND = "did_not_land"
    BILLED_ABOVE_RATE = "billed_above_rate"
    MISPLACED = "misplaced"
    WRONG_BOARD = "wrong_board"
    NAME_TWICE = "name_twice"
    OUTLIVED_HARD_STOP = "outlived_hard_stop"
    NO_OWNER = "no_owner"
    HARD_STOP_PASSED = "hard_stop_passed"
    # How a run came to its end.
    UNKNOWN_RESULT = "unknown_result"
    REFUSED = "refused"
    STOPPED_UNRENTED = "stopped_unrented"
    STOPPED_UNREPORTED = "stopped_unreported"
    KILLED_BEFORE_LANDING = "killed_before_landing"
    POD_ENDED = "pod_ended"
    ON_VOLUME = "on_volume"
    IN_BUCKET = "in_bucket"
    ENDED_SILENT = "ended_silent"
    # What follows a machine that was lost.
    MACHINE_LOST = "machine_lost"
    NO_OTHER_MACHINE = "no_other_machine"
    # Of runs that earlier versions moved: why a machine landed, and why one that stood by ended.
    MOVING = "moving"
    MOVE_CALLED_OFF = "move_called_off"
    MOVE_SAVES_TOO_LITTLE = "move_saves_too_little"
    NOT_READY_IN_TIME = "not_ready_in_time"
    # Of runs that gave money to others in earlier versions: why one lands. The other four were
    # never written; they go with the next format of ledgers.
    HOLDS_UNTIL_IT_TRAINS = "holds_until_it_trains"
    TRAINS_TO_ITS_STOP = "trains_to_its_stop"
    STOP_CANNOT_BE_LOWERED = "stop_cannot_be_lowered"
    NO_LAYER_APART = "no_layer_apart"
    STOP_LOWERED = "stop_lowered"
    # How a machine differs from the planned one that trains all the same.
    SLOWER_BOARD = "slower_board"
    OTHER_BOARD = "other_board"
    # How a machine's measured pace differs from the planned one, and what follows.
    SLOWER_THAN_PLANNED = "slower_than_planned"
    NO_LONGER_FITS = "no_longer_fits"
    FASTER_THAN_PEAK = "faster_than_peak"
    SLOWER_THAN_TIME = "slower_than_time"
    OTHER_STEPS = "other_steps"
    NO_MOVE_WITHOUT_BUCKET = "no_move_without_bucket"
    NO_MOVE_OF_SUCH_A_RUN = "no_move_of_such_a_run"
    # What a run waits for.
    AWAITS_AGENT = "awaits_agent"
    AWAITS_EARLIER_POD = "awaits_earlier_pod"
    AWAITS_CAPACITY = "awaits_capacity"
    AWAITS_LIST_TO_RENT = "awaits_list_to_rent"
    AWAITS_LIST_TO_STOP = "awaits_list_to_stop"
    AWAITS_LIST_OF_POD = "awaits_list_of_pod"
    AWAITS_POD = "awaits_pod"
    CREATE_UNANSWERED = "create_unanswered"
    CREATE_TAKEN = "create_taken"
    # Why a network volume is kept.
    NOT_FETCHED = "not_fetched"
    NOT_AGREED = "not_agreed"


_Kind = ReasonKind
FACTS: Mapping[ReasonKind, Mapping[str, type[Fact]]] = {
    **{kind: {} for kind in ReasonKind},
    _Kind.SAID: {"text": str},
    _Kind.AGENT_SAID: {"text": str},
    _Kind.PROVIDER_SAID: {"text": str},
    _Kind.LINK_FAILED: {"text": str},
    _Kind.LIST_FAILED: {"text": str},
    _Kind.BUDGET_CUT: {"level": str, "cap_usd": str},
    _Kind.ORPHANS_COST: {"level": str, "orphans_usd": str},
    _Kind.BUDGET_REFUSED: {"text": str},
    _Kind.GRANT_REVOKED: {"principal": str},
    _Kind.GRANT_REVOKED_NOW: {"principal": str},
    _Kind.IDLE: {"idle_s": float, "limit_s": float},
    _Kind.GPUS_IDLE: {"idle_s": float, "limit_s": float},
    _Kind.BALANCE_ENDS: {
        "provider": str,
        "balance_usd": str,
        "spending_usd_per_hour": str,
        "left_s": float,
    },
    _Kind.WAIT_OVER: {"waited_s": float, "asked": int, "boots": int, "spent_usd": str},
    _Kind.BOOTS_SPENT: {"boots": int, "spent_usd": str, "budget_usd": str},
    _Kind.AWAITS_CAPACITY: {"asked": int, "hardware": str},
    _Kind.NO_AGENT: {"boot_deadline_s": float},
    _Kind.BOOT_FAILED: {"text": str},
    _Kind.BILLED_ABOVE_RATE: {"billed_usd_per_hour": str, "planned_usd_per_hour": str},
    _Kind.MISPLACED: {"region": str, "wanted_region": str},
    _Kind.WRONG_BOARD: {"planned": str, "found": str},
    _Kind.SLOWER_BOARD: {"planned": str, "found": str, "time_ratio": float},
    _Kind.OTHER_BOARD: {"planned": str, "found": str},
    _Kind.SLOWER_THAN_PLANNED: {"pace": str, "limit": str, "more_s": float, "more_usd": str},
    _Kind.NO_LONGER_FITS: {
        **{"pace": str, "fit": int, "steps": int},
        **{"more_s": float, "more_usd": str},
    },
    _Kind.FASTER_THAN_PEAK: {"pace": str, "limit": str},
    _Kind.SLOWER_THAN_TIME: {"steps_s": float, "passed_s": float},
    _Kind.OTHER_STEPS: {"tokens": int, "planned_tokens": int},
    _Kind.UNKNOWN_RESULT: {"result": str},
    _Kind.IN_BUCKET: {"bucket": str},
    _Kind.MACHINE_LOST: {"provider": str},
    _Kind.MOVING: {"provider": str},
    _Kind.NOT_READY_IN_TIME: {"within_s": float},
    _Kind.NO_LAYER_APART: {"provider": str},
    _Kind.AWAITS_LIST_TO_RENT: {"provider": str},
    _Kind.AWAITS_LIST_TO_STOP: {"provider": str},
    _Kind.AWAITS_LIST_OF_POD: {"provider": str},
    _Kind.AWAITS_POD: {"provider": str},
    _Kind.NOT_FETCHED: {"runs": str},
    _Kind.NOT_AGREED: {"runs": str},
}
"""Which facts each kind has: these and no others, of these types."""


class Reason(Value):
    """``more``: what else is known of it, told after it: what made it so, or somebody's own words.

    Raises:
        ValueError: facts that are not those of its kind.
    """

    kind: ReasonKind
    facts: Mapping[str, Fact] = field(default_factory=dict)
    more: Reason | None = None

    def __post_init__(self) -> None:
        declared = FACTS[self.kind]
        if {name: type(value) for name, value in self.facts.items()} != declared:
            raise ValueError(f"facts of {self.kind.value} are not {sorted(declared)}")


def make_reason(kind: ReasonKind, more: Reason | None = None, **facts: Fact | Usd) -> Reason:
    """A reason of ``facts``, amounts of money among them as they are kept."""
    kept = {name: fact.plain() if isinstance(fact, Usd) else fact for name, fact in facts.items()}
    return Reason(kind, kept, more)


def quoted_reason(kind: ReasonKind, text: str) -> Reason | None:
    """Make a reason of quoted text; None where the text is empty."""
    return make_reason(kind, text=text) if text else None
