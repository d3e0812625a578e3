"""A log that is followed, frame by frame: ``OFFSET LENGTH`` on a line, then so many bytes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from trmcloud.adapters.ssh.follow import _frames
from trmcloud.core.errors import Dropped, LinkError


class Line:
    """Gives what a pod sends, at most three bytes at a time."""

    def __init__(self, content: bytes) -> None:
        self.left, self.waited_s = content, set[float]()

    def read_into(self, view: memoryview, idle_s: float) -> int:
        self.waited_s.add(idle_s)
        some = self.left[: min(3, len(view))]
        view[: len(some)] = some
        self.left = self.left[len(some) :]
        return len(some)


def frames(content: bytes, most: int = 9) -> list[tuple[int, bytes]]:
    line: Any = Line(content)
    found = list(itertools.islice(_frames(line, "there"), most))
    assert line.waited_s == {30.0}
    return found


def refused(content: bytes) -> str:
    with pytest.raises(LinkError) as error:
        frames(content)
    assert error.value.where == "there"
    return error.value.what


def test_frames_are_read_whole_and_may_be_empty() -> None:
    assert frames(b"0 5\nhello5 0\n5 1\n!", 3) == [(0, b"hello"), (5, b""), (5, b"!")]


def test_a_line_that_breaks_off_is_lost() -> None:
    for content in (b"", b"0 5", b"0 5\nhel"):
        with pytest.raises(Dropped, match="the connection was lost") as lost:
            frames(content)
        assert lost.value.where == "there"


@pytest.mark.parametrize(
    "header",
    [b"\n", b"5\n", b"x 5\n", b"0 y\n", b"-1 5\n", b"0 5 5\n", b"1e3 5\n", "٣ 5\n".encode(),
     b"0 " + b"9" * 25 + b"\n"],
)  # fmt: skip
def test_a_header_that_is_none_is_out_of_turn(header: bytes) -> None:
    assert refused(header + b"hello") == "the pod answers out of turn"


def test_a_header_without_an_end_is_given_up() -> None:
    content = b"0 1" + b" " * 44
    assert frames(content + b"\nx", 1) == [(0, b"x")]
    assert refused(b"0 1" + b" " * 45 + b"\nx") == "the pod answers out of turn"


def test_more_than_was_asked_for_is_refused() -> None:
    assert frames(b"0 65536\n" + b"x" * 65_536, 1) == [(0, b"x" * 65_536)]
    assert refused(b"0 65537\n") == "the pod answers with more than was asked for"
