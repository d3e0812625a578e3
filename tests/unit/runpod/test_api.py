"""What each answer of RunPod's becomes, and what is asked again."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from tests.unit.runpod.conftest import KEY, Answer, Scripted, pod_record, problem, said
from trmcloud.adapters.runpod.http import NotThere
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    NoCapacity,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)

BODY = {"name": "p", "image": "i"}
NONE_FREE = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)
REQUEST = httpx.Request("POST", "https://x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, NONE_FREE), NoCapacity),
        (problem(500, f"create pod: {NONE_FREE}"), NoCapacity),
        (problem(400, "create pod: There are no instances currently available."), NoCapacity),
        (problem(400, "gpu.count must not be 3"), ProviderRefused),
        (problem(401, "no"), AuthError),
        (problem(402, "insufficient balance"), PaymentRequired),
        (problem(403, "pool"), AccessDenied),
        (problem(404, "volume not found"), ProviderRefused),
        (problem(409, "state"), ProviderRefused),
        (
            said(422, {"title": "", "status": 422, "detail": "d", "errors": ["$: x"]}),
            ProviderRefused,
        ),
        (problem(429, "slow down", Retry_After="7"), ProviderRefused),
        (problem(408, "timeout"), AmbiguousCreate),
        (problem(500, "internal server error"), AmbiguousCreate),
        (said(502, "<html>upstream connect error</html>"), AmbiguousCreate),
        (said(302, "", Location="https://elsewhere"), AmbiguousCreate),
        (said(201, "<html>"), AmbiguousCreate),
        (said(201, "[]"), AmbiguousCreate),
        (said(201, {"name": "no id"}), AmbiguousCreate),
        (said(201, ""), AmbiguousCreate),
        (httpx.ReadTimeout("late"), AmbiguousCreate),
        (httpx.RemoteProtocolError("closed"), AmbiguousCreate),
        (httpx.ReadError("reset"), AmbiguousCreate),
        (httpx.WriteError("reset"), AmbiguousCreate),
        (httpx.ConnectError("refused"), ProviderError),
        (httpx.ConnectTimeout("late"), ProviderError),
    ],
)
def test_every_answer_to_a_create_has_one_meaning(
    runpod: Scripted, answer: Answer, error: type[ProviderError]
) -> None:
    runpod.answers = [answer]
    with pytest.raises(ProviderError) as caught:
        runpod.api().create_pod(BODY)
    assert type(caught.value) is error
    assert caught.value.where == "RunPod, POST /v2/pods"
    assert caught.value.next_step
    assert len(runpod.asked) == 1, "a create is sent once"
    assert runpod.slept == []


def test_a_create_that_worked(runpod: Scripted) -> None:
    runpod.answers = [said(201, pod_record())]
    pod = runpod.api().create_pod(BODY)
    assert (pod.id, str(pod.rate)) == ("abc123", "$1.79")
    assert pod.made_at == 1_800_000_000.0
    sent = runpod.asked[0]
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert "python" not in sent.headers["User-Agent"].lower()


def test_violations_are_named(runpod: Scripted) -> None:
    body = {"title": "", "status": 422, "detail": "bad", "errors": ["$: additional 'bogus'"]}
    runpod.answers = [said(422, body)]
    with pytest.raises(ProviderRefused, match=r"bad; \$: additional 'bogus'"):
        runpod.api().create_pod(BODY)


def test_a_read_waits_as_long_as_it_is_told(runpod: Scripted) -> None:
    runpod.answers = [problem(429, "slow", Retry_After="12"), said(200, {"pods": []})]
    assert runpod.api().pods() == []
    assert runpod.slept == [12.0]


def test_a_read_does_not_wait_beyond_its_bound(runpod: Scripted) -> None:
    runpod.answers = [problem(429, "slow", Retry_After="3600")]
    with pytest.raises(ProviderError, match="less often"):
        runpod.api().pods()
    assert runpod.slept == []


@pytest.mark.parametrize(
    "trouble",
    [problem(500, "x"), problem(503, "x"), httpx.ConnectError("no"), httpx.ReadTimeout("late")],
)
def test_a_read_is_tried_again_with_longer_and_longer_waits(
    runpod: Scripted, trouble: Answer
) -> None:
    runpod.answers = [trouble, trouble, trouble, said(200, {"pods": [pod_record()]})]
    assert [pod.id for pod in runpod.api().pods()] == ["abc123"]
    assert runpod.slept == [0.5, 1.0, 2.0]


def test_a_read_ends_within_its_bound_however_slow_the_answers(runpod: Scripted) -> None:
    runpod.each_s = 4.0
    runpod.answers = [problem(500, "x")]
    began = runpod.now
    with pytest.raises(ProviderError, match="answers 500"):
        runpod.api(bound_s=20.0).pods()
    assert 10.0 < runpod.now - began <= 24.0, "one request may be under way when time is up"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(401, "no"), AuthError),
        (problem(403, "no"), AccessDenied),
        (said(200, "<html>"), ProviderError),
        (said(200, {"pods": {}}), ProviderError),
        (said(200, {"pods": [{"name": "no id"}]}), ProviderError),
        (said(200, {"pods": [{"id": "a/../b", "name": "n"}]}), ProviderError),
        (said(200, "[" * 100_000), ProviderError),
    ],
)
def test_what_cannot_get_better_is_not_asked_again(
    runpod: Scripted, answer: Answer, error: type[ProviderError]
) -> None:
    runpod.answers = [answer]
    with pytest.raises(error):
        runpod.api().pods()
    assert len(runpod.asked) == 1


def test_what_is_not_needed_may_be_odd(runpod: Scripted) -> None:
    odd = pod_record(
        status=7, cost="free", createdAt=[], ssh="?", disk="?", mounts=[], new_field={"a": 1}
    )
    runpod.answers = [said(200, {"pods": [odd], "more": 1})]
    (pod,) = runpod.api().pods()
    assert (pod.status, pod.rate, pod.made_at, pod.ssh, pod.disk_gb) == (None, None, None, None, 0)


def test_a_deletion_that_fails_goes_the_other_way(runpod: Scripted) -> None:
    runpod.answers = [problem(409, "no"), said(204)]
    assert runpod.api().delete_pod("abc") is True
    assert [(r.method, r.url.path) for r in runpod.asked] == [
        ("DELETE", "/v2/pods/abc"),
        ("POST", "/v2/pods/abc/action"),
    ]


def test_a_deletion_is_repeated_and_404_proves_nothing(runpod: Scripted) -> None:
    runpod.answers = [problem(500, "x"), problem(404, "pod not found")]
    assert runpod.api().delete_pod("abc") is False
    assert [r.method for r in runpod.asked] == ["DELETE", "DELETE"]


def test_a_deletion_that_nobody_takes_is_an_error(runpod: Scripted) -> None:
    runpod.answers = [problem(403, "no")]
    with pytest.raises(AccessDenied):
        runpod.api().delete_pod("abc")


def test_a_pod_that_is_not_there(runpod: Scripted) -> None:
    runpod.answers = [problem(404, "pod not found")]
    assert runpod.api().pod("abc") is None
    with pytest.raises(NotThere):
        runpod.http().read("GET", "https://x/y")


def test_the_key_stays_out_of_what_is_told(runpod: Scripted) -> None:
    runpod.answers = [problem(400, f"bad \x1b[31mkey {KEY}\x07 " + "y" * 5000)]
    with pytest.raises(ProviderRefused) as caught:
        runpod.api().create_pod(BODY)
    text = str(caught.value)
    assert KEY not in text
    assert "\x1b" not in text
    assert len(text) < 400


def test_a_redirect_is_not_followed_with_the_key(runpod: Scripted) -> None:
    runpod.answers = [said(302, "", Location="https://evil.test/")]
    with pytest.raises(ProviderError, match="302"):
        runpod.api().pods()
    assert [r.url.host for r in runpod.asked] == ["api.runpod.test"]


def test_the_servers_clock_is_compared(runpod: Scripted) -> None:
    runpod.answers = [said(200, {"pods": []}, Date="Fri, 15 Jan 2027 07:58:00 GMT")]
    api = runpod.api()
    api.pods()
    assert api.http.skew_s == 120.0
