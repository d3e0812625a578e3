"""``trmcloud reap`` at a provider from which this home has rented nothing."""

from __future__ import annotations

import time
from pathlib import Path

from tests.standins.vast.standin import running
from tests.typist import InProcess, typist
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract.pod_contract import PodName

__all__ = ["typist"]


def test_it_ends_an_instance_that_no_run_owns_and_no_other(
    tmp_path: Path, typist: InProcess
) -> None:
    with running(tmp_path / "vast", real_pods=False) as standin:
        typist.environment |= standin.environment
        typist.run("budget", "show")
        ledger_id = SqliteLedger(typist.ledger_path).ledger_id
        stray = str(PodName(ledger_id, "r-0dd0dd", 1, int(time.time()) + 3600))
        for host, label in zip(standin.world.hosts, (stray, "somebody's own"), strict=False):
            with standin.world.lock:
                standin.world.create(host, {"label": label, "disk": 50})
        assert f"{stray} on vast: no live run of this ledger owns it" in typist.run("admin", "reap")
        assert len(standin.live()) == 2, "without --yes it only lists"
        assert stray in typist.run("admin", "reap", "-y")
        assert [each.label for each in standin.live()] == ["somebody's own"]
