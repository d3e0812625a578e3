"""The world of the guide to SkyPilot, whose command is a stand-in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from guide_readers import Reader, at_home

from tests.e2e.user import User
from tests.unit.skypilot.rig import stand_in


@contextlib.contextmanager
def sky(folder: Path) -> Iterator[Reader]:
    """Three clouds are enabled; nothing is there to be rented."""
    state = folder / "sky.json"
    state.write_text(json.dumps({"enabled": ["AWS", "GCP", "RunPod"]}))
    user = at_home(User(folder))
    user.environment["TRMCLOUD_SKY"] = str(stand_in(folder / "sky", state))
    for path in (".aws/credentials", ".config/gcloud/active_config", ".runpod/config.toml"):
        (user.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (user.folder / path).touch()
    only = {
        "doctor": "skypilot",
        "plan": "^(trm|▸|Recommended|Launch)|^  (price|spot|nothing|lands)",
    }
    yield Reader(user, only=only)
