"""Ending a run does not wait for other requests, connections, threads or the ledger."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.crash.test_disk_full import SmallDisk
from tests.e2e.serving import Server, UiServer
from tests.e2e.test_judged_runs import bound, launched, living, locked
from tests.e2e.user import User, until
from tests.standins.half_open import half_open_at, no_more_files
from trmcloud.core.errors import LedgerError, Outcome

STREAMS, SLOW, HALF_OPEN, STUCK = 256, 256, 600, 200
WITHIN_S = 2.0
ASKED = 8
"""How often an answer is timed, beside those that end a run."""
Fields = Mapping[str, str]

# -- slow and many connections ---------------------------------------------------------------------


def sent(port: int, text: str, body: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    with contextlib.suppress(ConnectionError):
        made.sendall(text.encode() + body)
    return made


def request(port: int, line: str, headers: Fields) -> str:
    fields = {"Host": f"127.0.0.1:{port}", **headers}
    return "\r\n".join([line, *(f"{k}: {v}" for k, v in fields.items()), "", ""])


@contextlib.contextmanager
def silent_provider(user: User) -> Iterator[None]:
    """A provider that takes connections and says nothing: who asks it waits for long."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as silent:
        user.environment |= {
            "TRMCLOUD_RUNPOD_API": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "RUNPOD_API_KEY": "not-a-valid-key",
        }
        yield


_FLOOD = """
import http.client, json, sys, threading
port, line, headers, body = int(sys.argv[1]), *map(json.loads, sys.argv[2:])
def ask():
    while True:
        try:
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            for _ in range(50):
                made.request(*line, body, headers)
                made.getresponse().read()
        except Exception:
            pass
for _ in range(15):
    threading.Thread(target=ask, daemon=True).start()
ask()
"""


@contextlib.contextmanager
def flood(port: int, line: tuple[str, str], headers: Fields, body: str | None) -> Iterator[None]:
    words = [sys.executable, "-c", _FLOOD, str(port), *map(json.dumps, (line, headers, body))]
    process = subprocess.Popen(words)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def answered(
    port: int, path: str, headers: Fields, body: Any, most_s: float = 30
) -> tuple[float, int, Any]:
    """(seconds, status, answer) of a POST over a connection of its own."""
    began = time.monotonic()
    made = http.client.HTTPConnection("127.0.0.1", port, timeout=most_s)
    try:
        made.request("POST", path, json.dumps(body), headers)
        answer = made.getresponse()
        told = answer.read()
        return time.monotonic() - began, answer.status, json.loads(told)
    except OSError as error:
        return time.monotonic() - began, 0, repr(error)
    finally:
        made.close()


@contextlib.contextmanager
def besieged(
    port: int, headers: Fields, stream: str, slow: str, stuck: tuple[str, bytes]
) -> Iterator[list[socket.socket]]:
    """Streams, requests whose bodies never end, requests that never come to an end, and half-open
    connections. All but the last bear the token."""
    with contextlib.ExitStack() as stack:
        made = []
        endless = request(port, f"POST {slow} HTTP/1.1", {**headers, "Content-Length": "900"})
        for text, count, body in (
            (request(port, f"GET {stream} HTTP/1.1", headers), STREAMS, b""),
            (stuck[0], STUCK, stuck[1]),
            (endless, SLOW, b"{"),
        ):
            made += [stack.enter_context(sent(port, text, body)) for _ in range(count)]
        stack.enter_context(half_open_at(port, HALF_OPEN))
        yield made


def taken_in(port: int, path: str, headers: Fields, body: Any) -> float:
    """How long the first answer takes while a thousand connections come in at once: no longer than
    accepting them does. A machine that is busy with other tests needs seconds for that."""
    took_s, status, told = answered(port, path, headers, body)
    assert status, told
    return took_s


def times(told: list[tuple[float, int, Any]]) -> str:
    took_s = [each[0] for each in told]
    return f"median {statistics.median(took_s):.3f} s, max {max(took_s):.3f} s"


def test_the_pages_stop_answers_beside_streams_floods_and_stuck_requests(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn", reason="the extra `ui`")
    over = launched(user, "over", steps=40)
    user.hold()
    runs = [launched(user, f"live-{number}") for number in range(2)]
    stop = {"verb": "stop", "agreed": "1"}
    page = UiServer(user, limit=no_more_files)
    headers = {"Authorization": f"Bearer {page.token}", "Content-Type": "application/json"}
    # No request of the page asks a provider: these wait for each other, and for the flood's.
    names = ",".join(run.run_id for run in (over, *runs))
    stuck = request(page.port, f"GET /api/compare?runs={names} HTTP/1.1", headers), b""
    try:
        with (
            besieged(page.port, headers, "/api/stream", "/api/runs/none/do", stuck) as made,
            flood(page.port, ("GET", "/api/runs"), headers, None),
        ):
            streams = [first_line(each) for each in made[:STREAMS]]
            busy = b"HTTP/1.1 503 Service Unavailable"
            assert set(streams) <= {b"HTTP/1.1 200 OK", busy, b""}
            assert streams.count(b"HTTP/1.1 200 OK") == 64
            path = "/api/runs/{}/do".format
            first = taken_in(page.port, path(over.run_id), headers, stop)
            told = [answered(page.port, path(over.run_id), headers, stop) for _ in range(ASKED)]
            assert {each[1] for each in told} == {409}, told
            clicked = [answered(page.port, path(run.run_id), headers, stop) for run in runs]
            assert {each[1] for each in clicked} == {202}, clicked
            for run in runs:
                until(lambda run=run: not living(user, run), within_s=60)  # type: ignore[misc]
    finally:
        page.kill()
    with capsys.disabled():
        print(f"\nthe page's stop, besieged: {times([*told, *clicked])}, first {first:.3f} s")
    assert max(each[0] for each in [*told, *clicked]) < WITHIN_S


def is_waiting(each: socket.socket) -> bool:
    """Whether it is open, and no answer has come."""
    each.setblocking(False)
    try:
        each.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


def first_line(each: socket.socket) -> bytes:
    """Of the answer; empty where the connection gave way to others before it was read."""
    each.settimeout(30)
    try:
        return each.recv(200).partition(b"\r\n")[0]
    except ConnectionError:
        return b""


class McpServer(Server):
    def __init__(self, user: User) -> None:
        from tests.e2e.agents import project

        super().__init__(user, "mcp", "--http", "--folder", str(project(user)), limit=no_more_files)


def calling(tool: str, **given: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": given}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


#: It asks the provider for its prices.
STUCK_CALL = calling(
    "plan", recipe="trm-tiny", phase="fast", hardware="1xA100", provider=["runpod"], budget="1"
)


@contextlib.contextmanager
def mcp_served(user: User) -> Iterator[tuple[McpServer, dict[str, str]]]:
    pytest.importorskip("mcp", reason="the SDK of the Model Context Protocol is not installed")
    token = str(user.json("mcp", "--grant", "agent", "--new-token", "--json")["token"])
    made = McpServer(user)
    try:
        yield (
            made,
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
            },
        )
    finally:
        made.kill()


def test_mcps_stop_answers_beside_streams_floods_and_stuck_calls(
    user: User, capsys: pytest.CaptureFixture[str]
) -> None:
    user.run("grant", "give", "agent", "5", "--runs-at-once", "0")
    with bound(user):
        over = launched(user, "over", steps=40)
        user.hold()
        runs = [launched(user, f"live-{number}") for number in range(2)]
    with silent_provider(user), mcp_served(user) as (server, headers):
        body = json.dumps(STUCK_CALL)
        stuck = request(
            server.port, "POST /mcp HTTP/1.1", {**headers, "Content-Length": str(len(body))}
        )
        status = json.dumps(calling("status", run=over.run_id))
        with (
            besieged(server.port, headers, "/mcp", "/mcp", (stuck, body.encode())) as made,
            flood(server.port, ("POST", "/mcp"), headers, status),
        ):
            refused = b"HTTP/1.1 405 Method Not Allowed"
            assert {first_line(each) for each in made[:STREAMS]} <= {refused, b""}
            held = made[STREAMS : STREAMS + STUCK]
            port, again = server.port, calling("stop", run=over.run_id)
            first = taken_in(port, "/mcp", headers, again)
            told = [answered(port, "/mcp", headers, again) for _ in range(ASKED)]
            assert all("has already ended" in json.dumps(each[2]) for each in told), told
            ended = [answered(port, "/mcp", headers, calling("stop", run=r.run_id)) for r in runs]
            assert {each[1] for each in ended} == {200}, ended
            assert not any(each[2]["result"]["isError"] for each in ended), ended
            for run in runs:
                until(lambda run=run: not living(user, run), within_s=60)  # type: ignore[misc]
            assert sum(map(is_waiting, held)) > 6, "more than are answered at once still wait"
    with capsys.disabled():
        print(f"\nMCP's stop, besieged: {times([*told, *ended])}, first {first:.3f} s")
    assert max(each[0] for each in [*told, *ended]) < WITHIN_S


def test_a_revoked_grants_calls_under_way_are_ended(user: User) -> None:
    user.run("grant", "give", "agent", "5")
    with silent_provider(user), mcp_served(user) as (server, headers):
        stream = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        stream.request("GET", "/mcp", headers=headers)
        refused = stream.getresponse()
        assert (refused.status, refused.getheader("allow")) == (405, "POST")
        told: list[tuple[float, int, Any]] = []
        # Another token takes the place of the first; then the grant is revoked.
        for end in (("mcp", "--grant", "agent", "--new-token"), ("grant", "revoke", "agent")):
            ask = threading.Thread(
                target=lambda: told.append(answered(server.port, "/mcp", headers, STUCK_CALL, 60))
            )
            ask.start()
            time.sleep(1.5)  # the ledger write is in progress and continues
            assert ask.is_alive(), told
            out = user.run(*end)
            began = time.monotonic()
            ask.join(30)
            assert time.monotonic() - began < WITHIN_S
            assert told.pop()[1] == 401
            if end[0] == "mcp":
                (token,) = [word for word in out.split() if len(word) == 43]
                headers["Authorization"] = f"Bearer {token}"


# -- a ledger that takes no record -----------------------------------------------------------------


@contextlib.contextmanager
def _full(user: User, disk: SmallDisk) -> Iterator[None]:
    with disk.kept_full():
        yield
    disk.free()
    (user.home / "filler").unlink()


@contextlib.contextmanager
def _locked_for_all(user: User, disk: SmallDisk) -> Iterator[None]:
    with locked(user.ledger_path, "EXCLUSIVE"):
        yield


@contextlib.contextmanager
def _silent_database(user: User, disk: SmallDisk) -> Iterator[None]:
    """A server that takes connections and says nothing."""
    pytest.importorskip("psycopg", reason="the extra `postgres`")
    aside = user.folder / "aside"
    aside.mkdir()
    own = [user.home / name for name in ("ledger.db", "ledger.head", "backups")]
    for path in own:
        shutil.move(path, aside)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        user.environment["TRMCLOUD_LEDGER"] = (
            f"postgresql://u:p@127.0.0.1:{silent.getsockname()[1]}/db"
        )
        try:
            yield
        finally:
            del user.environment["TRMCLOUD_LEDGER"]
            for path in own:
                shutil.move(aside / path.name, path)


Harm = Callable[[User, SmallDisk], contextlib.AbstractContextManager[None]]
HARMS: Mapping[str, Harm] = {
    "full": _full,
    "locked for all": _locked_for_all,
    "a silent database": _silent_database,
}


@pytest.fixture
def disk(user: User) -> Iterator[SmallDisk]:
    made = SmallDisk(user.home, size_mb=400)
    yield made
    made.free()
    user.end_everything()
    made.give_back()


@pytest.fixture
def runtime(user: User, tmp_path: Path) -> Path:
    """Where this user's intents are kept."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    user.environment["XDG_RUNTIME_DIR"] = str(folder)
    return folder


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_run_of_this_machine_is_ended_where_its_ledger_takes_no_record(
    user: User, disk: SmallDisk, runtime: Path, harm: Harm, capsys: pytest.CaptureFixture[str]
) -> None:
    user.hold()
    run = launched(user, "night")
    assert living(user, run)
    generation = run.generation
    assert generation is not None
    with harm(user, disk):
        began = time.monotonic()
        process = user.start("stop", "--now", "-y", run.run_id)
        until(
            lambda: not _processes(generation.pod_name) or process.poll() is not None,
            within_s=60,
            what="it has ended",
        )
        assert not _processes(generation.pod_name), process.communicate()
        took_s = time.monotonic() - began
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, f"{process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        assert "asked local to end" in out
        (note,) = runtime.glob("trmcloud-ending-*")
        assert str(note) in err
    user.run("status")
    ended = user.ledger().runs[run.run_id]
    assert (ended.outcome, list(runtime.glob("*"))) == (Outcome.STOPPED, [])
    assert took_s < 8, "the ledger was waited for again and again"
    with capsys.disabled():
        print(f"\nended after {took_s:.2f} s")


def _processes(pod_name: str) -> list[int]:
    from trmcloud.pod.machine import processes

    return processes.of_pod(pod_name)


def test_the_page_and_mcp_end_a_run_where_its_ledger_takes_no_record(
    user: User, runtime: Path
) -> None:
    pytest.importorskip("uvicorn", reason="the extra `ui`")
    user.run("grant", "give", "agent", "5", "--runs-at-once", "0")
    user.hold()
    with bound(user):
        by_agent, by_owner = launched(user, "agents"), launched(user, "owners")
    page = UiServer(user)
    headers = {"Authorization": f"Bearer {page.token}", "Content-Type": "application/json"}
    try:
        with mcp_served(user) as (server, token), locked(user.ledger_path, "IMMEDIATE"):
            path = f"/api/runs/{by_owner.run_id}/do"
            took_s, status, told = answered(
                page.port, path, headers, {"verb": "stop", "agreed": "1"}
            )
            assert status == 202, told
            assert took_s < WITHIN_S
            until(lambda: not living(user, by_owner), within_s=30, what="the page ends it")
            _, status, told = answered(
                server.port, "/mcp", token, calling("stop", run=by_agent.run_id), 120
            )
            assert status == 200, told
            document = told["result"]["structuredContent"]
            assert not told["result"]["isError"], told
            assert "not in the ledger yet" in document["trouble"]
            assert not living(user, by_agent)
    finally:
        page.kill()
    user.run("status")
    runs = user.ledger().runs
    assert {runs[each.run_id].outcome for each in (by_agent, by_owner)} == {Outcome.STOPPED}


def test_a_name_without_a_ledger_ends_nothing(user: User) -> None:
    """Which run has it, only the ledger says."""
    user.hold()
    run = launched(user, "night")
    with locked(user.ledger_path, "EXCLUSIVE"):
        for words in (("stop", "--now", "-y", "night"), ("admin", "reap", "night", "-y")):
            told = user.fails(*words, code=LedgerError.exit_code)
        with bound(user):
            for words in (("stop", "--now", "-y", run.run_id), ("admin", "reap", run.run_id, "-y")):
                user.fails(*words, code=LedgerError.exit_code)
    assert told
    assert living(user, run)
    user.run("stop", "--now", "-y", "night")
