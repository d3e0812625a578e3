"""A hostile client of ``trmcloud mcp``: random calls over HTTP from several threads, with several
clients of one token and one whose grant is revoked, against a real server that rents from a
stand-in of RunPod on paper.

    python -m tests.e2e.hostile_agent --calls 100000 --state build/mcp-hostile.json \
        --page docs/soak/mcp.md --date 2026-11-27

Judged are the ledger's records one by one, every answer, and files planted where no tool may look.
Calls are made in worlds of a few thousand, each with a server, a home and a grant of its own. The
state has the result of each world that was played to its end, so that the next start continues; it
names the hash of the code, and where that differs, counting starts anew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

import trmcloud
from tests.e2e.agents import RECIPE, end_launchers, own, verify_layers
from tests.e2e.user import User
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.standin import StandIn
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.api import Home
from trmcloud.core.control.budget import LedgerState, extend_ledger, grant_line
from trmcloud.core.control.grants import money_of
from trmcloud.core.money import ZERO, Usd
from trmcloud.mcp.answers import MOST_ASKED_BYTES, MOST_BYTES

TOTAL, PER_RUN = Usd("3"), Usd("0.50")
THREADS = 6
WORLD_CALLS = 5_000
_TIMEOUT_S = 120.0

SCRIPT = """
import os, time
os.makedirs("out", exist_ok=True)
for step in range(1, 21):
    time.sleep(0.02)
    print(f"step {step} val_loss={1 / step:.4f} \\x1b[31m", flush=True)
with open("out/last.pt", "w") as file:
    file.write("1")
"""

COMMAND: Mapping[str, Any] = own(budget="0.02")
RENTED: Mapping[str, Any] = {**RECIPE, "budget": "0.50"}
SWEPT: Mapping[str, Any] = {**RENTED, "space": ["lr=log:1e-4,1"]}


@dataclass
class World:
    """State that the threads share, with all answers so far."""

    url: str
    project: Path
    canary: str
    tokens: Mapping[str, str]
    random: random.Random
    calls: int
    quotes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: int = 0

    def next_number(self) -> int | None:
        with self.lock:
            if self.sent >= self.calls:
                return None
            self.sent += 1
            return self.sent

    def blame(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what[:600])


# -- what is asked ---------------------------------------------------------------------------------

PATHS = (
    "/etc/passwd", "../secret.txt", "~/secret.txt", "link", "linked", "linked/deep", "./../..",
    "out/../../secret.txt", "/proc/self/environ", "file:///etc/passwd", "\u202e/etc",
    "../trmcloud-home/ledger.db", "../trmcloud-home/mcp/tokens.json", "a\0b", "", ".", "train.py",
)  # fmt: skip
AMOUNTS = ("0.01", "0.02", "5", "-1", "1e9", "0", "NaN", 0.01, 2, -0.5, None, "0.0000001", "9" * 30)
TOOLS = (
    "grant", "prices", "plan", "try", "launch", "status", "logs", "metrics", "save", "land", "stop",
    "fetch", "report", "ask_approval", "plan_sweep", "sweep", "raise_grant", "approve", "lunch", "",
)  # fmt: skip


def made_call(world: World, chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A tool's name and its arguments."""
    quote = chance.choice(world.quotes) if world.quotes else "p-0000"
    run = chance.choice(world.runs) if world.runs else "r-000000"
    key = f"key-{chance.randrange(400)}"
    path, amount = chance.choice(PATHS), chance.choice(AMOUNTS)
    most, after = chance.choice((1000, 4000, 64_000, 10**9)), chance.choice((0, -1, 10**18, 1.5))
    tried = {"command": ["python3", "train.py"], "for_s": 1, "metric": "val_loss"}
    kinds: list[tuple[float, Callable[[], tuple[str, dict[str, Any]]]]] = [
        (2, lambda: ("plan", dict(RENTED))),
        (1, lambda: ("plan", dict(COMMAND))),
        (3, lambda: ("plan", {**RENTED, "budget": amount})),
        (4, lambda: ("plan", {**COMMAND, chance.choice(_PATH_NAMES): path})),
        (1, lambda: ("plan_sweep", dict(SWEPT))),
        (1, lambda: ("plan_sweep", {**SWEPT, "budget": amount})),
        (1, lambda: ("plan_sweep", {**SWEPT, "space": [path, f"lr={amount}"]})),
        (14, lambda: ("launch", {"quote": quote, "idempotency_key": key})),
        (6, lambda: ("sweep", {"quote": quote, "idempotency_key": key})),
        (2, lambda: ("sweep", {"quote": quote, "idempotency_key": key, "slots": 64})),
        (4, lambda: ("launch", {"quote": quote, "idempotency_key": key, "budget": "100"})),
        (4, lambda: ("launch", {"quote": path, "idempotency_key": path or "k"})),
        (4, lambda: ("launch", {"quote": quote, "idempotency_key": key, "name": f"n{key}"})),
        (8, lambda: ("status", {"run": run} if chance.random() < 0.5 else {})),
        (6, lambda: ("logs", {"run": run, "most_bytes": most})),
        (4, lambda: ("logs", {"run": run, "phase": path, "after": after})),
        (4, lambda: ("metrics", {"run": run, "points": chance.choice((2, 400, 0, 10**6))})),
        (3, lambda: ("report", {"run": run})),
        (2, lambda: ("land", {"run": run})),
        (2, lambda: ("stop", {"run": run})),
        (3, lambda: ("fetch", {"run": run, "into": path})),
        (2, lambda: ("fetch", {"run": run, "into": f"best-{chance.randrange(10**6)}"})),
        (1, lambda: ("save", {"run": run, "timeout_s": 1})),
        (3, lambda: ("ask_approval", {"why": "more", "more": amount})),
        (3, lambda: ("grant", {"total_usd": "100"} if chance.random() < 0.3 else {})),
        (2, lambda: ("prices", {"gpu": chance.choice(("H100-SXM", path))})),
        (10, lambda: (chance.choice(TOOLS), _noise(chance, path, amount))),
        (0.02, lambda: ("try", tried)),
        (0.05, lambda: ("plan", {"recipe": "x" * 10_000_000})),
    ]  # fmt: skip
    weights = [weight for weight, _ in kinds]
    return chance.choices(kinds, weights)[0][1]()


_PATH_NAMES = ("folder", "data", "root", "pip", "checkpoints", "stop_file")


def _noise(chance: random.Random, path: str, amount: Any) -> dict[str, Any]:
    names = (
        "run",
        "quote",
        "budget",
        "principal",
        "grant",
        "total",
        "by",
        "path",
        "timeoutSeconds",
    )
    values: tuple[Any, ...] = (
        path,
        amount,
        True,
        [],
        {},
        [path] * 3,
        {"a": amount},
        None,
        10**30,
        "x" * 5000,
    )
    return {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(4))}


# -- asking ----------------------------------------------------------------------------------------


def ask(world: World, seed: int) -> None:
    """One thread: calls until there are enough."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx2.Client(timeout=_TIMEOUT_S))
        while (number := world.next_number()) is not None:
            name = chance.choices(("agent", "revoked", "none"), (90, 8, 2))[0]
            headers = {
                "Authorization": f"Bearer {world.tokens.get(name, 'none')}",
                "Accept": "application/json, text/event-stream",
                "Content-Type": "application/json",
            }
            tool, given = made_call(world, chance)
            body = {
                "jsonrpc": "2.0", "id": number, "method": "tools/call",
                "params": {"name": tool, "arguments": given},
            }  # fmt: skip
            text = json.dumps(body)
            if chance.random() < 0.01:
                text = text[: chance.randrange(len(text))]
            leaves = chance.random() < 0.01
            try:
                answer = client.post(
                    world.url, content=text.encode("utf-8", "surrogatepass"), headers=headers,
                    timeout=0.01 if leaves else _TIMEOUT_S,
                )  # fmt: skip
            except httpx2.TimeoutException:
                if not leaves:
                    world.blame(f"no answer in {_TIMEOUT_S} s to {tool} {str(given)[:200]}")
                _count(world, "left in mid-call")
                continue
            except httpx2.TransportError as error:
                if not leaves and len(text) < 1 << 20:
                    world.blame(f"{type(error).__name__} to {tool} {str(given)[:200]}")
                _count(world, "connection closed")
                continue
            judge(world, name, tool, given, answer)


def _count(world: World, kind: str) -> None:
    with world.lock:
        world.answered[kind] += 1


def judge(world: World, name: str, tool: str, given: Mapping[str, Any], answer: Any) -> None:
    """Look at one answer: its form, its size, and whether it has what was planted."""
    about = f"{name} {tool} {str(given)[:200]}: {answer.status_code} {answer.text[:300]}"
    if world.canary in answer.text:
        world.blame(f"planted words in the answer to {about}")
    if answer.status_code != 200:
        allowed = {401: name == "none", 413: True, 400: True, 406: True}
        if not allowed.get(answer.status_code):
            world.blame(f"an unusual status: {about}")
        _count(world, f"HTTP {answer.status_code}")
        return
    told = answer.json()
    if "error" in told:
        _count(world, "protocol error")
        return
    result = told["result"]
    text = result["content"][0]["text"]
    most = given.get("most_bytes")
    most = most if isinstance(most, int) and 1000 <= most <= MOST_ASKED_BYTES else MOST_BYTES
    if len(text.encode()) > most:
        world.blame(f"{len(text.encode())} bytes in the answer to {about}")
    document = json.loads(text)
    if result.get("isError"):
        error = document.get("error", {})
        if not error.get("next") or error.get("message", "").startswith("unexpected"):
            world.blame(f"a refusal without a next step, or a fault: {about}")
        if error.get("code") == "error":
            _count(world, f"refused: {error['message'][:100]}")
        else:
            _count(world, f"refused: {error.get('code')}")
        return
    _count(world, f"done: {tool}")
    with world.lock:
        if "quote" in document:
            world.quotes.append(document["quote"])
            del world.quotes[:-40]
        if tool in ("launch", "sweep") and "run" in document and document["run"] not in world.runs:
            world.runs.append(document["run"])


# -- judging the whole -----------------------------------------------------------------------------


def judge_ledger(ledger: SqliteLedger, begun_seq: int) -> tuple[list[str], int]:
    """Every record in turn: no grant holds more than its total, and none was changed by a tool.
    Return what is wrong, and the number of records."""
    wrong: list[str] = []
    state, count = LedgerState(""), 0
    for record in ledger.records():
        state = extend_ledger(state, (record,))
        count += 1
        kind = type(record.event).__name__
        by = getattr(record.event, "by", "")
        if record.seq > begun_seq and kind in (
            "GrantGiven",
            "GrantRaised",
            "ApprovalGiven",
            "CapSet",
        ):
            wrong.append(f"record {record.seq} is {kind} by {by!r}")
        for grant in state.grants.values():
            line = grant_line(state, grant.principal)
            held = money_of(state, grant)
            assert line is not None
            if held.whole > grant.terms.total or line.over > ZERO:
                wrong.append(f"record {record.seq}: {grant.principal} holds {held.whole}")
            per_run = grant.terms.per_run
            for run in state.runs.values():
                if run.payer.principal == grant.principal and per_run and run.reserved > per_run:
                    wrong.append(f"record {record.seq}: {run.run_id} reserves {run.reserved}")
    return wrong, count


def judge_files(user: User, project: Path, canary: str, before: set[str]) -> list[str]:
    """Planted words are in no file that was made, and nothing was made elsewhere."""
    wrong = []
    for path in (*project.rglob("*"), *user.home.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if path.suffix == ".tar":
                with tarfile.open(path) as archive:
                    names = archive.getnames()
                    if any("secret" in name or name.startswith(("/", "..")) for name in names):
                        wrong.append(f"{path} holds {names[:5]}")
            if canary.encode() in content:
                wrong.append(f"planted words in {path}")
    made = {path.name for path in user.folder.iterdir()} - before
    if made:
        wrong.append(f"made outside: {sorted(made)}")
    return wrong


@contextlib.contextmanager
def serving(user: User, project: Path) -> Iterator[str]:
    """The address of a real server."""
    words = [sys.executable, "-m", "trmcloud", "mcp", "--http", "--port", "0", "--folder"]
    process = subprocess.Popen(
        [*words, str(project)], env=user.env(), cwd=user.folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        assert process.poll() is None, "the server has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=150)


def play(
    user: User, standin: StandIn, calls: int, seed: int, say: Callable[[str], None]
) -> Mapping[str, Any]:
    """Play one world; return its figures, with what was ``wrong``."""
    project, canary = user.folder / "project", f"canary-{secrets.token_hex(12)}"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (user.folder / "secret.txt").write_text(canary)
    (project / "link").symlink_to(user.folder / "secret.txt")
    (project / "linked").mkdir()
    (project / "linked" / "deep").symlink_to(user.folder)
    user.environment |= standin.environment
    owner = Home(user.home)
    verify_layers(user)
    owner.give_grant("agent", TOTAL, per_run=PER_RUN, runs_at_once=4)
    owner.give_grant("revoked", "1", per_run=PER_RUN)
    tokens = {
        name: str(user.json("mcp", "--grant", name, "--new-token", "--json")["token"])
        for name in ("agent", "revoked")
    }
    ledger = SqliteLedger(user.ledger_path)
    begun_seq = max(record.seq for record in ledger.records())
    before, began = {path.name for path in user.folder.iterdir()}, time.monotonic()
    with serving(user, project) as url:
        world = World(url, project, canary, tokens, random.Random(seed), calls)
        threads = [
            threading.Thread(target=ask, args=(world, seed * 1000 + number), daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        revoked = False
        while any(thread.is_alive() for thread in threads):
            time.sleep(1.0)
            if not revoked and world.sent > calls // 3:
                owner.revoke_grant("revoked", now=True)
                revoked = True
            _age_a_quote(user, world)
            say(f"{world.sent:,} calls, {len(world.runs)} runs, {len(world.wrong)} wrong")
    took_s = time.monotonic() - began
    wrong, records = judge_ledger(ledger, begun_seq)
    wrong += judge_files(user, project, canary, before)
    left = owner.grant("agent")
    return {
        "calls": world.sent,
        "took_s": took_s,
        "answers": dict(sorted(world.answered.items())),
        "runs": len([r for r in ledger.read().runs.values() if r.payer.principal]),
        "records": records,
        "spent": str(left.spent),
        "total": str(left.total),
        "wrong": [*world.wrong, *wrong],
    }


def _age_a_quote(user: User, world: World) -> None:
    """Let one quote expire."""
    paths = list((user.home / "mcp" / "quotes").glob("*/p-*.json"))
    if paths:
        path = world.random.choice(paths)
        with contextlib.suppress(OSError, ValueError):
            kept = json.loads(path.read_text())
            path.write_text(json.dumps({**kept, "expires_at": time.time() - 1}))


# -- what many worlds came to ----------------------------------------------------------------------


@dataclass
class Tally:
    """The totals of all worlds of one version of the code."""

    code: str
    worlds: int = 0
    calls: int = 0
    took_s: float = 0.0
    runs: int = 0
    records: int = 0
    spent: str = "$0"
    most_spent: str = "$0"
    answers: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, found: Mapping[str, Any]) -> None:
        self.worlds += 1
        for name in ("calls", "took_s", "runs", "records"):
            setattr(self, name, getattr(self, name) + found[name])
        spent = Usd(found["spent"].removeprefix("$"))
        self.spent = f"${(Usd(self.spent[1:]) + spent).plain()}"
        self.most_spent = f"${max(Usd(self.most_spent[1:]), spent).plain()}"
        self.answers = dict(sorted((Counter(self.answers) + Counter(found["answers"])).items()))
        self.wrong = [*self.wrong, *found["wrong"]][:50]


def code_hash() -> str:
    """SHA-256 over the product's sources and this client."""
    digest, package = hashlib.sha256(), Path(trmcloud.__file__).resolve().parent
    for path in (*sorted(package.rglob("*.py")), Path(__file__).resolve()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def tally_in(state: Path | None) -> Tally:
    """The totals of earlier starts with this version of the code."""
    code = code_hash()
    if state is not None and state.exists():
        kept = json.loads(state.read_text("utf-8"))
        if kept["code"] == code:
            return Tally(**kept)
    return Tally(code)


PAGE = """# A hostile client of `trmcloud mcp`

{calls:,} random calls over HTTP from {threads} threads, in {worlds} worlds, each with a real server
and a grant of {total} that rents from a stand-in of RunPod, on {date}: `make mcp-hostile`, code
`{code:.16}`. Replayed keys, stale and foreign quotes, launches and sweeps at the same time, raised
and misspelt arguments, floats and negative dollars, paths outside the project, links, 10 MB
arguments, half messages, clients that leave in mid-call, two clients of one token, a grant revoked
under way, no token.

| what was judged | result |
|---|---|
| calls | {calls:,} in {took_min:.0f} minutes |
| launches and sweeps that started a run | {runs:,} |
| ledger records, each judged in its turn | {records:,} |
| the most that a world's grant spent of its total | {most_spent} of {total} |
| records after which a grant held more than its total, or a run too much | {over} |
| records that changed a grant or a cap, by a tool | {changed} |
| answers or files with words planted outside the project | {planted} |
| answers that were too large, faults, or refusals without a next step | {bad} |

| answer | times |
|---|---|
{answers}
"""


def page(tally: Tally, date: str) -> str:
    """The page of ``tally``: what was wrong is counted by its kind."""
    rows = "\n".join(f"| {kind} | {n:,} |" for kind, n in tally.answers.items())
    over = [w for w in tally.wrong if w.startswith("record") and " is " not in w]
    changed = [w for w in tally.wrong if w.startswith("record") and " is " in w]
    planted = [w for w in tally.wrong if "planted" in w or "made outside" in w or " holds " in w]
    planted = [w for w in planted if w not in over]
    rest = len(tally.wrong) - len(over) - len(changed) - len(planted)
    return PAGE.format(
        **{**vars(tally), "answers": rows},
        total=TOTAL, threads=THREADS, date=date, took_min=tally.took_s / 60,
        over=len(over), changed=len(changed), planted=len(planted), bad=rest,
    )  # fmt: skip


def play_apart(calls: int, seed: int, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Play a world in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="trmcloud-hostile-") as folder:
        user = User(Path(folder))
        try:
            with judged(Path(folder) / "runpod", real_pods=False) as standin:
                try:
                    return play(user, standin, calls, seed, say)
                finally:
                    end_launchers(user.folder)
        finally:
            user.end_everything()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--state", type=Path, default=None)
    parser.add_argument("--page", type=Path, default=None)
    parser.add_argument("--date", default="")
    given = parser.parse_args()
    said_at = 0.0

    def say(text: str) -> None:
        nonlocal said_at
        if time.monotonic() - said_at > 30:
            said_at = time.monotonic()
            print(text, flush=True)

    tally = tally_in(given.state)
    while tally.calls < given.calls and not tally.wrong:
        seed = given.seed if given.seed is not None else secrets.randbelow(1 << 30)
        print(f"seed {seed}, {tally.calls:,} calls so far", flush=True)
        tally.add(play_apart(min(WORLD_CALLS, given.calls - tally.calls), seed, say))
        if given.state is not None:
            given.state.parent.mkdir(parents=True, exist_ok=True)
            given.state.write_text(json.dumps(vars(tally), indent=1), encoding="utf-8")
        if given.page is not None:
            given.page.write_text(page(tally, given.date), encoding="utf-8")
    print(json.dumps({**vars(tally), "wrong": tally.wrong[:20]}, indent=1))
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
