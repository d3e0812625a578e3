"""What the providers with an API of their own share: prices of today, and a key's scopes."""

from __future__ import annotations

from urllib.error import HTTPError

import pytest

from trmcloud.core.errors import AccessDenied, ProviderError
from trmcloud.providers.seller import check_scopes, read_live


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "its list is empty"),
        (HTTPError("https://x", 503, "", None, None), "HTTP 503"),  # type: ignore[arg-type]
        (ProviderError("it is down"), "it is down"),
        (ValueError("no JSON"), "ValueError: no JSON"),
    ],
)
def test_live_prices_that_cannot_be_read_say_why(error: Exception | None, told: str) -> None:
    def read(within_s: float) -> list[object]:
        if error is not None:
            raise error
        return []

    assert read_live(read) == ([], told)  # type: ignore[arg-type]


def test_a_scope_that_the_key_lacks_is_worse_than_one_that_is_not_known() -> None:
    def raises(error: Exception) -> object:
        raise error

    fine = {"read pods": lambda: None}
    unclear = {**fine, "read bills": lambda: raises(ProviderError("it is down"))}
    refused = {**unclear, "end pods": lambda: raises(AccessDenied("no"))}
    found = [check_scopes("scopes", asked, "fix") for asked in (fine, unclear, refused)]
    assert [each.state for each in found] == ["ok", "warn", "bad"]
    assert "it is down" in found[1].detail
    assert (found[2].detail, found[2].fix) == ("the key does not permit: end pods", "fix")
