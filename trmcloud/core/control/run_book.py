"""The runs of a ledger of which most have ended: those that something may still happen to are in
memory, the others are read one by one. Pure but for that reading, which an archive does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Protocol

from trmcloud.core.clock import utc_month
from trmcloud.core.control.actions import SWEEP_WITHIN_S
from trmcloud.core.control.run_state import RunState, State

BILL_WITHIN_S = 90 * 86_400.0
"""A bill that is so late is not waited for: its run stays settled at the most it can have cost."""
_READ_AT_ONCE = 500

# Terms by which an archive finds runs.
KEY, NAME, POD, POD_NAME = "key", "name", "pod", "pod-name"
MONTH, PAYER, PROVIDER, TAG = "month", "payer", "provider", "tag"


class RunArchive(Protocol):
    """All runs of a ledger up to one of its records, each read from the ledger when it is asked
    for."""

    def ids(self) -> Sequence[str]:
        """All of them, in the order of their first records."""

    def __len__(self) -> int: ...

    def __contains__(self, run_id: object) -> bool: ...

    def read(self, run_ids: Sequence[str]) -> Mapping[str, RunState]:
        """
        Raises:
            LedgerError: they cannot be read, or are not what was verified.
        """

    def newest(self, count: int) -> Sequence[str]:
        """The ids of the last ``count``, in the order of their first records."""

    def find(self, kind: str, term: str) -> Sequence[str]:
        """The ids of all runs that ``terms_of`` has given this term at any time."""

    def terms(self, kind: str) -> Sequence[str]:
        """All terms of one kind."""

    def sums(self, level: str, key: str) -> tuple[int, int, int, int]:
        """Of a budget: micro-dollars settled, reserved and not proven by a bill, and the number of
        runs that rent a volume."""


class RunBook(Mapping[str, RunState]):
    """Runs by id, in the order of their first records: a value like a ``dict`` of them.

    ``open`` holds the runs of the archive that are not at rest; ``changed`` those that are new, or
    went on since.
    """

    def __init__(
        self,
        archive: RunArchive,
        open: Mapping[str, RunState],
        changed: Mapping[str, RunState] | None = None,
        read: dict[str, RunState] | None = None,
    ) -> None:
        """``read``: those of the archive that were read before."""
        self.archive = archive
        self._open = open
        self._changed = dict(changed or {})
        self._read = read if read is not None else {}

    def with_runs(self, runs: Mapping[str, RunState]) -> RunBook:
        return RunBook(self.archive, self._open, {**self._changed, **runs}, self._read)

    def begun_anew(self, archive: RunArchive, open: Mapping[str, RunState]) -> RunBook:
        """The same runs, with an archive that holds those that have changed. What was read of the
        others is kept: a page that shows all runs asks for them every few seconds."""
        read = {name: run for name, run in self._read.items() if name not in self._changed}
        return RunBook(archive, open, None, read)

    def copy(self) -> RunBook:
        return self.with_runs({})

    def __setitem__(self, run_id: str, run: RunState) -> None:
        """Only for a copy that nobody else has yet."""
        self._changed[run_id] = run

    def __getitem__(self, run_id: str) -> RunState:
        run = self._changed.get(run_id) or self.before(run_id)
        if run is None:
            raise KeyError(run_id)
        return run

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._changed or run_id in self._open or run_id in self.archive

    def __len__(self) -> int:
        return len(self.archive) + len(self._new_ids())

    def __bool__(self) -> bool:
        return bool(self._changed or len(self.archive))

    def __iter__(self) -> Iterator[str]:
        yield from self.archive.ids()
        yield from self._new_ids()

    def values(self) -> ValuesView[RunState]:
        """Of all runs, read in parts: the first time it takes as long as there are runs."""
        return _Values(self)

    def before(self, run_id: str) -> RunState | None:
        """The run as the archive has it."""
        found = self._open.get(run_id) or self._read.get(run_id)
        if found is None and run_id in self.archive:
            found = self._many((run_id,))[run_id]
        return found

    @property
    def changed(self) -> Mapping[str, RunState]:
        return self._changed

    def present(self) -> tuple[RunState, ...]:
        """Those that may be not at rest."""
        kept = (run for run_id, run in self._open.items() if run_id not in self._changed)
        return (*kept, *self._changed.values())

    def of_ids(self, run_ids: Iterable[str]) -> tuple[RunState, ...]:
        wanted = list(dict.fromkeys(run_ids))
        there = {**self._open, **self._changed}
        missing = [run_id for run_id in wanted if run_id not in there]
        for first in range(0, len(missing), _READ_AT_ONCE):
            there.update(self._many(missing[first : first + _READ_AT_ONCE]))
        return tuple(there[run_id] for run_id in wanted if run_id in there)

    def find(self, kind: str, term: str) -> tuple[RunState, ...]:
        """All runs that have this term, and perhaps others."""
        return self.of_ids((*self.archive.find(kind, term), *self._changed))

    def newest(self, count: int) -> tuple[RunState, ...]:
        return self.of_ids((*self.archive.newest(count), *self._changed))

    def _new_ids(self) -> list[str]:
        return [run_id for run_id in self._changed if run_id not in self.archive]

    def _many(self, run_ids: Sequence[str]) -> dict[str, RunState]:
        found = {run_id: self._read[run_id] for run_id in run_ids if run_id in self._read}
        found |= self.archive.read([run_id for run_id in run_ids if run_id not in found])
        self._read.update(found)
        return found


class _Values(ValuesView[RunState]):
    def __init__(self, book: RunBook) -> None:
        super().__init__(book)
        self._book = book

    def __iter__(self) -> Iterator[RunState]:
        ids = list(self._book)
        for first in range(0, len(ids), _READ_AT_ONCE):
            yield from self._book.of_ids(ids[first : first + _READ_AT_ONCE])


def changed_copy(runs: Mapping[str, RunState]) -> RunBook | dict[str, RunState]:
    """A copy that runs may be put into."""
    return runs.copy() if isinstance(runs, RunBook) else dict(runs)


def with_run(runs: Mapping[str, RunState], run: RunState) -> Mapping[str, RunState]:
    if isinstance(runs, RunBook):
        return runs.with_runs({run.run_id: run})
    return {**runs, run.run_id: run}


def present_runs(runs: Mapping[str, RunState]) -> Iterable[RunState]:
    """Every run that is not at rest, and perhaps others."""
    return runs.present() if isinstance(runs, RunBook) else runs.values()


def find_runs(runs: Mapping[str, RunState], kind: str, term: str) -> Iterable[RunState]:
    """Every run that ``terms_of`` gives this term, and perhaps others."""
    return runs.find(kind, term) if isinstance(runs, RunBook) else runs.values()


def newest_runs(runs: Mapping[str, RunState], count: int) -> Iterable[RunState]:
    """The ``count`` runs whose first records came last, and perhaps others."""
    return runs.newest(count) if isinstance(runs, RunBook) else runs.values()


def terms_in_use(runs: Mapping[str, RunState], kind: str) -> set[str]:
    """All terms of one kind that runs have, or once had."""
    if not isinstance(runs, RunBook):
        return {term for run in runs.values() for named, term in terms_of(run) if named == kind}
    mine = {term for run in runs.changed.values() for named, term in terms_of(run) if named == kind}
    return mine | set(runs.archive.terms(kind))


def terms_of(run: RunState) -> Iterator[tuple[str, str]]:
    """(kind, term) of all by which the run may be looked for once it is at rest. A term that it
    had, it is found by for ever."""
    yield from ((KEY, key) for key in run.keys)
    yield from ((TAG, f"{name}={value}") for name, value in run.tags)
    if run.name:
        yield NAME, run.name
    if run.payer.principal:
        yield PAYER, run.payer.principal
    if run.creator:
        yield PAYER, run.creator
    if run.reserved_at > 0:
        yield MONTH, utc_month(run.reserved_at)
    for generation in run.generations:
        yield POD_NAME, generation.pod_name
        yield PROVIDER, generation.provider
        if generation.pod_id is not None:
            yield POD, generation.pod_id
        if generation.payer.principal:
            yield PAYER, generation.payer.principal


def is_at_rest(run: RunState, at: float) -> bool:
    """Whether nothing happens to it any more unless somebody names it; ``at`` (epoch s): the time
    of a record that came after it."""
    if run.state is not State.CLOSED or run.spec.volume:
        return False
    for generation in run.generations:
        since = generation.gone_at or generation.intended_at
        if generation.awaits_bill and at - since < BILL_WITHIN_S:
            return False
        owed = generation.agent_at is not None and generation.number > run.swept.generation
        if owed and run.bucket and at - generation.granted_until < 2 * SWEEP_WITHIN_S:
            return False
    return True
