"""What RunPod refuses, on a clock that waiting moves: who waits, who goes on, who stops."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.runpod_rig import Rig, request
from trmcloud.core.errors import (
    AuthError,
    FinalRefusal,
    NoCapacity,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.providers.runpod.compute import LONGEST_HOLD_S, THROTTLED_S


@pytest.mark.parametrize(
    ("knobs", "error", "says"),
    [
        ({"no_capacity": ["*"]}, NoCapacity, "no longer any instances"),
        (
            {"no_capacity": ["*"], "no_capacity_detail": "no pods with required specifications"},
            NoCapacity,
            "no pods with",
        ),
        ({"forbidden_gpus": ["NVIDIA L4"]}, ProviderRefused, "cannot access the requested pool"),
        ({"create_refused": 400}, ProviderRefused, "refused by a knob"),
        ({"create_refused": 402}, PaymentRequired, "balance does not cover this"),
        ({"create_refused": 410}, FinalRefusal, "API that this version speaks is gone"),
        ({"create_refused": 413}, FinalRefusal, "larger than RunPod takes"),
        ({"create_refused": 422}, FinalRefusal, "contract was broken"),
        ({"v2_gone": True}, FinalRefusal, "API that this version speaks is gone"),
        ({"key_revoked": True}, AuthError, "does not know this key"),
    ],
)
def test_each_refusal_has_words_of_its_own(
    rig: Rig, knobs: dict[str, Any], error: type[ProviderError], says: str
) -> None:
    rig.standin.control.set(**knobs)
    with pytest.raises(error, match=says) as caught:
        rig.compute.create(request(rig))
    assert isinstance(caught.value, FinalRefusal) is issubclass(error, FinalRefusal)
    assert caught.value.next_step
    assert rig.standin.control.live() == []
    assert len(rig.asked("POST")) <= 1, "it is not asked again"


def test_a_create_that_came_too_soon_is_asked_again_after_a_look(rig: Rig) -> None:
    rig.standin.control.set(create_throttled=2, retry_after_s=25)
    began_at = rig.clock()
    pod_id = rig.compute.create(request(rig))
    assert [pod.id for pod in rig.standin.control.live()] == [pod_id]
    assert rig.clock() - began_at == 50.0, "as long as RunPod asked for, twice"
    assert rig.asked() == ["GET /v2/pods", "POST /v2/pods"] * 3, "by name, each time before it asks"


@pytest.mark.parametrize("retry_after_s", [1, 7, 30, 60])
def test_two_minutes_of_429_end_in_one_line(rig: Rig, retry_after_s: int) -> None:
    began_at = rig.clock()
    rig.standin.control.set(throttled_until=began_at + 120.0, retry_after_s=retry_after_s)
    with pytest.raises(FinalRefusal) as caught:
        rig.compute.create(request(rig))
    assert "asks to be asked less often" in caught.value.what
    assert "nothing was rented" in caught.value.what
    assert "\n" not in str(caught.value)
    assert rig.clock() - began_at <= THROTTLED_S + 20.0
    assert rig.asked("POST") == []
    rig.on(150)
    assert rig.compute.list_pods() == ()
    assert rig.standin.control.live() == []


def test_an_hour_is_not_waited_for(rig: Rig) -> None:
    rig.standin.control.set(create_throttled=1, retry_after_s=3600)
    began_at = rig.clock()
    with pytest.raises(FinalRefusal, match="for 3600 s"):
        rig.compute.create(request(rig))
    assert rig.clock() == began_at


def test_a_create_is_not_sent_after_its_time(rig: Rig) -> None:
    """Another controller may have found out by then that there is no pod."""
    rig.standin.control.set(create_throttled=1, retry_after_s=40)
    began_at = rig.clock()

    def require_wanted() -> None:
        if rig.clock() > began_at + 30.0:
            raise ProviderRefused("too late to be sent")

    late = request(rig, require_wanted=require_wanted)
    with pytest.raises(ProviderRefused, match="too late to be sent"):
        rig.compute.create(late)
    assert len(rig.asked("POST")) == 1
    assert rig.standin.control.live() == []


def test_whoever_is_told_to_wait_asks_no_more_until_then(rig: Rig) -> None:
    rig.compute.create(request(rig))
    rig.on(30)
    rig.standin.control.set(throttled_until=rig.clock() + 45.0, retry_after_s=45)
    rig.standin.requests.clear()
    for _ in range(20):
        with pytest.raises(ProviderError, match="less often"):
            rig.compute.list_pods()
        rig.on(2)
    assert rig.asked() == ["GET /v2/pods"]
    rig.on(10)
    assert len(rig.compute.list_pods()) == 1
    rig.standin.control.set(throttle=1, retry_after_s=86_400)
    rig.on(5)
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    rig.on(LONGEST_HOLD_S)
    assert len(rig.compute.list_pods()) == 1, "nor does it wait for ever"


# -- where it landed, and when it is up ---------------------------------------------------------


def test_where_a_pod_landed_is_told(rig: Rig) -> None:
    rig.compute.create(request(rig, region="EU-RO-1"))
    rig.standin.control.set(lands_in="US-KS-2")
    rig.on(1)
    rig.compute.create(request(rig, generation=2, region="EU-RO-1"))
    assert [pod.region for pod in rig.compute.list_pods()] == ["US-KS-2", "EU-RO-1"]


def test_running_is_an_address_and_not_a_word(rig: Rig) -> None:
    rig.standin.control.set(says_running=True, provisioning_s=10, starting_s=5, ssh_after_s=10)
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    shown = rig.api.pod(pod_id)
    assert shown is not None
    assert shown.status == "RUNNING"
    for _ in range(4):
        rig.on(5)
        assert [pod.status for pod in rig.compute.list_pods()] == ["creating"]
        assert rig.compute.address_of(wanted.name) is None
    rig.on(6)
    assert [pod.status for pod in rig.compute.list_pods()] == ["running"]
    assert rig.compute.address_of(wanted.name) is not None


# -- what is sent -------------------------------------------------------------------------------


def test_no_key_of_the_account_is_in_what_a_pod_is_given(rig: Rig) -> None:
    """RunPod ends pods whose variables hold one; and whoever is in the pod would have it all."""
    import base64
    import json

    from trmcloud.providers.runpod import secrets

    key = rig.standin.api_key
    environ = {"RUNPOD_API_KEY": key, secrets.ENV_API: rig.standin.url, "OTHER": key}
    for wanted in (request(rig), request(rig, volume="v", region="EU-RO-1", check={"gpu": "L4"})):
        body = rig.compute.body(wanted)
        body["env"] |= secrets.pod_environment(environ)
        assert secrets.ENV_KEY not in body["env"]
        texts = [json.dumps(body)]
        for value in body["env"].values():
            try:
                texts.append(base64.b64decode(value, validate=True).decode("utf-8", "replace"))
            except ValueError:
                continue
        assert len(texts) > 4, "the packed ones were looked into"
        assert not [text for text in texts if key in text or key.removeprefix("rpa_") in text]
