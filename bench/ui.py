"""What the page of ``trmcloud ui`` costs: a long run's first curve in a real Chromium against an
empty page of the same server, how soon a heartbeat is shown, and fifty live runs in share of a
core.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from bench.row import Row
from tests.standins.browser import Page, chromium, find_chromium
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import AgentReport, PhaseReport, PhaseState
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.money import Usd
from trmcloud.core.spec.spec import RunSpec
from trmcloud.io.files import write_atomic
from trmcloud.operations.context import Context
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.launch import launching
from trmcloud.operations.pod_request import LaunchData
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

STEPS = 100_000
ROUNDS = 3 if os.environ.get("TRMCLOUD_BENCH_SHORT") else 7
RUNS = 50
_WATCHED_S = 30.0
_MOST_BYTES = 150e3
_FIRST_CHART_S = 1.0
_LOADED = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"
_MOST_RATIO = 3.0
_BEAT_S = 1.0
_MOST_SHARE = 0.05
_EMPTY = (
    b"<!doctype html><title>empty</title><script>requestAnimationFrame(() =>"
    b" requestAnimationFrame(() => performance.mark('first-curve')))</script>"
)
"""Nothing but the instant at which it is on the screen."""


def run() -> list[Row]:
    if not find_chromium():
        print("the page's rows: left out, since there is no chromium")
        return []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {"HOME": name, "TRMCLOUD_HOME": str(folder / "home")}
        with mock.patch.dict(os.environ, environment):
            return [*_one_long_run(folder), *_fifty(folder)]


def serve() -> None:
    """The page's own server, with an empty page beside it: a process of its own."""
    from trmcloud.cli.page.server import page_of, server
    from trmcloud.io.web_server import listening

    with listening("127.0.0.1", 0) as sock:
        made = server(page_of(None, Path.cwd(), live=False), "bench")
        guarded = made.config.app

        async def app(scope, receive, send):  # type: ignore[no-untyped-def]
            if scope.get("path") != "/empty":
                await guarded(scope, receive, send)
                return
            headers = [(b"content-type", b"text/html")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": _EMPTY})

        made.config.app = app
        print(sock.getsockname()[1], flush=True)
        made.run(sockets=[sock])


@contextmanager
def _serving() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", "from bench.ui import serve; serve()"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# -- one long run ---------------------------------------------------------------------------------


def _one_long_run(folder: Path) -> list[Row]:
    world = build_context()
    drivers = [_live(world) for _ in range(ROUNDS + 1)]
    text = "".join(_lines(time.time() - STEPS * 0.5))
    for driver in drivers:
        path = Path(world.files.folder(driver.run_id)) / "fast" / contract.METRICS_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        _beat(world, driver, STEPS)
    with _serving() as (_, port), chromium(folder / "chromium") as browser:
        page, shown, sizes = browser.page(), [], []
        _seconds(page, port, "empty")
        for driver in drivers:  # each is opened once, and has never been read before
            empty_ms = _seconds(page, port, "empty")
            shown.append((_seconds(page, port, f"run/{driver.run_id}#token=bench"), empty_ms))
            sizes.append(page.run(_LOADED))
            page.until("document.documentElement.dataset.drawn === 'whole'", 120)
        late_s = _lateness(page, world, drivers[-1])
    shown = shown[1:]
    ratio = statistics.median(ours / empty for ours, empty in shown)
    ours, empty = (statistics.median(column) for column in zip(*shown, strict=True))
    size = len(text) / 1e6
    told = f"{ours:.0f} over {empty:.0f} ms; metrics of {size:.0f} MB that nobody has read yet"
    steps = f"{STEPS:,} logged steps"
    first = f"all that the first page loads; {sizes[-1] / 1e3:.0f} kB for the next"
    slow = f"the slowest of {len(late_s)} heartbeats; median {statistics.median(late_s):.2f} s"
    return [
        Row(f"page to first curve, {steps}", max(sizes), _MOST_BYTES, "lower", "B", first),
        Row("the same in seconds", ours / 1e3, _FIRST_CHART_S, "lower", "s", told),
        Row("the same in time, over an empty page", ratio, _MOST_RATIO, "lower", "×", told),
        Row("a heartbeat until it is shown", max(late_s), _BEAT_S, "lower", "s", slow),
    ]


def _seconds(page: Page, port: int, path: str) -> float:
    """Milliseconds from the navigation to the mark."""
    page.open(f"http://127.0.0.1:{port}/{path}")
    marks = "performance.getEntriesByName('first-curve')"
    page.until(f"{marks}.length", 60)
    return float(page.run(f"{marks}[0].startTime"))


def _lateness(page: Page, world: Context, driver: RunDriver) -> list[float]:
    """Seconds from each of ten heartbeats, a second apart, until the page has it."""
    late = []
    for number in range(10):
        at = _beat(world, driver, STEPS + number)
        page.until(f"Number(document.documentElement.dataset.beat) >= {at}", 30)
        late.append(time.time() - at)
        time.sleep(max(0.0, at + _BEAT_S - time.time()))
    return late


def _lines(begun: float) -> Iterator[str]:
    """Metrics as the bundled trainer writes them."""
    for step in range(1, STEPS + 1):
        loss = 4.0 / math.log(step + 2) + 0.05 * math.sin(step)
        passes = [round(loss + extra, 6) for extra in (0.31, 0.2, 0.12, 0.0)]
        told = {
            "loss": loss, "step_losses": passes, "grad_norm": 0.9 + 0.1 * math.cos(step),
            "lr": 1.0, "tokens": step * 65536, "refinement": 0.081, "step_seconds": 0.5,
            "data_wait_s": 0.000214, "tokens_per_second": 131072.5, "mfu": 0.4137,
        }  # fmt: skip
        yield _line("train", step, begun + step * 0.5, told)
        if step % 500 == 0:
            judged = {"val_bpb": loss / 3, "val_step_losses": passes, "perplexity": 20.0}
            yield _line("eval", step, begun + step * 0.5, judged)
        if step % 5000 == 0:
            yield _line("save", step, begun + step * 0.5, {"seconds": 2.0, "bytes": 1 << 30})


def _line(kind: str, step: int, at: float, told: dict[str, object]) -> str:
    return json.dumps({"kind": kind, "step": step, "at": round(at, 3), **told}) + "\n"


# -- fifty live runs ------------------------------------------------------------------------------


def _fifty(folder: Path) -> list[Row]:
    """CPU seconds of the server while fifty trainings beat once a second and one page is open."""
    with mock.patch.dict(os.environ, {"TRMCLOUD_HOME": str(folder / "fifty")}):
        world = build_context()
        drivers = [_live(world) for _ in range(RUNS)]
        over = threading.Event()

        def train() -> None:
            step = 0
            while not over.is_set():
                begun, step = time.monotonic(), step + 1
                for driver in drivers:
                    _beat(world, driver, step)
                    path = Path(world.files.folder(driver.run_id)) / "fast" / contract.METRICS_NAME
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(_line("train", step, time.time(), {"loss": 3.0}))
                over.wait(max(0.0, begun + _BEAT_S - time.monotonic()))

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            with _serving() as (process, port):
                heard = _Listening(port)
                heard.until(4 * RUNS)
                before, count, since = _cpu_s(process.pid), heard.beats, time.monotonic()
                time.sleep(_WATCHED_S)
                spent = _cpu_s(process.pid) - before
                watched = time.monotonic() - since
                shown = heard.beats - count
                heard.close()
        finally:
            over.set()
            trainer.join()
    # On a machine too busy for as many, each counts for the second that it should have come in.
    share = spent / min(watched, shown / RUNS)
    detail = f"{spent:.2f} s of {watched:.0f} s; {shown / watched:.0f} heartbeats a second shown"
    name = f"{RUNS} live runs, one page open: share of a core"
    return [Row(name, share, _MOST_SHARE, "lower", "", detail)]


class _Listening(threading.Thread):
    """An open page, as far as its server can tell."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"Authorization": "Bearer bench"}
        self._connection.request("GET", "/api/runs", headers=headers)
        self._connection.getresponse().read()
        self._connection.request("GET", "/api/stream", headers=headers)
        self._answer = self._connection.getresponse()
        self.beats = 0
        self.start()

    def run(self) -> None:
        beats = False
        try:
            while line := self._answer.readline():
                if beats and line.startswith(b"data: "):
                    self.beats += len(json.loads(line[6:]))
                beats = line == b"event: beats\n"
        except (OSError, AttributeError, ValueError):
            pass  # closed

    def until(self, beats: int) -> None:
        deadline = time.monotonic() + 300
        while self.beats < beats:
            assert time.monotonic() < deadline, f"{self.beats} heartbeats"
            time.sleep(0.2)

    def close(self) -> None:
        self._connection.close()


def _cpu_s(pid: int) -> float:
    """Of the process and its threads, the system's part included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _live(world: Context) -> RunDriver:
    """A run on this machine by its records: driven by this process, trained by nobody."""
    spec = RunSpec(
        recipe="trm-tiny", phases=("fast",), hardware="local", budget=Usd("5"), rate=Usd("0.10"),
        data="python-stdlib", steps=60,
    )  # fmt: skip
    plan = build_planner(world.home).plan(spec)
    with mock.patch.object(launching, "reconcile"):
        driver = launching.start(world, plan, data=LaunchData())
    now, candidate = world.wall(), plan.candidates[0]
    name = f"trmc-0-{driver.run_id}-g1-{int(now + 86_400)}"
    pod = ev.PodIntended(1, name, "local", candidate.id, candidate.rate, now + 80_000, now + 86_400)
    for event in (pod, ev.PodUp(1, name, candidate.rate), ev.AgentUp(1)):
        world.ledger.append(driver.run_id, driver.epoch, [event], now)
    return driver


def _beat(world: Context, driver: RunDriver, step: int) -> float:
    """The trainer's heartbeat and its agent's; the instant that both tell."""
    at, run = time.time(), driver.run_id
    beat = Heartbeat(
        run_id=run, phase="fast", attempt=1, pid=os.getpid(), pid_started="1", at=at,
        state="training", step=step, steps=2 * STEPS, loss=3.0, val_bpb=1.1, best_bpb=1.1,
        best_step=1, step_losses=(3.3, 3.2, 3.1, 3.0), tokens_per_second=131_072.0,
    )  # fmt: skip
    folder = Path(world.files.folder(run)) / "fast"
    folder.mkdir(parents=True, exist_ok=True)
    generation = world.ledger.read().runs[run].generation
    assert generation is not None
    phase = PhaseReport("fast", PhaseState.RUNNING, attempts=1)
    report = AgentReport(
        run_id=run, pod_name=generation.pod_name, epoch=1, pid=os.getpid(), started_at=at - 60,
        at=at, phases=(phase,), soft_stop_at=at + 900, hard_stop_at=at + 1000,
    )  # fmt: skip
    there = world.home / contract.PODS_DIR / generation.pod_name
    there.mkdir(parents=True, exist_ok=True)
    write_atomic(there / contract.REPORT_NAME, contract.dump(report), durable=False)
    write_atomic(folder / contract.HEARTBEAT_NAME, contract.dump(beat), durable=False)
    return at
