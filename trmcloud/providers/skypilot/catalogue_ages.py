"""Prices without any account: the public catalogues that SkyPilot reads, and how old each is.

A catalogue does not say of which day it is; who reads it would take what was written down by hand
months ago for a price of today. So the repository that holds it is asked when it last changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import NamedTuple

from trmcloud.adapters.prices.download import Unreadable, fetch
from trmcloud.providers.skypilot.offers import (
    PROVIDERS,
    NotACatalogue,
    Row,
    read_catalogue,
)

ENV_CATALOGUES = "TRMCLOUD_SKY_CATALOGS"
"""A base address instead of SkyPilot's two; below it lie v8/aws/vms.csv and its likes."""
ENV_CHANGES = "TRMCLOUD_SKY_CATALOG_CHANGES"
"""An address instead of GitHub's list of commits."""

BASES = (
    "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs",
    "https://skypilot-catalog.s3.us-east-1.amazonaws.com/catalogs",
)
"""As in SkyPilot 0.14.1 (``sky/skylet/constants.py``): the second where the first refuses."""
CHANGES = "https://api.github.com/repos/skypilot-org/skypilot-catalog/commits"
VERSIONS = ("v8", "v9")
"""What 0.14.1 reads, and what its next versions will."""
MOST_BYTES = 32 << 20
MOST_CHANGES_BYTES = 1 << 20
WITHIN_S = 60.0
CHANGES_WITHIN_S = 10.0
_DAY_S = 86_400.0

BY_MACHINE = frozenset({"aws", "gcp", "runpod", "verda"})
"""Their catalogues are made anew several times a day; the others are changed by hand, or seldom."""


class _Version(NamedTuple):
    name: str
    changed_at: float | None
    """Epoch seconds, None where nobody says."""
    why: str
    """Why nobody does."""


def read_cloud(cloud: str, environ: Mapping[str, str], now: float) -> tuple[list[Row], list[str]]:
    """(rows by the names of ``prices.COLUMNS``, one line about them): the newest version of one
    cloud's catalogue. Nothing raises: what went wrong is the line."""
    name = PROVIDERS[cloud]
    version = max(
        (_version(cloud, v, environ, now) for v in VERSIONS),
        key=lambda v: v.changed_at or 0.0,
    )
    if version.changed_at is None and cloud not in BY_MACHINE:
        why = f"how old SkyPilot's catalogue of it is cannot be had ({version.why})"
        return [], [f"{name}: not read: {why}"]
    as_of = _day(now if version.changed_at is None else version.changed_at)
    try:
        text = _catalogue(cloud, version.name, environ).decode("utf-8")
        found = read_catalogue(cloud, text, as_of)
    except UnicodeDecodeError:
        return [], [f"{name}: not read: the answer is no text"]
    except (NotACatalogue, Unreadable) as error:
        return [], [f"{name}: not read: {error}"]
    doubted = f"; {found.doubted} rows not believed" if found.doubted else ""
    if not found.rows:
        return [], [f"{name}: no offers of known GPUs{doubted}"]
    offers = sum(bool(row["usd_per_hour"]) + bool(row["spot_usd_per_hour"]) for row in found.rows)
    aged = int((now - (version.changed_at or now)) // _DAY_S)
    age = f", {aged} day{'s' * (aged > 1)} ago" if aged > 0 else ""
    said = f"{name}: {offers} offers of {as_of}{age} (SkyPilot's {version.name}){doubted}"
    return found.rows, [said]


def _catalogue(cloud: str, version: str, environ: Mapping[str, str]) -> bytes:
    """
    Raises:
        Unreadable: in the words of the first address.
    """
    own = environ.get(ENV_CATALOGUES, "").strip().rstrip("/")
    first: Unreadable | None = None
    for base in (own,) if own else BASES:
        try:
            return fetch(
                f"{base}/{version}/{cloud}/vms.csv", most_bytes=MOST_BYTES, within_s=WITHIN_S
            )
        except Unreadable as error:
            first = first or error
    assert first is not None
    raise first


def _version(cloud: str, version: str, environ: Mapping[str, str], now: float) -> _Version:
    """A catalogue, and when the newest commit touched it by GitHub's list of them."""
    base = environ.get(ENV_CHANGES, "").strip() or CHANGES
    url = f"{base}?path=catalogs/{version}/{cloud}/vms.csv&per_page=1"
    try:
        answer = fetch(url, most_bytes=MOST_CHANGES_BYTES, within_s=CHANGES_WITHIN_S)
        said = json.loads(answer)[0]["commit"]["committer"]["date"]
        at = datetime.fromisoformat(said.replace("Z", "+00:00"))
        changed_at = at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()
    except Unreadable as error:
        return _Version(version, None, str(error))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _Version(version, None, "no date is in the answer")
    if not 0 < changed_at <= now + _DAY_S:
        return _Version(version, None, "its date has not been yet")
    return _Version(version, changed_at, "")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
