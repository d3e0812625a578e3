"""Errors that a user can meet, each with its exit code, and the outcomes of a run. Pure."""

from __future__ import annotations

import re
from enum import Enum

# Every error a user can meet, each with its own exit code.
#
#     TrmcloudError (1)
#     ├── UsageError (2)            an argument, option or file the user gave is wrong
#     ├── NotFoundError (3)         no such run, plan, checkpoint or price
#     ├── BudgetRefused (4)         the money asked for is not there
#     ├── DoesNotFit (5)            memory, disk, time: the plan cannot be carried out
#     ├── MissingExtra (6)          an optional dependency is not installed
#     ├── MissingTool (6)           a program that this machine needs is not there, or does not work
#     ├── LedgerError (7)           the ledger cannot be used
#     │   ├── LedgerDamaged
#     │   │   └── LedgerOlder
#     │   ├── RunQuarantined
#     │   ├── LedgerLocked
#     │   ├── LedgerTooNew
#     │   └── StaleEpoch            another controller has taken this run over
#     ├── ConflictError (8)         something is in the way: a running run, a folder in use
#     ├── DataError (9)             the training data cannot be used
#     ├── CheckpointError (10)      a checkpoint is damaged, incomplete or hostile
#     ├── ProviderError (11)        the provider refused or could not be understood
#     │   ├── NoCapacity (75)       nothing was created; try the next candidate
#     │   ├── AmbiguousCreate       something may have been created; list before trying again
#     │   └── ProviderRefused       nothing was created or changed; the same request fails again
#     │       └── FinalRefusal          so would any other create: no candidate is tried after it
#     │           ├── PaymentRequired (14)  the account's balance or spend limit does not allow it
#     │           └── AuthError (15)        the key is missing, wrong or revoked
#     │               └── AccessDenied (16) the key is right and may not do this
#     ├── NotSupported (12)         a known wish that this version cannot fulfil yet
#     ├── NotVerified (17)          a kill layer was tried for real and was not seen to work
#     ├── ReceiptError (18)         a receipt was changed, or is not that of the checkpoint
#     ├── TrialFailed (31)          a check of ``try`` failed
#     ├── NotifyError (19)          a destination did not accept a notice, or none can be queued
#     └── LinkError (13)            a pod cannot be reached over SSH, or does not do as asked
#         ├── HostKeyChanged        something else answers at the pod's address: nothing was sent
#         ├── LoginRefused          the pod does not take the key it was made with
#         ├── NotSendable           files cannot be sent as they are, however often it is tried
#         └── Dropped               the connection ended, or never came about; trying again may help
#             └── NoAddress         the pod has none yet: nothing was tried
#
# How runs end has exit codes of its own: see ``trmcloud.core.control.run_state.Outcome``.


class TrmcloudError(Exception):
    """One line for the user: what happened, where, and what to do next."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" ({self.where})"
        return text


def code_of(error: TrmcloudError) -> str:
    """Return the stable word of an error: ``not_found`` of ``NotFoundError``."""
    kind = type(error).__name__
    name = "error" if kind == "TrmcloudError" else kind.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class UsageError(TrmcloudError):
    exit_code = 2


class CannotListen(UsageError):
    def __init__(self, host: str, port: int, error: OSError, next_step: str) -> None:
        reason = (error.strerror or str(error)).lower()
        super().__init__(f"cannot listen on {host}:{port}: {reason}", next_step=next_step)


class NotFoundError(TrmcloudError):
    exit_code = 3


class BudgetRefused(TrmcloudError):
    exit_code = 4


class GrantRefused(BudgetRefused):
    """A principal's grant does not allow it; ``next_step`` says what would be allowed."""


class DoesNotFit(TrmcloudError):
    exit_code = 5


class MissingExtra(TrmcloudError):
    exit_code = 6

    def __init__(self, needs: str, extra: str, next_step: str) -> None:
        super().__init__(
            f"{needs} needs the '{extra}' extra, which is not installed", next_step=next_step
        )


class MissingTool(TrmcloudError):
    exit_code = 6


class LedgerError(TrmcloudError):
    exit_code = 7


class LedgerDamaged(LedgerError):
    pass


class LedgerOlder(LedgerDamaged):
    """It lacks records that it once had."""


class RunQuarantined(LedgerError):
    """Records of one run are damaged: that run alone cannot be used."""


class LedgerLocked(LedgerError):
    pass


class LedgerTooNew(LedgerError):
    pass


class StaleEpoch(LedgerError):
    pass


class ConflictError(TrmcloudError):
    exit_code = 8


class DataError(TrmcloudError):
    exit_code = 9


class CheckpointError(TrmcloudError):
    exit_code = 10


class ProviderError(TrmcloudError):
    exit_code = 11


class NoCapacity(ProviderError):
    exit_code = 75


class AmbiguousCreate(ProviderError):
    pass


class ProviderRefused(ProviderError):
    pass


class FinalRefusal(ProviderRefused):
    pass


class PaymentRequired(FinalRefusal):
    exit_code = 14


class AuthError(FinalRefusal):
    exit_code = 15


class AccessDenied(AuthError):
    exit_code = 16


class NotSupported(TrmcloudError):
    exit_code = 12


class NotVerified(TrmcloudError):
    exit_code = 17


class ReceiptError(TrmcloudError):
    exit_code = 18


class TrialFailed(TrmcloudError):
    exit_code = 31


class NotifyError(TrmcloudError):
    exit_code = 19


class LinkError(TrmcloudError):
    exit_code = 13


class HostKeyChanged(LinkError):
    pass


class LoginRefused(LinkError):
    pass


class NotSendable(LinkError):
    """Trying again does not help."""


class ConnectionDropped(LinkError):
    pass


class NoAddress(ConnectionDropped):
    pass


# How a run can end, in one word, one sentence and one exit code.


class Outcome(str, Enum):
    """A run's outcome, with the exit code that ``launch``, ``resume`` and ``stop`` give for it."""

    FINISHED = "finished"
    LANDED = "landed"
    STOPPED = "stopped"
    GATE_FAILED = "gate_failed"
    NEXT_PHASE_REFUSED = "next_phase_refused"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    UNREPORTED = "unreported"
    NOT_STARTED = "not_started"
    UNFIT = "unfit"
    NO_MACHINE = "no_machine"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


# In the order of the outcomes: each byte of this file is sent to every pod.
_EXIT_CODES = dict(
    zip(Outcome, (0, 20, 21, 22, 23, 24, 25, 26, 29, 27, 28, 75), strict=True)  # 75: EX_TEMPFAIL
)
NO_CHECKPOINT_CODE = 30
"""Of a user's own command that finished or landed, and of which no checkpoint was recognised."""
