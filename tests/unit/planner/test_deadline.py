from __future__ import annotations

from datetime import datetime, timezone

import pytest

from trmcloud.core.errors import UsageError
from trmcloud.core.spec.deadline import parse_deadline

NOW = datetime(2026, 11, 18, 15, 0, tzinfo=timezone.utc).timestamp()  # a Wednesday


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12h", datetime(2026, 11, 19, 3, 0)),
        ("90m", datetime(2026, 11, 18, 16, 30)),
        ("1.5d", datetime(2026, 11, 20, 3, 0)),
        ("friday", datetime(2026, 11, 21)),
        ("Wed", datetime(2026, 11, 19)),
        ("2026-11-20", datetime(2026, 11, 21)),
        ("2026-11-20T18:00", datetime(2026, 11, 20, 18, 0)),
        ("2026-11-20T18:00+02:00", datetime(2026, 11, 20, 16, 0)),
    ],
)
def test_times_as_people_say_them(text: str, expected: datetime) -> None:
    at = parse_deadline(text, NOW, timezone.utc)
    assert at == expected.replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    "text", ["", "soon", "0h", "-3h", "nanh", "infd", "2020-01-01", "t", "2030-01-01", "12"]
)
def test_what_is_no_future_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--deadline"):
        parse_deadline(text, NOW, timezone.utc)
