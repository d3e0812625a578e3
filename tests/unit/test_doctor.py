"""What doctor makes of the tools it finds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trmcloud.app import doctor
from trmcloud.app.context import Need
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.money import Usd

NOW = 1_800_000_000.0
DAY = 86_400.0


def tool(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "state"),
    [
        ("rsync  version 3.4.3  protocol version 32", "ok"),
        ("rsync  version 3.10.0  protocol version 33", "ok"),
        ("rsync  version v3.5.0pre1  protocol version 33", "ok"),
        ("rsync  version 3.4.2  protocol version 32", "warn"),
        ("rsync  version 3.2.7  protocol version 31", "warn"),
        ("openrsync: protocol version 29", "warn"),
        ("", "warn"),
    ],
)
def test_an_rsync_with_known_holes_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, state: str
) -> None:
    tool(tmp_path, "rsync", says)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    found = doctor._rsync()
    assert found.state == state
    assert bool(found.fix) == (state != "ok")


def test_tools_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._rsync().state == "warn"


def test_what_renting_needs_is_bad_to_lack_only_where_machines_are_rented() -> None:
    needs = (Need("ssh", "OpenSSH_9.9p1"), Need("ssh-keygen", "it is not installed", True, "do it"))
    there, missing = doctor.check_needs(needs, rents=True)
    assert there == doctor.Finding("ssh", "ok", "OpenSSH_9.9p1")
    assert (missing.state, missing.fix) == ("bad", "do it")
    assert missing.detail == "it is not installed: nothing can be rented"
    assert doctor.check_needs(needs, rents=False)[1].state == "warn"


@pytest.mark.parametrize(
    ("ages", "state"), [([], "warn"), ([0, 3], "ok"), ([0, 90], "ok"), ([8, 90], "warn")]
)
def test_old_prices_are_told(ages: list[int], state: str) -> None:
    offers = [
        Offer("L4", 1, "runpod", "any", "i", Usd(1), False, NOW - age * DAY, "s") for age in ages
    ]
    offers.append(Offer("L4", 1, "lambda", "any", "i", Usd(1), False, NOW, "s"))
    found = doctor._prices(offers, NOW)
    assert found.state == state
    assert ("dearer" in found.detail) == any(age > 60 for age in ages)
