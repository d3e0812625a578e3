"""What the reaper does with volumes whose day has come: asked, listed, told, put on record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.unit.core.test_strays import ENDED, Book
from trmcloud.app.reap import end_volumes
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.control import events as ev
from trmcloud.core.errors import ProviderError
from trmcloud.core.spec.spec import DELETE, KEEP
from trmcloud.ports.compute import VolumeSeen


class Provider:
    """One volume of this ledger in each of two data centres."""

    def __init__(self) -> None:
        self.there = [VolumeSeen("here", "EU-RO-1", 52), VolumeSeen("elsewhere", "US-KS-2", 52)]
        self.listing: Callable[[], None] = lambda: None
        self.refuses = ""

    def kept_volumes(self) -> Sequence[VolumeSeen]:
        self.listing()
        return tuple(self.there)

    def delete_volume(self, volume_id: str) -> None:
        if self.refuses:
            raise ProviderError(self.refuses)
        self.there = [volume for volume in self.there if volume.volume_id != volume_id]


class Case:
    def __init__(self, then: str = DELETE) -> None:
        self.book, self.provider = Book(), Provider()
        self.book.run("r1", volume_then=then)
        self.now = ENDED + 7 * DAY_S
        ledger = SimpleNamespace(read=lambda: self.book.ledger, note=self.note)
        self.world: Any = SimpleNamespace(
            ledger=ledger, wall=lambda: self.now, unasked=frozenset(),
            computes={"runpod": self.provider},
        )  # fmt: skip

    def note(self, event: ev.Note, at: float) -> None:
        self.book.add("", at, event)

    def left(self) -> list[str]:
        return [volume.volume_id for volume in self.provider.there]


def test_it_deletes_the_one_that_is_due_and_writes_that_down() -> None:
    case = Case()
    case.now -= 1.0
    assert end_volumes(case.world) == []
    case.now += 1.0
    (said,) = end_volumes(case.world)
    assert said == "deleted the network volume in EU-RO-1 (here): $0.12 a day less"
    assert case.left() == ["elsewhere"]
    assert case.book.ledger.deleted_volumes == {("runpod", "EU-RO-1"): (case.now,)}
    assert end_volumes(case.world) == []


def test_nothing_is_asked_where_nobody_agreed() -> None:
    case = Case(KEEP)
    case.provider.listing = lambda: 1 / 0  # type: ignore[assignment]
    assert end_volumes(case.world) == []


def test_one_that_is_refused_is_told_and_tried_again() -> None:
    case = Case()
    case.provider.refuses = "network volume is in use by a pod"
    (said,) = end_volumes(case.world)
    assert said == "could not delete the network volume in EU-RO-1: " + case.provider.refuses
    assert case.book.ledger.deleted_volumes == {}
    case.provider.refuses = ""
    assert end_volumes(case.world)
    assert case.left() == ["elsewhere"]


def test_a_run_that_is_launched_while_they_are_listed_keeps_it() -> None:
    case = Case()
    case.provider.listing = lambda: case.book.begin("r2", case.now)
    (said,) = end_volumes(case.world)
    assert said == "the network volume in EU-RO-1 is wanted again"
    assert case.left() == ["here", "elsewhere"]


def test_one_that_somebody_deleted_in_the_console_is_put_on_record() -> None:
    case = Case()
    case.provider.there = []
    (said,) = end_volumes(case.world)
    assert "none was there any more" in said
    assert case.book.ledger.deleted_volumes
