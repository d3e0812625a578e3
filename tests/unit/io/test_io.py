"""Small files, hashes, pauses that grow, and where servers listen."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from trmcloud.io.files import write_atomic
from trmcloud.io.hashing import file_sha256, matches_hash
from trmcloud.io.requests import pause_s
from trmcloud.io.web_server import listening

# -- Small files that are whole or not there, hashes of parts, and pauses that grow -------------


def test_a_file_is_replaced_by_text_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomic(path, "größer")
    assert path.read_bytes() == "größer".encode()
    write_atomic(path, b"\x00\xff", durable=False)
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_replacement_that_fails_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    write_atomic(path, "old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_hash_is_of_all_or_of_a_part(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 7)
    path = tmp_path / "weights"
    path.write_bytes(content)
    assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    assert file_sha256(path, 5, 11) == hashlib.sha256(content[5:16]).hexdigest()
    assert file_sha256(path, 5) == hashlib.sha256(content[5:]).hexdigest()


def test_a_file_holds_what_was_promised_or_not(tmp_path: Path) -> None:
    path, link = tmp_path / "weights", tmp_path / "link"
    path.write_bytes(b"abc")
    link.symlink_to(path)
    sha256 = hashlib.sha256(b"abc").hexdigest()
    assert matches_hash(path, 3, sha256)
    assert not matches_hash(path, 4, sha256)
    assert not matches_hash(path, 3, "0" * 64)
    assert not matches_hash(link, 3, sha256), "a link may lead anywhere"
    assert not matches_hash(tmp_path, 3, sha256)
    assert not matches_hash(tmp_path / "nothing", 3, sha256)


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause_s(n, 0.5, 3.0) for n in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pause_s(10_000, 0.5, 3.0) == 3.0


# -- Where the page and ``trmcloud serve`` listen -----------------------------------------------


def test_no_part_of_an_answer_waits_for_an_acknowledgement() -> None:
    with listening("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()):
        sock.setblocking(True)
        connection, _ = sock.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
