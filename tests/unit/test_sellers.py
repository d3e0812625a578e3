"""What the providers with an API of their own share: prices of today, and a key's scopes."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError

import pytest

from trmcloud.core.errors import AccessDenied, ProviderError
from trmcloud.ports.compute import TransientError
from trmcloud.providers.runpod.http import Http
from trmcloud.providers.seller import check_scopes, read_live
from trmcloud.providers.vast.api import VastApi


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


def test_a_refusal_names_the_sellers_own_next_step_or_the_usual_one() -> None:
    runpod, vast = Http("key"), VastApi("key", "https://console.vast.ai")
    assert "uptime.runpod.io" in runpod.error_of(503, "down", "here").next_step
    assert vast.error_of(503, "down", "here").next_step == TransientError("down").next_step
    assert "fewer commands" in vast.error_of(429, "slow", "here", 3.0).next_step


def test_a_list_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    api, asked = VastApi("key", "https://console.vast.ai"), list[Any]()
    pages = [{"rows": [1, 2], "next_token": "t"}, {"rows": [3], "next_token": None}]

    def read(method: str, path: str, *, params: Any, priority: Any) -> Any:
        asked.append(params)
        return pages[len(asked) - 1]

    monkeypatch.setattr(api, "_read", read)
    assert api._pages("/list", "rows", {"limit": 2}) == [1, 2, 3]
    assert asked == [{"limit": 2}, {"limit": 2, "after_token": "t"}]
