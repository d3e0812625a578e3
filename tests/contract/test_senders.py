"""Notifications: senders against real servers, and the file of what was sent."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from tests.standins.loopback import free_port
from tests.standins.receiver import DRIPS, HANGS, LOSES, TAKES, Receiver, receiving
from trmcloud.adapters.notify import notified
from trmcloud.adapters.notify.notified import NAME, NotifiedFile
from trmcloud.adapters.notify.senders import (
    MOST_AGAIN_S,
    AppriseSender,
    WebhookSender,
    retry_after_s,
)
from trmcloud.core.contract.notices import Notice, NoticeKind, body_of, headers_of, secret_of
from trmcloud.core.errors import NotifyError, UsageError
from trmcloud.operations.narration import words_of
from trmcloud.ports.notices import DeliveryResult, DeliveryState, QueuedNotice

# -- senders ------------------------------------------------------------------------------------
# Senders against real servers on loopback: what was taken is known, and nothing takes for ever.


AT = 1_790_000_000.0
SECRET = secret_of(bytes(range(32)))
NOTICE = Notice(
    "0a1b2c3d/r-1/g1/ended", NoticeKind.ENDED, "r-1", AT,
    {"outcome": "finished", "spent_usd": "0.6", "cap_usd": "10"},
)  # fmt: skip
BODY = body_of(NOTICE, words_of(NOTICE))


def hook(receiver: Receiver, timeout_s: float = 5.0) -> DeliveryResult:
    sender = WebhookSender(f"{receiver.url}/in", SECRET, timeout_s=timeout_s, now=lambda: AT)
    return sender(NOTICE.id, BODY)


# -- a webhook -----------------------------------------------------------------------------------
def test_a_webhook_gets_a_signed_body(receiver: Receiver) -> None:
    assert hook(receiver) == DeliveryResult(True)
    ((path, headers, body),) = receiver.got
    assert path == "/in"
    assert body.decode() == BODY
    expected = headers_of(NOTICE.id, BODY, SECRET, AT)
    assert {key: headers[key] for key in expected} == expected
    assert json.loads(body)["text"].startswith("every step was trained; $0.60 of $10.00")


@pytest.mark.parametrize(
    ("answer", "again_in_s"),
    [
        ((500, {}), None),
        ((503, {"Retry-After": "7"}), 7.0),
        ((429, {"Retry-After": "120"}), 120.0),
        ((429, {"Retry-After": "99999999"}), MOST_AGAIN_S),
        ((429, {"Retry-After": "soon"}), None),
        ((404, {}), None),
        ((410, {}), None),
        ((413, {}), None),
        ((301, {"Location": "http://127.0.0.1:9/elsewhere"}), None),
    ],
    ids=str,
)
def test_what_is_not_taken_is_known_with_its_time(
    receiver: Receiver, answer: tuple[int, dict[str, str]], again_in_s: float | None
) -> None:
    receiver.answers = [answer]
    why, is_final = f"it answered {answer[0]}", answer[0] in (410, 413)
    assert hook(receiver) == DeliveryResult(False, why, again_in_s, is_final)
    assert len(receiver.got) == 1, "a redirect is not followed"


def test_an_answer_that_was_lost_is_none(receiver: Receiver) -> None:
    receiver.answers = [LOSES, TAKES]
    first = hook(receiver)
    assert not first.taken
    assert first.why.startswith("no answer")
    assert hook(receiver).taken
    assert receiver.ids == [NOTICE.id] * 2, "by which it can drop the second"


@pytest.mark.parametrize("act", [HANGS])
def test_one_that_never_answers_is_left(receiver: Receiver, act: str) -> None:
    receiver.answers = [act]
    began = time.monotonic()
    told = hook(receiver, timeout_s=0.5)
    assert not told.taken
    assert time.monotonic() - began < 5.0


def test_nobody_there(receiver: Receiver) -> None:
    sender = WebhookSender(f"http://127.0.0.1:{free_port()}/", SECRET)
    assert "no answer" in sender(NOTICE.id, BODY).why


def test_an_answer_that_is_none(receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def rude() -> None:
            line, _ = server.accept()
            with line:
                line.recv(65536)
                line.sendall(b"\x00\xff not HTTP at all\r\n\r\n")

        thread = threading.Thread(target=rude)
        thread.start()
        port = server.getsockname()[1]
        told = WebhookSender(f"http://127.0.0.1:{port}/", SECRET, timeout_s=5.0)(NOTICE.id, BODY)
        thread.join()
    assert not told.taken


def test_when_it_may_be_asked_again() -> None:
    assert retry_after_s("Thu, 01 Jan 1970 00:02:00 GMT", 60.0) == 60.0
    assert retry_after_s("Thu, 01 Jan 1970 00:00:10 GMT", 60.0) == 0.0
    for odd in (None, "", "-5", "1e9", "٣", "Someday"):
        assert retry_after_s(odd, 60.0) is None


# -- mail, through Apprise -----------------------------------------------------------------------
class Mailbox:
    """An SMTP server's own part: ``refuses`` with a code, is slow, or takes."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []
        self.refuses: list[str] = []
        self.slow_s = 0.0

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        import asyncio

        await asyncio.sleep(self.slow_s)
        if self.refuses:
            return self.refuses.pop(0)
        self.mails.append(envelope)
        return "250 taken"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, str]]:
    made = Mailbox()
    controller = Controller(made, hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        where = f"mailto://127.0.0.1:{controller.port}?from=me@example.org&to=you@example.org"
        yield made, where
    finally:
        controller.stop()


def test_a_mail_says_it_in_words(mailbox: tuple[Mailbox, str]) -> None:
    box, where = mailbox
    assert AppriseSender("email", where)(NOTICE.id, BODY).taken
    (mail,) = box.mails
    text = _content(mail)
    assert mail.rcpt_tos == ["you@example.org"]
    assert "Subject: r-1: finished" in text
    assert f"id {NOTICE.id}" in _plain(text)


def test_a_mail_server_that_refuses_has_taken_nothing(mailbox: tuple[Mailbox, str]) -> None:
    box, where = mailbox
    box.refuses = ["451 not now"]
    sender = AppriseSender("email", where)
    told = sender(NOTICE.id, BODY)
    assert not told.taken
    assert told.why
    assert sender(NOTICE.id, BODY).taken
    assert len(box.mails) == 1


def test_a_slow_mail_server_is_left(mailbox: tuple[Mailbox, str]) -> None:
    box, where = mailbox
    box.slow_s = 20.0
    began = time.monotonic()
    assert not AppriseSender("email", where, timeout_s=0.5)(NOTICE.id, BODY).taken
    assert time.monotonic() - began < 10.0


def _content(mail: Envelope) -> str:
    assert isinstance(mail.content, bytes)
    return mail.content.decode()


def _plain(mail: str) -> str:
    import email
    from email.message import Message

    parts = [p for p in email.message_from_string(mail).walk() if not p.is_multipart()]

    def text(part: Message) -> str:
        payload = part.get_payload(decode=True)
        return payload.decode() if isinstance(payload, bytes) else ""

    return "".join(map(text, parts))


# -- ntfy, and what the others have in common ----------------------------------------------------
@pytest.mark.parametrize(
    "answer", [(429, {"Retry-After": "9"}), (500, {}), LOSES], ids=lambda act: str(act)
)
def test_ntfy_takes_it_later(receiver: Receiver, answer: str | tuple[int, dict[str, str]]) -> None:
    receiver.answers = [answer, TAKES]
    sender = AppriseSender("ntfy", f"ntfy://127.0.0.1:{receiver.port}/topic", timeout_s=3.0)
    first = sender(NOTICE.id, BODY)
    assert not first.taken
    assert sender(NOTICE.id, BODY).taken
    body = receiver.got[-1][2].decode()
    assert NOTICE.id in body
    assert "r-1: finished" in body + str(receiver.got[-1][1])


@pytest.mark.parametrize("act", [HANGS, DRIPS])
def test_ntfy_that_never_answers_is_left(receiver: Receiver, act: str) -> None:
    receiver.answers = [act]
    sender = AppriseSender("ntfy", f"ntfy://127.0.0.1:{receiver.port}/topic", timeout_s=0.2)
    began = time.monotonic()
    assert not sender(NOTICE.id, BODY).taken
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("asks", ["", "?redirect=yes"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_notice_goes_nowhere_else(receiver: Receiver, code: int, asks: str) -> None:
    with receiving() as elsewhere:
        receiver.always = (code, {"Location": f"{elsewhere.url}/stolen"})
        where = f"ntfy://user:secret@127.0.0.1:{receiver.port}/topic{asks}"
        told = AppriseSender("ntfy", where, timeout_s=3.0)(NOTICE.id, BODY)
        assert not told.taken
        assert receiver.got, "it was asked"
        assert elsewhere.got == []


def test_the_librarys_log_is_kept_from_the_terminal(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.answers = [(500, {})]
    sender = AppriseSender("ntfy", f"ntfy://127.0.0.1:{receiver.port}/topic", timeout_s=3.0)
    with caplog.at_level(logging.DEBUG):
        told = sender(NOTICE.id, BODY)
    assert "500" in told.why
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("slack", "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"),
        ("slack", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"),
        ("discord", f"https://discord.com/api/webhooks/123456789012345678/{'a' * 68}"),
        ("ntfy", "https://ntfy.sh/a-topic"),
        ("ntfy", "ntfys://ntfy.example.org/a-topic"),
        ("email", "mailtos://me:word@smtp.example.org?to=you@example.org"),
    ],
)
def test_addresses_as_their_owners_have_them(way: str, where: str) -> None:
    with contextlib.suppress(OSError):
        AppriseSender(way, where)


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("slack", "https://example.org/hook"),
        ("slack", "ntfy://topic"),
        ("email", "you@example.org"),
        ("email", "https://ntfy.sh/topic"),
        ("discord", ""),
        ("ntfy", "file:///etc/passwd"),
        ("ntfy", "json://127.0.0.1/"),
    ],
)
def test_an_address_of_another_way_is_refused(way: str, where: str) -> None:
    with pytest.raises(UsageError, match=f"not an address for {way}"):
        AppriseSender(way, where)


# -- the file of what was sent ------------------------------------------------------------------
STATE = DeliveryState(7, AT, ("0a1b2c3d/r1/g1/started",), (QueuedNotice("id", "{}", AT),))


@pytest.fixture
def kept(tmp_path: Path) -> NotifiedFile:
    return NotifiedFile(tmp_path / "home", print)


def states_of(kept: NotifiedFile) -> dict[str, DeliveryState]:
    with kept.change() as states:
        return dict(states)


def test_it_is_its_owners_alone(kept: NotifiedFile, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert states_of(kept) == {}
    finally:
        os.umask(before)
    home = tmp_path / "home"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o600}


def test_it_is_read_as_it_was_written(kept: NotifiedFile, tmp_path: Path) -> None:
    with kept.change() as states:
        states["ops"] = STATE
        states["phone"] = DeliveryState(9, AT + 1, last_told_at=AT, gave_up="id: it answered 410")
    again = states_of(NotifiedFile(tmp_path / "home", print))
    assert again["ops"] == STATE
    assert again["phone"].last_told_at == AT


def test_what_ends_with_an_error_changes_nothing(kept: NotifiedFile) -> None:
    with kept.change() as states:
        states["ops"] = STATE
    with contextlib.suppress(KeyboardInterrupt), kept.change() as states:
        states.clear()
        raise KeyboardInterrupt
    assert states_of(kept) == {"ops": STATE}


def test_many_threads_change_it_one_after_another(tmp_path: Path) -> None:
    def count() -> None:
        for _ in range(20):
            with NotifiedFile(tmp_path, print).change() as states:
                before = states.get("ops", DeliveryState(0, AT))
                states["ops"] = DeliveryState(before.cursor + 1, AT)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states_of(NotifiedFile(tmp_path, print))["ops"].cursor == 80


def test_a_process_that_hangs_is_waited_for_in_vain(
    kept: NotifiedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notified, "_LOCK_WAIT_S", 0.05)
    with kept.change() as states:
        states["ops"] = STATE
        with pytest.raises(NotifyError, match="another process has locked"):
            states_of(NotifiedFile(tmp_path / "home", print))
    assert states_of(kept) == {"ops": STATE}


def test_a_newer_one_is_left_alone(kept: NotifiedFile, tmp_path: Path) -> None:
    states_of(kept)
    path = tmp_path / "home" / NAME
    path.write_text('{"version": 2, "destinations": []}')
    with pytest.raises(NotifyError, match="its version is 2"):
        states_of(kept)
    assert path.read_text() == '{"version": 2, "destinations": []}'


def test_a_full_disk_is_reported(
    kept: NotifiedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notified, "write_atomic", full)
    with pytest.raises(NotifyError, match="No space left") as refused:
        states_of(kept)
    assert str(tmp_path / "home" / NAME) in refused.value.next_step
