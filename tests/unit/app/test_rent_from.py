"""Whom ``--provider`` and ``--via`` mean."""

from __future__ import annotations

import pytest

from trmcloud.app.rent_from import rent_from
from trmcloud.core.errors import DoesNotFit, UsageError


def whom(*named: str, via: str = "", on: tuple[str, ...] | None = None, key: bool = False) -> str:
    def enabled() -> tuple[str, ...]:
        assert on is not None, "SkyPilot is asked though the user chose"
        return on

    return " ".join(rent_from("8xH100", named, via, key_allowed=key, enabled=enabled))


def test_runpod_is_rented_from_directly_unless_somebody_else_is_named() -> None:
    assert whom() == "runpod"
    assert whom("aws", "runpod") == "aws runpod"


def test_through_skypilot_whoever_it_has_access_to() -> None:
    on = ("aws", "lambda", "skypilot-runpod")
    assert whom(via="skypilot", on=on) == "aws lambda"
    assert whom(via="skypilot", on=on, key=True) == "aws lambda skypilot-runpod"
    assert whom("runpod", via="skypilot") == "skypilot-runpod"
    with pytest.raises(DoesNotFit, match="no cloud is enabled"):
        whom(via="skypilot", on=("skypilot-runpod",))


def test_what_cannot_be_rented_is_refused() -> None:
    for named, via in ((("hyperstack",), ""), ((), "terraform")):
        with pytest.raises(UsageError):
            whom(*named, via=via)
    with pytest.raises(UsageError, match="not rented"):
        rent_from("local", (), "skypilot", key_allowed=False, enabled=tuple)
    assert rent_from("local", (), "", key_allowed=False, enabled=tuple) == []
