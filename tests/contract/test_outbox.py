"""What is to be told survives whoever was to tell it, is told at least once, and once is known."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from trmcloud.adapters.notify.outbox import NAME, SqliteOutbox
from trmcloud.core.contract.notices import Notice, NoticeKind
from trmcloud.core.errors import OutboxError
from trmcloud.ports.notices import Destination

AT = 1_790_000_000.0
OPS = Destination("ops", "webhook", "https://example.org/t0ken", "s3cret")
PHONE = Destination("phone", "ntfy", "ntfy://topic", only=("ended",))


def notice(number: int, kind: NoticeKind = NoticeKind.GATE) -> tuple[Notice, str]:
    made = Notice(f"0a1b2c3d/r1/g1/{kind.value}/{number}", kind, "r1", AT)
    return made, f'{{"id": "{made.id}"}}'


@pytest.fixture
def box(tmp_path: Path) -> SqliteOutbox:
    return SqliteOutbox(tmp_path / "home" / NAME)


def test_it_is_its_owners_alone(box: SqliteOutbox, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert box.cursor() is None
    finally:
        os.umask(before)
    path = tmp_path / "home" / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_each_destination_gets_what_it_wants_once(box: SqliteOutbox) -> None:
    assert box.take([notice(1), notice(2, NoticeKind.ENDED)], [OPS, PHONE], 7, AT) == 2
    assert box.take([notice(1), notice(3)], [OPS, PHONE], 9, AT) == 1
    assert box.cursor() == 9
    waiting = [(each.destination, each.notice_id[-1]) for each in box.waiting()]
    assert waiting == [("ops", "1"), ("ops", "2"), ("phone", "2"), ("ops", "3")]
    assert box.known("0a1b2c3d/r1/g1/gate/") == 2
    assert box.known("0a1b2c3d/r1/g1/gat%") == 0, "no pattern: an id as it is"


def test_what_is_held_by_one_is_not_due_to_another_until_it_lets_go(box: SqliteOutbox) -> None:
    box.take([notice(1), notice(2)], [OPS], 1, AT)
    first = box.due("ops", AT, 90.0)
    second = box.due("ops", AT, 90.0)
    assert first is not None
    assert second is not None
    assert (first.notice_id[-1], second.notice_id[-1]) == ("1", "2")
    assert box.due("ops", AT + 89, 90.0) is None
    again = box.due("ops", AT + 91, 90.0)
    assert again is not None, "whoever held it was killed"
    assert again.notice_id == first.notice_id
    box.done(again, AT + 92)
    assert box.last_told("ops") == (AT + 92, "")
    assert [each.notice_id for each in box.waiting()] == [second.notice_id]


def test_what_was_not_taken_waits_for_its_time(box: SqliteOutbox) -> None:
    box.take([notice(1)], [OPS], 1, AT)
    waiting = box.due("ops", AT, 90.0)
    assert waiting is not None
    box.put_off(waiting, AT + 5, "it answered 500")
    assert box.due("ops", AT + 4, 90.0) is None
    again = box.due("ops", AT + 5, 90.0)
    assert again is not None
    assert (again.tries, again.why) == (1, "it answered 500")
    box.give_up(again, "it answered 500")
    assert box.waiting() == []
    assert box.last_told("ops") == (None, f"{again.notice_id}: it answered 500")


def test_a_clock_that_was_set_back_holds_nothing_for_ever(box: SqliteOutbox) -> None:
    box.take([notice(1)], [OPS], 1, AT)
    assert box.due("ops", AT + 400 * 86_400, 90.0) is not None
    assert box.due("ops", AT, 90.0) is not None


def test_who_is_removed_is_told_nothing_that_waited(box: SqliteOutbox) -> None:
    box.take([notice(1, NoticeKind.ENDED)], [OPS, PHONE], 1, AT)
    box.forget("ops")
    assert [each.destination for each in box.waiting()] == ["phone"]


def test_many_threads_take_the_same_facts_once(box: SqliteOutbox) -> None:
    box.cursor()
    news: list[int] = []

    def take() -> None:
        for number in range(20):
            news.append(box.take([notice(number)], [OPS], number, AT))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(news) == 20
    assert len(box.waiting()) == 20


def test_a_transaction_that_is_cut_short_has_not_happened(
    box: SqliteOutbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor moves with what was derived up to it, or not at all."""
    box.take([notice(1)], [OPS], 3, AT)

    def killed(*words: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("trmcloud.adapters.notify.outbox.is_wanted", killed)
    with pytest.raises(KeyboardInterrupt):
        box.take([notice(2)], [OPS], 9, AT)
    monkeypatch.undo()
    assert box.cursor() == 3
    assert box.take([notice(2)], [OPS], 9, AT) == 1


def test_a_damaged_one_is_told_and_not_mended(box: SqliteOutbox, tmp_path: Path) -> None:
    box.take([notice(1)], [OPS], 1, AT)
    path = tmp_path / "home" / NAME
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(OutboxError, match="outbox cannot be used") as refused:
        box.cursor()
    assert str(path) in refused.value.next_step


def test_a_newer_one_is_left_alone(box: SqliteOutbox, tmp_path: Path) -> None:
    box.cursor()
    with sqlite3.connect(tmp_path / "home" / NAME) as conn:
        conn.execute("UPDATE meta SET version = 2")
    conn.close()
    with pytest.raises(OutboxError, match="its format is 2"):
        box.cursor()
