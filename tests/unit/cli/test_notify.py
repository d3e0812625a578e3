"""Who is told: added, listed, tried out and removed, with secrets that are nobody else's."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.standins.receiver import Receiver
from trmcloud.adapters.notify.notified import NotifiedFile
from trmcloud.cli.main import main
from trmcloud.core.contract.notices import Notice, NoticeKind, headers_of
from trmcloud.core.errors import NotifyError
from trmcloud.core.values import replace
from trmcloud.io.installation import install_command
from trmcloud.operations.narration import words_of
from trmcloud.ports.notices import QueuedNotice

Run = Callable[..., tuple[int, str, str]]
EVIL = "\x1b[31m<b>\nowned"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))

    def typed(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(["admin", "notify", *words])
        shown = capsys.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    return typed


def test_a_webhook_is_added_tried_and_removed(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    code, out, _ = run("add", "webhook", f"{receiver.url}/t0ken", "--name", "ops")
    secret = out.split("shown once: ")[1].split()[0]
    assert (code, "t0ken" in out) == (0, False)
    assert out.startswith(f"ops: webhook to 127.0.0.1:{receiver.port}/…, everything\n")
    path = tmp_path / "home" / "notify.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, out, _ = run("test", "ops")
    assert (code, out) == (0, f"ops: webhook to 127.0.0.1:{receiver.port}/…: it was accepted\n")
    ((_, headers, body),) = receiver.got
    code, out, _ = run("test", "ops", "--json")
    assert (code, document_in(out)["checks"][0]["passed"]) == (0, True)
    expected = headers_of(
        headers["webhook-id"], body.decode(), secret, float(headers["webhook-timestamp"])
    )
    assert headers["webhook-signature"] == expected["webhook-signature"]
    code, out, _ = run("list", "--json")
    (row,) = document_in(out)["destinations"]
    assert (row["name"], row["waiting"]) == ("ops", 0)
    assert secret not in out
    assert "t0ken" not in out
    assert run("remove", "ops")[:2] == (0, "ops was removed: it gets no more notifications\n")
    assert run("list")[1] == "no notifications set up · trmcloud admin notify add webhook URL\n"
    assert run("test")[0] == 3


def test_one_that_refuses_the_test_is_told_so(run: Run, receiver: Receiver) -> None:
    run("add", "webhook", receiver.url)
    receiver.always = (403, {})
    code, out, _ = run("test")
    assert (code, out.endswith("NOT taken: it answered 403\n")) == (NotifyError.exit_code, True)


def test_a_name_stands_for_one(run: Run, receiver: Receiver) -> None:
    run("add", "webhook", receiver.url)
    code, _, err = run("add", "webhook", receiver.url)
    assert code == 8
    assert "trmcloud admin notify remove webhook" in err
    assert run("add", "webhook", receiver.url, "--name", "second", "--only", "ended")[0] == 0
    assert "ended" in run("list")[1]
    code, _, err = run("remove", "third")
    assert (code, "there are: webhook, second" in err) == (3, True)


def test_an_address_may_come_by_standard_input(
    run: Run, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{receiver.url}/from-a-pipe\n"))
    assert run("add", "webhook", "-")[0] == 0
    assert run("test")[0] == 0
    assert receiver.got[0][0] == "/from-a-pipe"


def test_a_secret_of_ones_own(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    out = run("add", "webhook", receiver.url, "--secret-from", str(secret))[1]
    assert "whsec_" not in out
    assert run("test")[0] == 0
    secret.write_text("password1")
    code, _, err = run("add", "webhook", receiver.url, "--name", "b", "--secret-from", str(secret))
    assert (code, "cannot be used" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pigeon", "https://example.org"), "no way 'pigeon'"),
        (("webhook", "ftp://example.org"), "not the address of a webhook"),
        (("webhook", "https://"), "not the address of a webhook"),
        (("webhook", "https://example.org/\r\nX: y"), "not the address of a webhook"),
        (("webhook", "https://[::1"), "not the address of a webhook"),
        (("webhook", "https://example.org", "--name", "../x"), "is not a valid name"),
        (("webhook", "https://example.org", "--only", "endet"), "did you mean 'ended'?"),
        (("ntfy", "ntfy://x", "--on-pod"), "--on-pod needs a webhook"),
        (("slack", "https://example.org/hook"), "not an address for slack"),
    ],
)
def test_what_cannot_be_told_is_refused(
    run: Run, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    code, _, err = run("add", *words)
    assert code == 2
    assert why in err
    assert "try: " in err
    assert not (tmp_path / "home" / "notify.json").exists()


def test_a_file_that_is_none_of_ours_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notify.json").write_text('{"version": 2}')
    code, _, err = run("list")
    assert code == NotifyError.exit_code
    assert "the list of destinations cannot be read" in err


def test_a_damaged_file_of_what_was_sent_is_named_in_one_line(
    run: Run, receiver: Receiver, tmp_path: Path
) -> None:
    run("add", "webhook", receiver.url)
    path = tmp_path / "home" / "notified.json"
    path.write_text(path.read_text()[:-20])
    code, out, err = run("list")
    assert (code, "webhook" in out) == (0, True)
    (line,) = err.splitlines()
    assert line.startswith(f"{path} was damaged")
    assert run("list")[2] == ""


def test_one_that_is_added_again_gets_no_old_news(
    run: Run, receiver: Receiver, tmp_path: Path
) -> None:
    run("add", "webhook", receiver.url)
    with NotifiedFile(tmp_path / "home", print).change() as states:
        old = QueuedNotice("old", "{}", 0.0)
        states["webhook"] = replace(states["webhook"], cursor=0, waiting=(old,))
    (tmp_path / "home" / "notify.json").unlink()
    run("add", "webhook", receiver.url)
    (row,) = document_in(run("list", "--json")[1])["destinations"]
    assert row["waiting"] == 0


def test_a_file_others_may_read_is_closed(run: Run, receiver: Receiver, tmp_path: Path) -> None:
    run("add", "webhook", receiver.url)
    path = tmp_path / "home" / "notify.json"
    path.chmod(0o644)
    run("list")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_the_extra_a_webhook_still_works(
    run: Run, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert run("add", "webhook", receiver.url)[0] == 0
    code, _, err = run("add", "ntfy", "ntfy://topic")
    assert code == 6
    assert install_command("notify") in err


# -- words -----------------------------------------------------------------------------------------
FACTS: dict[NoticeKind, dict[str, Any]] = {
    NoticeKind.STARTED: {"phase": EVIL},
    NoticeKind.GATE: {"phase": "fast", "passed": False},
    NoticeKind.CAP: {
        "level": "month", "key": "2026-11", "percent": 80, "spent_usd": "400", "cap_usd": "500",
    },
    NoticeKind.ENDED: {
        "outcome": "landed", "spent_usd": "1", "cap_usd": "2", "phase": "fast", "step": 9,
        "val_bpb": 1.5,
    },
    NoticeKind.TROUBLE: {
        "phase": "fast", "what": "out_of_memory", "by": "batch", "step": 120, "changed": "batch=2",
        "lost_steps": 3, "lost_s": 9.0, "mended": True,
    },
    NoticeKind.LOST: {"pod": EVIL, "provider": "runpod", "spent_usd": "1", "cap_usd": "2"},
    NoticeKind.PRICE: {"planned_usd_per_hour": "1", "billed_usd_per_hour": "2"},
    NoticeKind.ORPHAN: {"provider": "runpod", "pod": "p", "pod_id": "x", "at_most_usd": "0.2"},
    NoticeKind.REAPER: {"machine": "desk", "silent_s": 1000, "every_s": 300},
    NoticeKind.BALANCE: {
        "provider": "runpod", "hours": 24, "balance_usd": "9", "spending_usd_per_hour": "1",
        "left_s": 32_400,
    },
    NoticeKind.APPROVAL: {
        "principal": EVIL, "request": "a-1", "more_usd": "2", "per_run_usd": "1", "why": EVIL,
        "runs_at_once": 2, "spent_or_reserved_usd": "1", "total_usd": "3", "hardware": EVIL,
    },
    NoticeKind.TEST: {},
}  # fmt: skip


@pytest.mark.parametrize("kind", NoticeKind)
def test_each_kind_has_its_words_and_what_to_type(kind: NoticeKind) -> None:
    assert set(FACTS) == set(NoticeKind)
    told = words_of(Notice("i", kind, "r-1f3a9c", 0.0, FACTS[kind]))
    assert len(told["title"]) <= 120
    assert "\n" not in told["title"] + told["text"]
    assert "\x1b" not in told["title"] + told["text"]
    assert "trmcloud " in told["text"]


def test_words_say_what_it_means_for_money_and_for_the_training() -> None:
    def text(kind: NoticeKind) -> str:
        told = words_of(Notice("i", kind, "r-1f3a9c", 0.0, FACTS[kind]))
        return f"{told['title']} | {told['text']}"

    assert text(NoticeKind.CAP) == (
        "80 % of the month 2026-11 cap is spent | $400.00 of $500.00 accrued. trmcloud budget show"
    )
    assert text(NoticeKind.TROUBLE) == (
        "r-1f3a9c: recovered, out of memory | fast step 120: ran out of memory; continues now with "
        "batch=2, 3 steps and 9 s lost. trmcloud status r-1f3a9c"
    )
    assert text(NoticeKind.ENDED).startswith("r-1f3a9c: landed | stopped at its budget")
