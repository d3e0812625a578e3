"""``trmcloud ui`` over a run on a rented pod that no command drives: on the stand-in, in an
isolated pod, asked through the pinned connection that every command uses."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable

from tests.e2e.on_page import Serving, serve
from tests.e2e.rented import LAUNCH
from tests.e2e.user import User, until
from tests.standins.runpod.standin import StandIn
from trmcloud.core.errors import Outcome

__all__ = ["serve"]


def test_a_pod_that_nobody_drives_is_watched_saved_and_landed(
    lodger: User, runpod: StandIn, serve: Callable[..., Serving]
) -> None:
    long = ("--phase", "fast", "--steps", "20000", "-d", "--accept-loss")
    lodger.run(*LAUNCH, *long, within_s=400)
    run = lodger.only_run()
    serving, path = serve(lodger), f"/api/runs/{run.run_id}"
    page = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=200)
    page.request(
        "GET", f"/api/stream?run={run.run_id}", headers={"Authorization": f"Bearer {serving.token}"}
    )
    stream = page.getresponse()
    assert stream.status == 200

    def step() -> int:
        """The next one that an open page is told."""
        while True:
            line = stream.readline().decode()
            assert line, "the stream has ended"
            if found := re.search(r'"step":\s*(\d+)', line):
                return int(found[1])

    before = step()
    while step() <= before:
        pass
    page.close()
    for verb in ("save", "land"):
        seen = serving.ask(f"{path}/foreseen?verb={verb}")[1]
        wish = {"verb": verb, "agreed": seen["at_most"]}
        status, job = serving.ask(f"{path}/do", wish)
        assert status == 202, job

        def ended(number: str = job["job"]) -> bool:
            [told] = [each for each in serving.ask(path)[1]["jobs"] if each["number"] == number]
            assert told["state"] != "failed", told
            return bool(told["state"] == "done")

        until(ended, what=verb)
    until(lambda: lodger.only_run().result is not None, what="it has landed")
    until(lambda: runpod.control.live() == [], what="its pod is gone")
    assert lodger.only_run().result == Outcome.STOPPED.value
