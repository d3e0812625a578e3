"""Behind a company's proxy and CA all works as without them; settings that no client can use are
one line of error that names the variable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from tests.standins.proxy import Proxy, find_openssl, proxying

HOST = "rest.runpod.test"
SHORT = ("--steps", "60", "--budget", "0.30")
PLAN = ("plan", "--hardware", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast", *SHORT)


def launch_of(user: RentedUser) -> tuple[str, ...]:
    return (*LAUNCH, *SHORT, *user.data, *ACCEPT)


@pytest.fixture
def proxied(renter: RentedUser, tmp_path: Path) -> Iterator[tuple[RentedUser, Proxy]]:
    """A user whose RunPod has a name that only the proxy knows."""
    if find_openssl() is None:
        pytest.skip("there is no openssl on this machine to make the proxy's certificate")
    port = urlsplit(renter.standin.url).port
    assert port is not None
    with proxying(tmp_path / "company", HOST, port) as proxy:
        renter.environment |= {
            "TRMCLOUD_RUNPOD_API": f"https://{HOST}", "RUNPOD_API_BASE_URL": f"https://{HOST}",
            "HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(proxy.ca),
            "REQUESTS_CA_BUNDLE": str(proxy.ca),
        }  # fmt: skip
        yield renter, proxy


def test_doctor_plan_and_launch_go_through_a_proxy_with_its_own_ca(
    proxied: tuple[RentedUser, Proxy],
) -> None:
    user, proxy = proxied
    shown = user.run("doctor", code=(0, 1))
    assert "✔ runpod key" in shown, shown
    user.run(*PLAN, *user.data)
    launch = user.start(*launch_of(user))
    until(lambda: user.creates() == 1, what="a pod that was asked for through the proxy")
    user.stop()
    launch.communicate(timeout=400)
    assert HOST in proxy.hosts
    del user.environment["SSL_CERT_FILE"]
    assert "certificate" in user.fails(*launch_of(user), code=11).lower()
