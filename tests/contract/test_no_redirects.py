"""Nobody who carries a key, or a right in an address, follows where an answer points: a real server
points to another one, which would note what it is brought."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.unit.pod.provider import Provider
from trmcloud.core.errors import ProviderError
from trmcloud.pod.agent.terminate import ways_of
from trmcloud.pod.storage.presigned import Objects, StoreError
from trmcloud.providers.runpod import offers
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.checkup import check_account
from trmcloud.providers.runpod.http import Http

KEY = "rpa_CANARY0123456789"
CODES = (301, 302, 303, 307, 308)


@pytest.fixture
def elsewhere() -> Iterator[Provider]:
    server = Provider()
    yield server
    server.close()


@pytest.fixture
def pointing(elsewhere: Provider) -> Iterator[Provider]:
    """Whatever is asked of it lies on the other server, it says."""
    server = Provider()
    yield server
    server.close()


def refused(ask: Callable[[], object]) -> None:
    with pytest.raises(ProviderError, match="it has moved, or a proxy"):
        ask()


def _api(base: str) -> None:
    api = RunPodApi(Http(KEY, bound_s=2.0), base)
    refused(api.pods)
    refused(lambda: api.pod("abc"))
    with pytest.raises(ProviderError):
        api.create_pod({"name": "n"})
    with pytest.raises(ProviderError):
        api.delete_pod("abc")
    refused(lambda: api.catalogue({}))


def _graphql(base: str) -> None:
    refused(RunPodGraphql(Http(KEY, bound_s=2.0), f"{base}/graphql").account)


def _prices(base: str) -> None:
    environ = {"TRMCLOUD_RUNPOD_API": base, "RUNPOD_API_KEY": KEY}
    rows, notes = offers.price_rows(environ, 0.0)
    assert rows == []
    assert notes[0].startswith("runpod: not read: HTTP 30")
    found, why = offers.live_prices(environ, 0.0)
    assert found == []
    assert why.startswith("HTTP 30")


def _doctor(base: str) -> None:
    (finding,) = check_account({"TRMCLOUD_RUNPOD_API": base, "RUNPOD_API_KEY": KEY})
    assert finding.state == "bad"


def _pod(base: str) -> None:
    environment = {
        "RUNPOD_POD_ID": "abc",
        "RUNPOD_API_KEY": KEY,
        "TRMCLOUD_RUNPOD_API": base,
        "PATH": "/nonexistent",
    }
    answers = [way.try_it() for way in ways_of(environment)]
    assert [answer.ok for answer in answers] == [False] * 5
    assert all(answer.code in CODES for answer in answers[:3])


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("ask", [_api, _graphql, _prices, _doctor, _pod])
def test_a_key_goes_nowhere_else(
    pointing: Provider, elsewhere: Provider, ask: Callable[[str], None], code: int
) -> None:
    pointing.points_to(f"{elsewhere.url}/stolen", code)
    ask(pointing.url)
    assert pointing.asked, "it was asked"
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, _, headers, _ in pointing.asked)
    assert elsewhere.asked == []


@pytest.mark.parametrize("code", CODES)
def test_nor_does_a_signed_address(pointing: Provider, elsewhere: Provider, code: int) -> None:
    """An upload follows nothing. A download asks where a store's 302 or 307 points, and brings
    nothing there that it was given."""
    pointing.points_to(f"{elsewhere.url}/cache", code)
    objects, url = Objects(), f"{pointing.url}/bucket/a?X-Amz-Signature=s"
    with contextlib.closing(objects):
        with pytest.raises(StoreError, match=str(code)):
            objects.put(url, 3, b"0" * 16, lambda offset, count: b"abc")
        assert elsewhere.asked == []
        with pytest.raises(StoreError, match="404" if code in (302, 307) else str(code)):
            objects.get(url, 0, 3, lambda block: None)
    assert len(pointing.asked) == 2
    assert len(elsewhere.asked) == (code in (302, 307))
    for method, path, headers, body in elsewhere.asked:
        assert (method, path, body) == ("GET", "/cache", None)
        assert "X-Amz-Signature" not in repr(headers)
        assert "Authorization" not in headers


def test_every_request_gives_a_name(pointing: Provider, elsewhere: Provider) -> None:
    """RunPod's edge turns away whoever gives none, and Python's own."""
    pointing.points_to(f"{elsewhere.url}/", 302)
    for ask in (_api, _graphql, _prices, _pod):
        ask(pointing.url)
    names = {headers.get("User-Agent", "") for _, _, headers, _ in pointing.asked}
    assert names == {"trmcloud", "trmcloud-pod/1"}
