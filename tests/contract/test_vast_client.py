"""vast.ai's own client and the adapter send the same requests.

``vast_requests.json`` is what ``vastai`` sent to the stand-in (``scripts/vast_requests.py``), which
understood it and was understood. Where ``make vast`` was run the table is made anew.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.pod_requests import request
from tests.contract.vast_rig import Rig, vast
from tests.standins.vast.routes import Logged
from trmcloud.providers.vast.offers import query

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = json.loads((ROOT / "tests/contract/vast_requests.json").read_text())
PYTHON = ROOT / ".venv-vast" / "bin" / "python"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with vast(tmp_path) as made:
        yield made


def theirs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = TABLE[name][0]
    assert found["status"] == 200
    return found


def ours(rig: Rig) -> Logged:
    """The last request that the adapter sent."""
    return rig.standin.requests[-1]


def plain(value: Any) -> Any:
    """The client writes numbers of a query as text."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_a_search_is_written_as_the_client_writes_it(rig: Rig) -> None:
    asked = query(
        names=["L4", "L40S"], counts=[1, 2], disk_gb=50, country="US", lasts_s=86_400.0, limit=20
    )
    assert rig.api.search(asked)
    assert (ours(rig).method, ours(rig).path) == (theirs("search")["method"], "/api/v0/bundles/")
    body = dict(ours(rig).body)
    assert body.pop("rented") == {"eq": False}, "what the client's SDK adds and its CLI does not"
    assert plain(body) == plain(theirs("search")["body"])


def test_a_create_has_the_clients_fields_and_no_other(rig: Rig) -> None:
    rig.compute.create(request(rig))
    (sent,) = [r for r in rig.standin.requests if r.path.startswith("/api/v0/asks/")]
    client = theirs("create")
    assert sent.method == client["method"]
    assert client["path"].startswith("/api/v0/asks/")
    assert set(sent.body) <= set(client["body"])
    left_out = {k: v for k, v in client["body"].items() if k not in sent.body}
    assert not any(left_out.values()), "what we leave out is empty there"
    for name in ("client_id", "runtype", "onstart", "cancel_unavail"):
        assert sent.body[name] == client["body"][name]
    for name in ("args", "env", "label", "image"):
        assert type(sent.body[name]) is type(client["body"][name])
    assert sent.body["args"][0] == client["body"]["args"][0] == "-c"
    assert sent.body["env"]["-p 22:22"] == client["body"]["env"]["-p 22:22"]


def test_the_list_the_end_and_the_money_are_asked_for_alike(rig: Rig) -> None:
    made = rig.compute.create(request(rig))
    calls: dict[str, Callable[[], object]] = {
        "list": rig.api.instances,
        "show": lambda: rig.api.instance(made),
        "user": rig.api.credit,
        "charges": lambda: rig.api.charges(rig.clock() - 60, rig.clock()),
        "destroy": lambda: rig.api.destroy(made),
    }
    for name, call in calls.items():
        before = len(rig.standin.requests)
        call()
        sent, client = rig.standin.requests[before], theirs(name)
        number = client["path"].strip("/").rpartition("/")[2]
        path = client["path"].replace(number, made) if number.isdecimal() else client["path"]
        assert (sent.method, sent.path.strip("/")) == (client["method"], path.strip("/")), name
        assert sent.body == client["body"], name
        assert set(sent.query) <= set(client["query"]) | {"latest_first"}, name
        if name in ("list", "show"):
            assert dict(sent.query) == client["query"]


def test_two_creates_differ_in_what_is_theirs_alone(rig: Rig) -> None:
    first = rig.compute.body(request(rig))
    second = rig.compute.body(replace(request(rig, generation=2)))
    assert first["label"] != second["label"]
    assert first["args"] == second["args"]


@pytest.mark.skipif(not PYTHON.exists(), reason="make vast was not run")
def test_the_client_still_sends_what_is_on_record(tmp_path: Path) -> None:
    record = runpy.run_path(str(ROOT / "scripts" / "vast_requests.py"))["record"]
    assert record(str(PYTHON), tmp_path) == TABLE
