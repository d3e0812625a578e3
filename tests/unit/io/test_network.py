"""Proxies and certificates that no client can use: the variable is named, never its value."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.present import present
from tests.standins.loopback import free_port
from trmcloud.io.network import send, wrong_setting


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"ALL_PROXY": "socks5://u:hidden@h"}, "ALL_PROXY names a SOCKS proxy"),
        ({"https_proxy": "SOCKS5H://h"}, "https_proxy names a SOCKS proxy"),
        ({"HTTP_PROXY": "ftp://h"}, "HTTP_PROXY names a 'ftp' proxy"),
        ({"SSL_CERT_FILE": "/no/such"}, "SSL_CERT_FILE names a file that does not exist"),
        ({"SSL_CERT_FILE": "/"}, "SSL_CERT_FILE names a file that does not exist"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(environ: dict[str, str], what: str) -> None:
    found = present(wrong_setting(environ=environ))
    assert found.what.startswith(what)
    assert found.next_step.startswith(f"unset {found.name}, or ")
    assert "hidden" not in str(found)


def test_usual_settings_are_right(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("certificates")
    for environ in (
        {}, {"HTTPS_PROXY": "http://u:p@proxy:3128"}, {"HTTPS_PROXY": "proxy:3128"},
        {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "HTTPS_PROXY": "https://proxy"},
        {"REQUESTS_CA_BUNDLE": "/no/such"}, {"SSL_CERT_FILE": ""},
    ):  # fmt: skip
        assert wrong_setting(environ=environ) is None
    bundles = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
    assert wrong_setting(bundles, {"REQUESTS_CA_BUNDLE": str(tmp_path)}) is None
    assert present(wrong_setting(bundles, {"AWS_CA_BUNDLE": "/no/such"})).name == "AWS_CA_BUNDLE"


def test_a_request_that_fails_names_it_and_one_that_does_not_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = urllib.request.Request(f"https://127.0.0.1:{free_port()}/")
    with pytest.raises(urllib.error.URLError, match="refused"):
        send(request, 5.0)
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/ca.pem")
    with pytest.raises(urllib.error.URLError, match="SSL_CERT_FILE names a file that does not"):
        send(request, 5.0)
