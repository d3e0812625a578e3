"""Watches over runs for the page, and the jobs it starts."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.cli.page import shown
from trmcloud.cli.page.encoding import page_json
from trmcloud.cli.page.feed import Feed
from trmcloud.cli.views.troubles import trouble_lines, unreached_lines
from trmcloud.core.contract.pod_contract import HEARTBEAT_NAME, METRICS_NAME
from trmcloud.core.errors import ConflictError, TrmcloudError
from trmcloud.core.spec.settings import PHASE_NAMES
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.operations.context import run_by_id
from trmcloud.operations.curves.curve_marks import marks_of
from trmcloud.operations.curves.curve_store import CurveStore
from trmcloud.operations.encoding import encode
from trmcloud.operations.run_queries import is_driven
from trmcloud.operations.runs.machine_history import samples_path
from trmcloud.operations.runs.run_facts import training_of
from trmcloud.operations.runs.run_views import symptoms
from trmcloud.ports.machine import Progress

_KEPT = 20
_TELL_EVERY_S = 0.25
WORKING, DONE, FAILED = "working", "done", "failed"


class Job(Value):
    """``text`` is what came of it; ``next`` what to type, or do, where it failed."""

    number: int
    verb: str
    run: str
    state: str = WORKING
    text: str = ""
    next: str = ""
    done: int = 0
    size: int = 0


class Jobs:
    def __init__(self, feed: Feed, now: Callable[[], float] = time.monotonic) -> None:
        self._feed, self._now = feed, now
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def to_json(self) -> list[dict[str, Any]]:
        with self._lock:
            return [vars(job) for job in self._jobs.values()]

    def start(self, verb: str, run: str, work: Callable[[Progress], str]) -> int:
        """``work`` is given where to tell (done, total) bytes, and returns what came of it.

        Raises:
            ConflictError: the same is being done to the run already.
        """
        with self._lock:
            for job in self._jobs.values():
                if (job.verb, job.run, job.state) == (verb, run, WORKING):
                    raise ConflictError(f"{run}: {verb} is under way already, by a click before")
            number = next(self._numbers)
            self._jobs[number] = Job(number, verb, run)
            for old in list(self._jobs)[:-_KEPT]:
                if self._jobs[old].state != WORKING:
                    del self._jobs[old]
        self._tell()
        threading.Thread(target=self._carry, args=(number, work), daemon=True).start()
        return number

    def _carry(self, number: int, work: Callable[[Progress], str]) -> None:
        told_at = self._now()

        def progress(done: int, size: int) -> None:
            nonlocal told_at
            if self._now() - told_at >= _TELL_EVERY_S:
                told_at = self._now()
                self._change(number, done=done, size=size)

        try:
            self._change(number, state=DONE, text=one_line(work(progress)))
        except TrmcloudError as error:
            what, after = one_line(str(error)), one_line(error.next_step)
            self._change(number, state=FAILED, text=what, next=after)
        except Exception as error:  # told where it was asked for: the server goes on
            what = one_line(f"unexpected {type(error).__name__}: {error}")
            self._change(number, state=FAILED, text=what)

    def _change(self, number: int, **news: Any) -> None:
        with self._lock:
            self._jobs[number] = replace(self._jobs[number], **news)
        self._tell()

    def _tell(self) -> None:
        self._feed.tell("jobs", self.to_json())


# What has changed since the last look: heartbeats and curves many times a second, by the files'
# own dates; money, kill layers and pods as often as a small share of one core allows.
#
# While no page is open, nothing is looked at: ``trmcloud admin guard`` looks after runs then.

TICK_S = 0.25
_OF_A_CORE = 40
"""A look is followed by so many times its own length of rest: two and a half per cent."""
_LOOK_EVERY_S = 2.0
_BUDGETS_EVERY_S = 5.0
_CATCH_UP_EVERY_S = 2.0
_CATCH_UP_AT_LEAST_S = 60.0
_HEALTH_EVERY_S = 10.0

_Stamp = tuple[int, int, int]


def _stamp(path: str) -> _Stamp | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@dataclass
class HeartbeatWatch:
    """The quick look: which files have other dates than before. ``changed`` is told of runs whose
    record in the ledger has."""

    home: Home
    feed: Feed
    curves: CurveStore
    changed: Callable[[Sequence[str]], None]
    _ledger: _Stamp | None = None
    _states: dict[str, object] = field(default_factory=dict)
    _live: list[str] = field(default_factory=list)
    _seen: dict[str, _Stamp | tuple[_Stamp | None, ...]] = field(default_factory=dict)

    def tick(self) -> None:
        """
        Raises:
            LedgerError: the ledger cannot be read now.
        """
        self._read_ledger()
        news = [row for run_id in self._live for row in self._beat(run_id)]
        if news:
            self.feed.tell("beats", news)
        for run_id in self.feed.watched:
            if run_id in self._states:
                self._grow(run_id)
                self._tell_details(run_id)

    def _read_ledger(self) -> None:
        now = _stamp(str(self.home.context.home / "ledger.head"))
        if now is not None and now == self._ledger:
            return
        states = {run.run_id: run for run in self.home.states()}
        before, self._states = self._states, dict(states)
        self._live = [run_id for run_id, run in states.items() if run.live]
        self._ledger = now
        self.changed([name for name, run in self._states.items() if before.get(name) is not run])

    def _beat(self, run_id: str) -> list[dict[str, object]]:
        folder = self.home.context.files.folder(run_id)
        rows: list[dict[str, object]] = []
        for phase in PHASE_NAMES:
            path = os.path.join(folder, phase, HEARTBEAT_NAME)
            stamp = _stamp(path)
            if stamp is None or stamp == self._seen.get(path):
                continue
            self._seen[path] = stamp
            beat = self.home.context.files.heartbeat(run_id, phase)
            if beat is not None:
                training = training_of(run_by_id(self.home.context, run_id), beat)
                rows.append({"run": run_id, "training": shown.training_json(training)})
        return rows

    def _grow(self, run_id: str) -> None:
        """Curves of a run that is looked at, where its metrics have grown."""
        context = self.home.context
        folder = Path(context.files.folder(run_id))
        stamps = [_stamp(str(folder / phase / METRICS_NAME)) for phase in PHASE_NAMES]
        key, stamp = f"{run_id}/metrics", tuple(stamps)
        if stamp == self._seen.get(key):
            return
        self._seen[key] = stamp
        news = self.curves.news(context, run_by_id(context, run_id))
        if news is None:
            self.feed.tell("curves", {}, run_id)
        elif news.train.step or news.evals.step:
            phases = [{"name": name, "step": step} for name, step in news.phases]
            told = {"train": news.train.to_json(), "evals": news.evals.to_json(), "phases": phases}
            self.feed.tell("points", told, run_id)

    def _tell_details(self, run_id: str) -> None:
        """Tell a run's page that its log or its machine's history has grown: the page asks for what
        it shows of them."""
        context = self.home.context
        logs = [_stamp(context.files.logs(run_id, phase)) for phase in PHASE_NAMES]
        samples = _stamp(str(samples_path(context.home, run_id)))
        for kind, stamp in (("log", tuple(logs)), ("machine", samples)):
            key = f"{run_id}/{kind}"
            if stamp is not None and stamp != self._seen.get(key):
                self._seen[key] = stamp
                self.feed.tell(kind, {}, run_id)


@dataclass
class RunWatch:
    """The slow look: one run at a time, the longest unseen first; those that changed before."""

    home: Home
    feed: Feed
    curves: CurveStore
    now: Callable[[], float] = time.monotonic
    busy: Callable[[], float] = time.thread_time
    _changed: dict[str, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looked: dict[str, float] = field(default_factory=dict)
    _health: dict[str, float] = field(default_factory=dict)
    _budgets_at: float = -1e9
    _catch_up_at: float = -1e9
    _caught_up_at: float = -1e9
    _trouble: str = ""

    def mark(self, run_ids: Sequence[str]) -> None:
        """These are to be looked at next. From any thread."""
        with self._lock:
            self._changed.update(dict.fromkeys(run_ids))

    def tick(self) -> float:
        """One look; for how long to rest after it, in seconds.

        Raises:
            LedgerError: the ledger cannot be read now.
        """
        began, busy = self.now(), self.busy()
        did = self._catch_up() or self._budgets() or self._one_run() or self._one_health()
        if not did:
            return TICK_S
        spent = self.busy() - busy
        return max(spent * _OF_A_CORE, min(self.now() - began, 1.0)) if spent > 1e-4 else 0.01

    def _catch_up(self) -> bool:
        """Bring runs without a driver up to date, as any command would."""
        now = self.now()
        if now < self._catch_up_at:
            return False
        context = self.home.context
        live = [state for state in self.home.states() if state.live]
        left = any(not is_driven(context, context.ledger.driver(run.run_id)) for run in live)
        if not left and now - self._caught_up_at < _CATCH_UP_AT_LEAST_S:
            self._catch_up_at = now + _CATCH_UP_EVERY_S
            return True
        busy = self.busy()
        self.home.catch_up()
        self._caught_up_at = self.now()
        spent = self.busy() - busy
        self._catch_up_at = self._caught_up_at + max(_CATCH_UP_EVERY_S, spent * _OF_A_CORE)
        self._tell_trouble()
        return True

    def _tell_trouble(self) -> None:
        context = self.home.context
        text = "; ".join([*unreached_lines(context), *trouble_lines(context)])
        if text != self._trouble:
            self._trouble = text
            self.feed.tell("trouble", {"text": text})

    def _budgets(self) -> bool:
        now = self.now()
        with self._lock:
            changed = bool(self._changed)
        if now - self._budgets_at < (_LOOK_EVERY_S / 4 if changed else _BUDGETS_EVERY_S):
            return False
        self._budgets_at = now
        self.feed.tell("budgets", [shown.line_json(line) for line in self.home.budgets()])
        return True

    def _one_run(self) -> bool:
        now, watched = self.now(), self.feed.watched
        known = {state.run_id: state for state in self.home.states()}
        with self._lock:
            changed = [name for name in self._changed if name in known]
            self._changed.clear()
        due = [
            name
            for name, state in known.items()
            if state.live and now - self._looked.get(name, -1e9) >= _LOOK_EVERY_S
        ]
        first = [n for n in changed if n in watched] or changed
        first = first or [n for n in due if n in watched]
        first = first or sorted(due, key=lambda name: self._looked.get(name, -1e9))
        if not first:
            return False
        name, state = first[0], known[first[0]]
        self.mark([other for other in changed if other != name])
        self._looked[name] = now
        run = self.home.run(name)
        self.feed.tell("row", shown.run_json(run))
        if name in watched:
            context = self.home.context
            told = shown.whole_json(context, run)
            told["checkpoints"] = [
                shown.checkpoint_json(each) for each in self.home.checkpoints(name)
            ]
            phases = self.curves.phases(context, state)
            told["marks"] = page_json(marks_of(context, state, phases))
            self.feed.tell("run", told, name)
        return True

    def _one_health(self) -> bool:
        now = self.now()
        for name in self.feed.watched:
            if now < self._health.get(name, -1e9):
                continue
            busy = self.busy()
            state = next((each for each in self.home.states() if each.run_id == name), None)
            if state is not None:
                self.feed.tell("health", encode(symptoms(self.home.context, state)), name)
            spent = self.busy() - busy
            self._health[name] = self.now() + max(_HEALTH_EVERY_S, spent * _OF_A_CORE)
            return True
        return False


class Watch:
    """Both looks, each in a thread of its own, while a page is open."""

    def __init__(self, feed: Feed, curves: CurveStore, open_home: Callable[[], Home]) -> None:
        self._feed, self._curves, self._open_home = feed, curves, open_home
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._looks: RunWatch | None = None

    def start(self) -> None:
        looks = RunWatch(self._open_home(), self._feed, self._curves)
        beats = HeartbeatWatch(self._open_home(), self._feed, self._curves, looks.mark)

        def beat() -> float:
            beats.tick()
            return TICK_S

        for work in (beat, looks.tick):
            thread = threading.Thread(target=self._carry, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._over.set()
        self._feed.has_listeners.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _carry(self, work: Callable[[], float]) -> None:
        told = ""
        while not self._over.is_set():
            self._feed.has_listeners.wait()
            try:
                rest_s, trouble = work(), ""
            except TrmcloudError as error:  # a ledger that is being written, above all
                rest_s, trouble = 1.0, one_line(str(error))
            except Exception as error:  # a look that fails is made again: the page stays
                rest_s, trouble = 5.0, one_line(f"unexpected {type(error).__name__}: {error}")
            if trouble != told:
                told = trouble
                self._feed.tell("trouble", {"text": trouble})
            self._over.wait(rest_s)
