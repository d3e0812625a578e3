"""Several real processes of one home stay under one provider's limit together."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.contract.request_process import LIMIT
from tests.standins.loopback import Handler, serving_at

WAIT_S = 60.0


@dataclass
class Seller:
    """It answers a list and a delete, and notes when each was asked for (monotonic s)."""

    url: str = ""
    lists: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    refuse_next_for_s: int = 0


@pytest.fixture
def seller() -> Iterator[Seller]:
    made = Seller()

    class Selling(Handler):
        def note(self, noted: list[float]) -> None:
            now, status, headers = time.monotonic(), 200, {}
            body = json.dumps({"success": True, "instances": []}).encode()
            if made.refuse_next_for_s:
                headers = {"Retry-After": str(made.refuse_next_for_s)}
                status, made.refuse_next_for_s = 429, 0
                made.refused.append(now)
            else:
                noted.append(now)
            self.answer(status, body, "application/json", headers)

        def do_GET(self) -> None:
            self.note(made.lists)

        def do_DELETE(self) -> None:
            self.read_body()
            self.note(made.ends)

    with serving_at(Selling) as port:
        made.url = f"http://127.0.0.1:{port}"
        yield made


def start(seller: Seller, home: Path, kind: str, seconds: float) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.contract.request_process", seller.url, str(home)]
    process = subprocess.Popen(
        [*words, kind, str(seconds)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def let_run(processes: list[subprocess.Popen[str]]) -> list[tuple[list[float], str]]:
    """Begin all at once; of each, how long its requests took, and what it complained of."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=WAIT_S) for process in processes]
    return [([float(line) for line in out.split()], err) for out, err in told]


def test_processes_side_by_side_stay_under_the_limit_and_ends_go_first(
    seller: Seller, tmp_path: Path
) -> None:
    listing = [start(seller, tmp_path, "lists", 5.0) for _ in range(4)]
    ending = start(seller, tmp_path, "ends", 5.0)
    *_, (took, complaints) = let_run([*listing, ending])
    assert complaints == ""
    assert len(seller.lists) >= 10, "lists are asked for all the while"
    assert len(seller.ends) >= 5
    assert max(took) < 2.0, "an end does not wait for the lists' turn"
    sent = sorted([*seller.lists, *seller.ends])
    for first, later in zip(sent, sent[LIMIT.requests + 5 :], strict=False):
        assert later - first >= LIMIT.window_s - 0.3, "ends alone may go a little beyond it"


def test_one_429_holds_every_process_back(seller: Seller, tmp_path: Path) -> None:
    seller.refuse_next_for_s = 2
    let_run([start(seller, tmp_path, "lists", 4.0) for _ in range(3)])
    (at,) = seller.refused
    early = [asked - at for asked in seller.lists if 0.5 < asked - at < 1.9]
    assert early == [], "what was on its way then had been sent before"
    assert [asked for asked in seller.lists if asked - at >= 1.9]
