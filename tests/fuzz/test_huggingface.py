"""Whatever the Hub answers: a job or hardware of checked types, or an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.mutate import variants
from tests.standins.huggingface.hub import Hub
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import ZERO, Usd
from trmcloud.providers.huggingface.api import ENDED, JobsApi, read_hardware, read_job
from trmcloud.providers.huggingface.compute import HuggingFaceCompute, _ran_s
from trmcloud.providers.huggingface.http import Http
from trmcloud.providers.huggingface.offers import offers_of

NOW = 1_790_000_000.0
VARIANTS = 3000


def _told() -> tuple[object, object]:
    hub = Hub(lambda: NOW)
    spec = {"command": ["x"], "dockerImage": "i", "flavor": "l4x1", "timeoutSeconds": 60,
            "labels": {"trmcloud": "pod", "name": "n"}, "ssh": {"enabled": True}}  # fmt: skip
    job = hub.start(spec)
    job.stage, job.started_at = "RUNNING", NOW
    return hub.told(job), list(hub.hardware.values())[3:7]


JOB, HARDWARE = _told()
COMPUTE = HuggingFaceCompute(
    JobsApi(Http("http://127.0.0.1:9", ""), "n"),
    lambda name: pytest.fail("no key is asked for"),
    lambda: b"",
    token="",
    now=lambda: NOW,
)
COMPUTE._hardware = (NOW, ())


def _answers(told: object) -> Iterator[Any]:
    """Variants that are JSON: ``Http`` refuses the others before they are read here."""
    for text in variants(json.dumps(told).encode(), VARIANTS):
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(text)


def test_a_job_is_read_or_refused() -> None:
    seen = 0
    for answer in _answers(JOB):
        try:
            job = read_job(answer, "here")
        except TrmcloudError:
            continue
        seen += 1
        assert job.ended == (job.stage in ENDED)
        assert job.timeout_s is None or isinstance(job.timeout_s, int)
        assert _ran_s(job, NOW) < 1e12
        pod = COMPUTE._pod_seen(job)
        assert isinstance(pod.status, PodStatus)
        assert pod.rate >= ZERO
        assert 0 <= pod.port < 65536
        assert job.ssh is None or not job.ssh.user.startswith("-")
    assert seen > VARIANTS / 10


def test_hardware_is_read_or_refused() -> None:
    seen = 0
    for answer in _answers(HARDWARE):
        try:
            listed = read_hardware(answer, "here")
        except TrmcloudError:
            continue
        seen += 1
        for offer in offers_of(listed, NOW):
            assert ZERO < offer.rate < Usd(10**7)
            assert 0 < offer.gpus < 10**7
    assert seen > VARIANTS / 10
