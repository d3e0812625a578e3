"""One answer of RunPod's, taken apart: its JSON, what an error says, its clock, its patience."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from tests.unit.runpod.conftest import KEY, Scripted, problem, said
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    FinalRefusal,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.providers.runpod.http import Http, Throttled, Transient

URL = "https://api.runpod.test/v2/pods"
WHERE = "RunPod, GET /v2/pods"


def read(runpod: Scripted, *answers: Any, bound_s: float = 20.0) -> httpx.Response:
    runpod.answers = list(answers)
    return runpod.http(bound_s).read("GET", URL)


def test_a_key_that_none_can_be_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(AuthError, match="characters that no key has"):
        Http("rpa_é")


def test_one_that_is_closed_asks_nothing_more(runpod: Scripted) -> None:
    runpod.answers = [said(200, {})]
    http = runpod.http()
    http.close()
    with pytest.raises(RuntimeError, match="closed"):
        http.send("GET", URL)
    assert runpod.asked == []


# -- how long ----------------------------------------------------------------------------------


def timeouts(runpod: Scripted) -> list[tuple[float, float]]:
    """Of each request: for its answer, and for the connection."""
    found = [request.extensions["timeout"] for request in runpod.asked]
    return [(round(each["read"], 6), round(each["connect"], 6)) for each in found]


def test_a_read_waits_for_each_answer_no_longer_than_it_has_left(runpod: Scripted) -> None:
    runpod.each_s = 7.0
    with pytest.raises(Transient):
        read(runpod, problem(500, "later"))
    # 20 s in all, of which answers take 7 and pauses half a second, one and two.
    assert timeouts(runpod) == [(15.0, 5.0), (12.5, 5.0), (4.5, 4.5)]
    assert runpod.slept == [0.5, 1.0]


def test_a_read_that_has_hardly_any_time_left_waits_a_second(runpod: Scripted) -> None:
    with pytest.raises(Transient):
        read(runpod, problem(500, "later"), bound_s=0.2)
    assert timeouts(runpod) == [(1.0, 1.0)]


def test_a_pause_that_would_use_up_the_time_is_not_made(runpod: Scripted) -> None:
    with pytest.raises(Transient):
        read(runpod, problem(500, "later"), bound_s=0.5)
    assert (len(runpod.asked), runpod.slept) == (1, [])


def test_a_single_request_waits_as_long_as_it_is_told(runpod: Scripted) -> None:
    runpod.answers = [said(200, {})]
    http = runpod.http()
    for timeout_s in (60.0, 3.0):
        http.send("POST", URL, timeout_s=timeout_s)
    http.send("GET", URL)
    assert timeouts(runpod) == [(60.0, 5.0), (3.0, 3.0), (15.0, 5.0)]
    assert http.requests == 3
    assert runpod.http().requests == 0


@pytest.mark.parametrize(
    ("header", "slept"),
    [("3", 3.0), (" 3 ", 3.0), ("0", 0.0), ("", 0.5), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.5),
     ("-3", 0.5), ("3.5", 0.5), ("9" * 5000, 0.5), ("٣", 0.5)],
)  # fmt: skip
def test_a_wish_to_wait_is_seconds_or_none(runpod: Scripted, header: str, slept: float) -> None:
    answer = httpx.Response(429, headers=[(b"Retry-After", header.encode())])
    assert read(runpod, answer, said(200, {})).is_success
    assert runpod.slept == [slept]


def test_nobody_waits_longer_than_a_day(runpod: Scripted) -> None:
    for wish, waits in ((86_399, 86_399.0), (86_400, 86_400.0), (86_401, 86_400.0)):
        refused = runpod.http().refusal(problem(429, "x", Retry_After=str(wish)), WHERE)
        assert isinstance(refused, Throttled)
        assert refused.retry_after_s == waits


def test_pauses_grow_to_eight_seconds(runpod: Scripted) -> None:
    with pytest.raises(Transient):
        read(runpod, problem(500, "later"), bound_s=39.0)
    assert runpod.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


# -- the server's clock ------------------------------------------------------------------------


def test_a_clock_that_is_told_no_more_is_not_known(runpod: Scripted) -> None:
    runpod.answers = [
        said(200, {}, Date="Fri, 15 Jan 2027 07:59:50 GMT"),
        said(200, {}),
        said(200, {}, Date="no day"),
    ]
    http = runpod.http()
    known = []
    for _ in range(3):
        http.send("GET", URL)
        known.append(http.skew_s)
    assert known == [10.0, 10.0, None]


# -- what came ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "[]", "<html>", '"x"', "1", "[" * 100_000])
def test_what_is_no_object_is_refused_and_shown(runpod: Scripted, content: str) -> None:
    with pytest.raises(ProviderError) as odd:
        runpod.http().json(said(200, content), WHERE)
    assert odd.value.what.endswith(f"contract says: {runpod.http().clean(content)!r}")
    assert odd.value.where == WHERE


def test_an_answer_that_cannot_be_unpacked_is_an_error_of_ours(runpod: Scripted) -> None:
    with pytest.raises(ProviderError, match="RunPod's answer: not gzip"):
        read(runpod, httpx.DecodingError("not gzip"))
    assert len(runpod.asked) == 1


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("plain  words\n", "plain words"),
        ("", "(no text)"),
        ("[1]", "[1]"),
        (" \n<html>", "a web page, and no answer of its API"),
        ("[" * 100_000, "[" * 300 + "…"),
        ({}, "(no text)"),
        ({"errors": []}, "(no text)"),
        ({"errors": "odd"}, "(no text)"),
        ({"detail": "", "title": "T"}, "T"),
        ({"detail": "D", "title": "T", "error": "E"}, "D"),
        ({"title": "T", "error": "E"}, "T"),
        ({"error": "E"}, "E"),
        ({"detail": {"a": 1}}, "{'a': 1}"),
        ({"errors": ["a", "b", "c"]}, "a; b; c"),
        ({"detail": "D", "errors": ["a", "b", "c", "d", "e"]}, "D; a; b; c; and 2 more"),
        ({"errors": ["x" * 200, {"at": 1}]}, "x" * 100 + "; {'at': 1}"),
    ],
)
def test_what_an_error_says_is_one_line(runpod: Scripted, body: Any, detail: str) -> None:
    assert runpod.http().detail(said(400, body)) == detail


def test_text_of_the_servers_is_cut_and_free_of_the_key(runpod: Scripted) -> None:
    http = runpod.http()
    assert http.clean("x" * 300) == "x" * 300
    assert http.clean("x" * 301) == "x" * 300 + "…"
    assert http.clean(f"no {KEY}\x1b[2J\n\tat  all") == "no *** at all"
    assert Http("").clean("nothing to hide") == "nothing to hide"


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (400, ProviderRefused, "RunPod refuses this: why"),
        (401, AuthError, "RunPod does not know this key"),
        (402, PaymentRequired, "the RunPod balance does not cover this: why"),
        (403, AccessDenied, "RunPod refuses this to this key: why"),
        (404, ProviderError, "RunPod knows no such thing: why"),
        (409, ProviderRefused, "RunPod: not in this state: why"),
        (413, FinalRefusal, "the request is larger than RunPod takes: why"),
        (422, FinalRefusal, "RunPod's contract was broken: why"),
        (408, Transient, "RunPod answers 408: why"),
        (499, ProviderRefused, "RunPod refuses this: why"),
        (500, Transient, "RunPod answers 500: why"),
        (599, Transient, "RunPod answers 599: why"),
        (300, ProviderError, "RunPod's address answers 300: it has moved"),
        (399, ProviderError, "RunPod's address answers 399: it has moved"),
    ],
)
def test_what_each_refusal_stands_for(
    runpod: Scripted, code: int, kind: type[ProviderError], says: str
) -> None:
    refused = runpod.http().refusal(problem(code, "why"), WHERE)
    assert isinstance(refused, kind)
    assert isinstance(refused, Transient) is (kind is Transient)
    assert refused.what.startswith(says)
    assert refused.where == WHERE
