"""Tells a plain webhook what the agent reports, from its pod: started by the agent, beside it.

It reads the agent's report and the webhook, and knows no account's key. What it tells has the ids
that the controller gives the same facts. It ends by itself: once all is told of a report with a
result, a minute after one that was not taken, and with the lease.

    python -m trmcloud.pod.notify --root /workspace/trmcloud --pod NAME
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.notices import (
    SENT_NAME,
    WEBHOOK_NAME,
    Notice,
    Webhook,
    body_of,
    headers_of,
    is_wanted,
    load_webhook,
    notices_of,
)
from trmcloud.io.files import load_small, write_atomic
from trmcloud.io.requests import pause_s, send

EVERY_S = 1.0
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_AFTER_RESULT_S = 60.0
_LOCK_NAME = ".notices.lock"


class PodNotices:
    """One pod's notices. ``now`` is epoch s; ``post`` sends one, and says whether it was taken."""

    def __init__(
        self,
        pod_dir: Path,
        now: Callable[[], float] = time.time,
        post: Callable[[Webhook, Notice, float], bool] | None = None,
    ) -> None:
        self._dir, self._now, self._post = pod_dir, now, post or _sent
        sent = load_small(pod_dir / SENT_NAME, json.loads)
        known = sent if isinstance(sent, list) else ()
        self._sent = {each for each in known if isinstance(each, str)}
        self._tries: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        self._result_at: float | None = None

    def look(self) -> bool:
        """Tell what is due; whether there may be more to come."""
        webhook = load_small(self._dir / WEBHOOK_NAME, load_webhook)
        report = load_small(self._dir / contract.REPORT_NAME, contract.load_report)
        now = self._now()
        if webhook is None:
            return False
        if report is None:
            return True
        told = [n for n in notices_of(report) if is_wanted(n, webhook.only)]
        for notice in told:
            if notice.id not in self._sent and now >= self._again_at.get(notice.id, 0.0):
                self._tell(webhook, notice)
        left = any(notice.id not in self._sent for notice in told)
        if report.result is not None:
            self._result_at = self._result_at or now
            return left and now - self._result_at < _AFTER_RESULT_S
        return now < report.hard_stop_at + _AFTER_RESULT_S

    def _tell(self, webhook: Webhook, notice: Notice) -> None:
        if self._post(webhook, notice, self._now()):
            self._sent.add(notice.id)
            # A full disk: what was sent is sent again by the next one, under the same id.
            with contextlib.suppress(OSError):
                write_atomic(self._dir / SENT_NAME, json.dumps(sorted(self._sent)))
            return
        tries = self._tries[notice.id] = self._tries.get(notice.id, 0) + 1
        pause = pause_s(tries - 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._again_at[notice.id] = self._now() + pause


def _sent(webhook: Webhook, notice: Notice, now: float) -> bool:
    body = body_of(notice)
    try:
        headers = headers_of(notice.id, body, webhook.secret, now)
        request = urllib.request.Request(webhook.url, body.encode(), headers, method="POST")
        with send(request, _TIMEOUT_S):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except Exception:  # no address, no answer, or none that can be read: sent again later
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="notices", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--pod", required=True)
    arguments = parser.parse_args()
    pod_dir = arguments.root / contract.PODS_DIR / arguments.pod
    lock = os.open(pod_dir / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # an agent that was started again has one already
    notices = PodNotices(pod_dir)
    while notices.look():
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
