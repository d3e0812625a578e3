"""Numbers and times of RunPod's, and notes that outlive a controller."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trmcloud.adapters.pod_history import Sightings
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.providers.runpod import models

NAME = "trmc-0a1b2c3d-run1-g1-1800003600"


def as_float32(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


@given(cents=st.integers(0, 99_999))
def test_a_price_in_cents_survives_a_32_bit_float(cents: int) -> None:
    exact = Usd(f"{cents / 100:.2f}")
    assert models.usd(cents / 100) == exact
    assert models.usd(as_float32(cents / 100)) == exact


@given(number=st.floats(0, 1e6, allow_nan=False))
def test_a_rate_is_never_far_off(number: float) -> None:
    assert float(models.usd(number)) == pytest.approx(number, rel=1e-6, abs=1.1e-6)
    assert float(models.usd_exact(number)) >= number - 1e-9


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e12, -1e12])
def test_amounts_that_none_can_be(number: float) -> None:
    with pytest.raises(ProviderError):
        models.usd(number)
    with pytest.raises(ProviderError):
        models.usd_exact(number)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000.0),
        ("2027-01-15T08:00:00.250Z", 1_800_000_000.25),
        ("2027-01-15T08:00:00", 1_800_000_000.0),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_instants(text: str | None, at: float | None) -> None:
    assert models.instant(text) == at


def test_times_are_written_as_they_are_read() -> None:
    assert models.instant(models.rfc3339(1_800_000_000.9)) == 1_800_000_000.0


def seen(notes: Sightings, at: float, rate: str = "1.79") -> None:
    notes.alive(
        "abc", NAME, rate=Usd(rate), disk_gb=70, made_at=100.0, started_at=None, at=at
    )  # fmt: skip


def test_notes_outlive_their_writer(tmp_path: Path) -> None:
    first = Sightings(tmp_path)
    seen(first, 130.0)
    seen(first, 200.0, rate="0")
    first.missed([], 210.0)
    first.billed("abc", Usd(2), 300.0)
    first.billed("abc", Usd(2), 400.0)
    (again,) = Sightings(tmp_path).named(NAME)
    assert again == first.get("abc")
    assert (again.rate, again.made_at, again.alive_at) == (Usd("1.79"), 100.0, 200.0)
    assert (again.gone_at, again.billed_since) == (210.0, 300.0)
    seen(first, 500.0)
    (back,) = Sightings(tmp_path).named(NAME)
    assert back.gone_at is None


def test_being_alive_is_not_written_at_each_look(tmp_path: Path) -> None:
    notes = Sightings(tmp_path)
    seen(notes, 200.0)
    path = tmp_path / "abc.json"
    written = path.stat().st_mtime_ns
    for at in range(201, 229):
        seen(notes, float(at))
    assert path.stat().st_mtime_ns == written
    seen(notes, 231.0)
    assert json.loads(path.read_text())["alive_at"] == 231.0


def test_foreign_pods_and_odd_ids_leave_no_file(tmp_path: Path) -> None:
    notes = Sightings(tmp_path)
    for pod_id, name in (("abc", "my-own-pod"), ("../abc", NAME)):
        notes.alive(
            pod_id, name, rate=None, disk_gb=0, made_at=None, started_at=None, at=1.0
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob("abc*")) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"pod_id": "x"}', '{"pod_id": "abc", "name": "n", "odd": 1}',
             '{"pod_id": "abc", "name": "n", "made_at": "soon"}', "\x00"],
)  # fmt: skip
def test_a_damaged_note_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "abc.json").write_text(text)
    assert Sightings(tmp_path).get("abc") is None
