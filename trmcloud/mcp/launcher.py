"""The process of one launch: it outlives the client and the server, and drives the run to its end.

    python -m trmcloud.mcp.launcher HOME GRANT CLAIM [remote]

``CLAIM`` is the file that ``quotes.Launches`` wrote. While the process lives, it holds a lock on
that file, so a second one for the same key leaves at once. The ledger's idempotency key decides all
the same: a launch that is repeated after a crash returns the run of the first one.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    DataError,
    DoesNotFit,
    GrantRefused,
    NoCapacity,
    NotFoundError,
    NotSupported,
    ProviderError,
    TrialFailed,
    TrmcloudError,
    UsageError,
    code_of,
)
from trmcloud.io.files import write_atomic

_REFUSALS: tuple[type[TrmcloudError], ...] = (
    BudgetRefused, ConflictError, DataError, DoesNotFit, GrantRefused, NoCapacity, NotFoundError,
    NotSupported, ProviderError, TrialFailed, UsageError,
)  # fmt: skip
_TRIES, _TRY_EVERY_S = 10, 0.1
_REMOTE = "remote"
"""For a client that may be another user of this machine."""


def begin(
    home: Path,
    grant: str,
    claim: Path,
    folder: Path,
    *,
    uses_machine: bool,
) -> subprocess.Popen[bytes]:
    """Start it, in a session of its own: what ends the client or the server does not end it.

    Raises:
        OSError: it cannot be started.
    """
    # The folder is the agent's: no module in it is imported, here or by what this starts.
    words = [sys.executable, "-P", "-m", "trmcloud.mcp.launcher", str(home), grant, str(claim)]
    words += [] if uses_machine else [_REMOTE]
    log = os.open(claim.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            words, cwd=folder, env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(log)


def is_running(claim: Path) -> bool:
    """Whether the process of that launch lives."""
    try:
        handle = os.open(claim, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def refusal_of(told: Mapping[str, Any]) -> TrmcloudError:
    """Return the refusal that the process left, of the kind that it was."""
    kinds = {code_of(kind("")): kind for kind in _REFUSALS}
    kind = kinds.get(str(told.get("code")), TrmcloudError)
    return kind(str(told["error"]), next_step=str(told.get("next") or ""))


def _kind_of(error: TrmcloudError) -> type[TrmcloudError]:
    """Return the kind that ``refusal_of`` knows: a ``QuoteRefused`` is a conflict."""
    known = [kind for kind in _REFUSALS if isinstance(error, kind)]
    return type(error) if type(error) in known else next(iter(known), TrmcloudError)


def launch(home: Home, ledger_key: str, claimed: Mapping[str, Any]) -> str:
    """Launch what was quoted; return the run's id once it trains, or has ended.

    Raises:
        TrmcloudError: nothing was rented.
    """
    quote, labels = claimed["quote"], claimed["labels"]
    more = {**labels, "idempotency_key": ledger_key}
    if quote.get("space"):
        wish = {**quote["wish"], **more}
        return home.sweep(
            quote["space"], quote["words"], here=quote["folder"], quote=quote["id"], **wish
        ).id
    if not quote["words"]:
        return home.launch(quote["id"], **more).id
    wish = {**quote["wish"], **more}
    return home.run_command(quote["words"], here=quote["folder"], quote=quote["id"], **wish).id


def _lock(claim: Path) -> bool:
    """Hold the claim's lock until this process ends; return whether that can be done. One who
    looks at it (``is_running``) holds it for a moment."""
    handle = os.open(claim, os.O_RDONLY)
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(_TRY_EVERY_S)
    return False


def main() -> None:
    home_path, grant, claim_path = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    if not _lock(claim_path):
        return
    claimed = json.loads(claim_path.read_text("utf-8"))
    result = claim_path.with_suffix(".result")
    ledger_key = f"mcp:{grant}:{claimed['key']}"
    home = Home(home_path, principal=grant, uses_machine=_REMOTE not in sys.argv[4:])
    try:
        run_id = launch(home, ledger_key, claimed)
    except TrmcloudError as error:
        told: dict[str, Any] = {
            "code": code_of(_kind_of(error)("")),
            "error": str(error),
            "next": error.next_step,
        }
        # A quote whose price no longer holds comes with the plan that does.
        told |= {"anew": hasattr(error, "plan")}
        write_atomic(result, json.dumps(told), mode=0o600)
        return
    write_atomic(result, json.dumps({"run": run_id}), mode=0o600)
    home.wait(run_id)


if __name__ == "__main__":
    main()
