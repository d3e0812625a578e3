"""A SkyPilot that cannot rent is told in one line; one that nothing was rented by is left alone."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.user import SMALL
from tests.typist import InProcess, typist
from tests.unit.skypilot.rig import stand_in

__all__ = ["typist"]

DOWN = "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server"


REFUSALS = {
    "not installed": ({}, 11, "SkyPilot is not installed: there is no", "make sky"),
    "too old": ({"version": "0.9.2"}, 11, "version 0.9.2 is too old", "make sky"),
    "down": ({"fail": {"check": DOWN}}, 11, "SkyPilot's API server is down", "sky api start"),
    "not enabled": (
        {"enabled": ["GCP"]}, 15,
        "aws is not enabled in SkyPilot: AWS credentials are not set.", "sky check aws",
    ),
}  # fmt: skip


def test_a_skypilot_that_cannot_rent_is_told_in_one_line_and_nothing_is_reserved(
    typist: InProcess, tmp_path: Path
) -> None:
    """One home, one plan, one refusal after another."""
    state = tmp_path / "sky.json"
    arguments = [word for word in SMALL if word not in ("--rate", "3.60")]
    wish = ("launch", "8xH100", "--provider", "aws", "--phase", "fast", *arguments)
    plan = typist.json(*wish, "--budget", "90", "--dry-run", "--json")
    for name, (told, code, says, fix) in REFUSALS.items():
        program = tmp_path / "sky"
        if name != "not installed":
            state.write_text(json.dumps(told))
            stand_in(program, state)
        typist.environment["TRMCLOUD_SKY"] = str(program)
        err = typist.refused("launch", plan["id"], "-y", "--accept-exposure", "90", code=code)
        assert says in err
        assert fix in err
        assert "Traceback" not in err
    assert typist.ledger().runs == {}
    (typist.folder / ".config" / "gcloud").mkdir(parents=True)
    findings = typist.json("doctor", "--json", code=(0, 1))["checks"]
    (found,) = (one for one in findings if one["code"] == "skypilot")
    assert (found["passed"], found["message"]) == (True, "0.14.1; enabled: gcp")


def test_skypilot_is_left_alone_where_nothing_was_rented_through_it(
    typist: InProcess, tmp_path: Path
) -> None:
    """Asking it starts its server: neither a look around nor a reaper does."""
    state = tmp_path / "sky.json"
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path / "bin" / "sky", state)
    typist.environment["PATH"] = f"{tmp_path / 'bin'}:{typist.env()['PATH']}"
    typist.run("status", "--all")
    typist.run("admin", "reap")
    assert not state.exists()
