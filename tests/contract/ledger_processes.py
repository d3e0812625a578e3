"""Real processes that make one ledger, race for it and fill its disk: run by ``test_ledger_disk``.

    python ledger_processes.py race|grant|create|full FOLDER ROUNDS SEED

Prints one JSON object. Children are forked from a process that holds nothing open, since starting
an interpreter for each of them would take minutes.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.plans import plan_json
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import FailureKind
from trmcloud.core.errors import BudgetRefused, LedgerError
from trmcloud.core.money import Usd
from trmcloud.ports.ledger import ControllerId

WHO = ControllerId("laptop", 101, "boot-1")
AT = 1_790_000_000.0
PATIENCE_S = 60.0


def spawn(work: Callable[[int], int]) -> tuple[int, int]:
    """Fork a child that does ``work(pipe to write to)``; its pid, and the pipe's other end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(read_end)
            code = work(write_end)
        finally:
            os._exit(code)
    os.close(write_end)
    return pid, read_end


def drain(pipe: int) -> bytes:
    data = b""
    while chunk := os.read(pipe, 65536):
        data += chunk
    os.close(pipe)
    return data


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def plan(cap: int = 10, principal: str = "") -> ev.RunPlanned:
    return ev.RunPlanned(plan_json(), Usd(cap), "thesis", principal=principal)


def race(folder: Path, rounds: int, rng: random.Random) -> dict[str, int]:
    """Two processes ask for money that is there only once, at the same moment."""
    cap = ev.CapSet("account", "", Usd(5))
    return raced(folder, rounds, "", lambda ledger, _: ledger.set_cap(cap, AT))


def grant(folder: Path, rounds: int, rng: random.Random) -> dict[str, int]:
    """Likewise under one grant, which is short of money in total, on a day, in a month, or of runs
    at once."""
    short = (
        ev.GrantTerms(Usd(5)),
        ev.GrantTerms(Usd(50), per_day=Usd(5)),
        ev.GrantTerms(Usd(50), per_month=Usd(5)),
        ev.GrantTerms(Usd(50), runs_at_once=1),
    )

    def give(ledger: SqliteLedger, number: int) -> None:
        ledger.set_grant(ev.GrantGiven("agent", short[number % len(short)]), AT)

    return raced(folder, rounds, "agent", give)


def raced(
    folder: Path, rounds: int, principal: str, limit: Callable[[SqliteLedger, int], None]
) -> dict[str, int]:
    won = [0, 0]
    for number in range(rounds):
        path = folder / str(number) / "ledger.db"
        limit(SqliteLedger(path), number)
        go_read, go_write = os.pipe()

        children = [
            spawn(contender(path, name, principal, (go_read, go_write))) for name in ("r0", "r1")
        ]
        for _, pipe in children:
            os.read(pipe, 5)
        os.close(go_write)
        codes = [exit_code(pid) for pid, _ in children]
        for _, pipe in children:
            os.close(pipe)
        os.close(go_read)
        assert sorted(codes) == [0, 4], codes
        won[codes.index(0)] += 1
        line = SqliteLedger(path).read().line("account", "")
        assert line.reserved == Usd(3), line
    return {"rounds": rounds, "first_won": won[0], "second_won": won[1]}


def contender(
    path: Path, run_id: str, principal: str, gates: tuple[int, int]
) -> Callable[[int], int]:
    def work(pipe: int) -> int:
        os.close(gates[1])
        ledger = SqliteLedger(path, busy_timeout_s=PATIENCE_S)
        os.write(pipe, b"ready")
        os.read(gates[0], 1)  # Returns once the parent has closed the other end.
        try:
            ledger.open_run(run_id, plan(principal=principal), Usd(3), WHO, AT)
        except BudgetRefused as error:
            return error.exit_code
        return 0

    return work


def create(folder: Path, rounds: int, rng: random.Random) -> dict[str, int]:
    """Three processes make one ledger at once, and one of them is killed on the way."""
    killed = 0
    for number in range(rounds):
        path = folder / str(number) / "ledger.db"

        def maker(pipe: int, path: Path = path) -> int:
            os.write(pipe, SqliteLedger(path, busy_timeout_s=PATIENCE_S).ledger_id.encode())
            return 0

        children = [spawn(maker) for _ in range(3)]
        time.sleep(rng.uniform(0, 0.004))
        os.kill(children[0][0], signal.SIGKILL)
        codes = [exit_code(pid) for pid, _ in children]
        killed += codes[0] == -signal.SIGKILL
        assert codes[1:] == [0, 0], codes
        said = {drain(pipe).decode() for _, pipe in children} - {""}
        assert said == {SqliteLedger(path).ledger_id}, said
    return {"rounds": rounds, "killed": killed}


def full(folder: Path, rounds: int, rng: random.Random) -> dict[str, int]:
    """The disk fills up (a file-size limit) in the middle of writing; nothing is half there."""
    path = folder / "ledger.db"
    epoch = SqliteLedger(path).open_run("r0", plan(), Usd(1), WHO, AT)

    def work(pipe: int) -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = path.stat().st_size + room_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ledger = SqliteLedger(path)
        try:
            for number in range(1000):
                text = "x" * 2000
                ledger.append(
                    "r0",
                    epoch,
                    [ev.ActionFailed(f"r0/g1/pull/{number}", "pull", FailureKind.ERROR, text)],
                    AT,
                )
                os.write(pipe, b".")
        except LedgerError as error:
            os.write(pipe, f"\n{type(error).__name__}: {error}".encode())
            return error.exit_code
        return 0

    total = room_bytes = 0
    for _ in range(rounds):
        before = len(SqliteLedger(path).records())
        room_bytes = rng.randrange(60_000)
        pid, pipe = spawn(work)
        acks, _, message = drain(pipe).partition(b"\n")
        assert exit_code(pid) == 7, message
        assert message.startswith(b"LedgerError"), message
        assert len(SqliteLedger(path).records()) == before + len(acks)
        total += len(acks)
    return {"rounds": rounds, "acknowledged": total}


def main() -> None:
    what, folder, rounds, seed = sys.argv[1:]
    done = {"race": race, "grant": grant, "create": create, "full": full}[what](
        Path(folder), int(rounds), random.Random(int(seed))
    )
    print(json.dumps(done))


if __name__ == "__main__":
    main()
