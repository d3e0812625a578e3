"""Requests to SkyPilot's API server to launch a cluster, and what became of them.

A launch is taken at once and carried out later. One that found nothing to rent leaves no cluster,
and says so in its log alone.
"""

from __future__ import annotations

import re
from typing import Any

from trmcloud.core.errors import ProviderError
from trmcloud.providers.skypilot.command import Sky, reasons_in

SUBMITTED = re.compile(r"Submitted sky\.launch request: ([0-9a-f-]{8,36})")
WATCHED_S = 1800.0
"""A launch that has not failed by then has come through, or hangs."""

_ID = re.compile(r"[0-9a-f-]{8,36}")
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
_NONE_LEFT = "sky.exceptions.ResourcesUnavailableError:"
"""Everything that could be asked for was, and whatever came of it was taken down again."""
_ASKED_FOR = re.compile(r" for \{.*\}")
_MAX_REASON = 160
_MOST_ASKED = 8
"""Requests for one pod whose logs are asked for: each takes SkyPilot seconds."""


class Launches:
    """Asks for each launch anew: an API server that was restarted has forgotten them all."""

    def __init__(self, sky: Sky) -> None:
        self._sky = sky

    def active(self, name: str) -> list[str]:
        """Ids of those that go on, in whatever state SkyPilot has for that.

        Raises:
            ProviderError: it cannot be asked.
        """
        return [request for request, state in self._all(name, over=False) if state not in _OVER]

    def ended(self, name: str) -> set[str]:
        """SUCCEEDED, FAILED, CANCELLED: how any of them has ended.

        Raises:
            ProviderError: it cannot be asked.
        """
        return {state for _, state in self._all(name) if state in _OVER}

    def are_known(self, name: str) -> bool:
        return bool(self._all(name))

    def why_none(self, name: str) -> str | None:
        """Why nothing could be rented for it; '' where that is not what happened; None while that
        cannot be told: a launch goes on, or is only being submitted, or was forgotten.

        Raises:
            ProviderError: it cannot be asked.
        """
        known = self._all(name)
        if not known or any(state not in _OVER for _, state in known):
            return None
        # One that was called off may have made a machine; one that failed otherwise, too.
        if any(state != "FAILED" for _, state in known) or len(known) > _MOST_ASKED:
            return ""
        reasons = [self._why_none(request) for request, _ in known]
        return reasons[0] if all(reasons) else ""

    def _why_none(self, request: str) -> str:
        # Not its log, which tells of each place that was tried, also where the next one gave.
        said = self._sky.complaint("api", "logs", request)
        if not any(line.strip().startswith(_NONE_LEFT) for line in said.splitlines()):
            return ""
        reason = _ASKED_FOR.sub("", reasons_in(said)[-1])[:_MAX_REASON].rstrip(".")
        return f"{reason} (sky api logs {request[:8]})"

    def _all(self, name: str, *, over: bool = True) -> list[tuple[str, str]]:
        """(id, state) of each; without ``over`` only of those that go on."""
        words = ("-a",) if over else ()
        rows: Any = self._sky.read("api", "status", *words, "-c", name)
        if not isinstance(rows, list):
            raise ProviderError("sky api status printed no list")
        return [
            (str(row["request_id"]), str(row.get("status")))
            for row in rows
            if isinstance(row, dict)
            and row.get("name") == "sky.launch"
            and _ID.fullmatch(str(row.get("request_id")))
        ]
