"""Images that lack what a trainer needs, on a pod without internet: told, paid for by the second,
and nothing left running."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.e2e.rented import image, renting
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd
from trmcloud.operations.reasons import sentence


def told(user: RentedUser) -> str:
    """What a launch on such an image says; its run is closed, paid, and leaves nothing."""
    arguments = ("--steps", "60", "--budget", "0.30", *user.data, *ACCEPT)
    launch = user.start(*LAUNCH, *arguments)
    out, err = user.see_out(launch, code=Outcome.UNFIT.exit_code, within_s=240.0)
    assert err == ""
    run = user.close_books()
    assert run.outcome is Outcome.UNFIT
    assert run.phases == {}
    assert user.live() == []
    assert ZERO < run.settled < Usd("0.05")
    assert user.billed() <= float(run.settled) + 2e-6
    # Where the bill is late, it is what it can be at most.
    assert re.search(r"^  spent \$0\.\d+ of \$0\.30", out, re.MULTILINE), out
    assert f"  try: trmcloud resume {run.run_id}" in out
    (why,) = [line for line in out.splitlines() if line.startswith("  why: ")]
    assert sentence(run.reason) in why
    return why


def without(folder: Path, *patterns: str) -> Path:
    """An image whose Python lacks what the patterns name."""
    inside = image(folder / "image")
    for pattern in patterns:
        for path in (inside / "site").glob(pattern):
            shutil.rmtree(path)
    return inside


def test_a_package_that_cannot_be_had_without_internet(tmp_path: Path) -> None:
    with renting(tmp_path, without(tmp_path, "safetensors*")) as user:
        why = told(user)
    assert "packages could not be installed: the package index is out of reach: " in why
    assert "name resolution" in why or "unreachable" in why
