"""``trmcloud admin volumes`` against RunPod's stand-in."""

from __future__ import annotations

import pytest

from tests.e2e.user import User
from tests.standins.runpod.client import Client
from tests.standins.runpod.fixture import paper, runpod_on_paper
from tests.standins.runpod.standin import StandIn
from tests.typist import InProcess, typist

__all__ = ["paper", "runpod_on_paper", "typist"]


@pytest.fixture
def user(typist: InProcess) -> InProcess:
    return typist


def made(standin: StandIn, name: str, size: int = 100, place: str = "EU-RO-1") -> str:
    body = {"name": name, "size": size, "dataCenter": place}
    volume: str = Client(standin)("POST", "/v2/network-volumes", body).data["id"]
    return volume


def test_only_volumes_of_this_ledger_are_shown_and_priced(paper: StandIn, user: User) -> None:
    user.run("budget", "set", "month", "10")  # makes the ledger
    assert "no network volumes" in user.run("admin", "volumes")
    made(paper, "somebody-elses")
    mine = made(paper, f"trmc-{user.ledger().ledger_id}-EU-RO-1")
    (row,) = user.json("admin", "volumes", "--json")["volumes"]
    assert (row["id"], row["size_gb"], row["data_centre"]) == (mine, 100, "EU-RO-1")
    assert row["per_month_usd"] == "7"
    assert float(row["per_day_usd"]) == pytest.approx(7.0 * 24 / 730, rel=1e-3)
    out = user.run("admin", "volumes")
    assert mine in out
    assert "$7.00 a month" in out


def test_deleting_asks_and_spares_what_is_not_ours(paper: StandIn, user: User) -> None:
    user.run("budget", "set", "month", "10")  # makes the ledger
    theirs = made(paper, "somebody-elses")
    mine = made(paper, f"trmc-{user.ledger().ledger_id}-EU-RO-1")
    user.refused("admin", "volumes", "delete", mine, code=2)  # there is no terminal to ask on
    user.refused("admin", "volumes", "delete", theirs, "-y", code=3)
    user.refused("admin", "volumes", "delete", "../pods", "-y", code=3)
    assert len(user.json("admin", "volumes", "--json")["volumes"]) == 1
    (gone,) = user.json("admin", "volumes", "delete", mine, "-y", "--json")["volumes"]
    assert gone["id"] == mine
    assert user.json("admin", "volumes", "--json")["volumes"] == []
    left = Client(paper)("GET", "/v2/network-volumes").data["networkVolumes"]
    assert [volume["id"] for volume in left] == [theirs]
