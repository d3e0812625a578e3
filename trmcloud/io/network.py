"""Settings of the environment for proxies and certificates that a connection fails by; requests
of the user's machine, whose failure names them."""

from __future__ import annotations

import errno
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple

from trmcloud.io import requests

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
_KNOWN = ("http", "https")


class WrongSetting(NamedTuple):
    """``name`` is the variable; ``what`` has no part of its value that could be a password."""

    name: str
    what: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.what}: unset it, or correct it"


def wrong_setting(
    certificates: Sequence[str] = ("SSL_CERT_FILE",), environ: Mapping[str, str] | None = None
) -> WrongSetting | None:
    """Return the first variable that names a proxy of a kind which is not supported, or a file of
    certificates that is not there; None where there is none.

    Args:
        certificates: the variables by which the client that failed finds certificates.
    """
    environ = os.environ if environ is None else environ
    for name in _PROXIES:
        scheme, found, _ = environ.get(name, "").partition("://")
        if found and scheme.lower() not in _KNOWN:
            kind = "SOCKS" if scheme.lower().startswith("socks") else f"{scheme[:12]!r}"
            return WrongSetting(
                name, f"{name} names a {kind} proxy, which is not supported",
                f"unset {name}, or export HTTPS_PROXY=http://HOST:PORT",
            )  # fmt: skip
    for name in certificates:
        path = environ.get(name, "")
        if path and not (os.path.isfile(path) or (os.path.isdir(path) and name != "SSL_CERT_FILE")):
            return WrongSetting(
                name, f"{name} names a file that does not exist",
                f"unset {name}, or name the file of your CA's certificates",
            )  # fmt: skip
    return None


def send(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """The same as ``requests.send``; where a setting is wrong, the error names it.

    Raises:
        urllib.error.HTTPError: an answer other than 2xx.
        OSError: there was none.
    """
    try:
        return requests.send(request, timeout_s)
    except urllib.error.HTTPError:
        raise
    except (OSError, HTTPException):
        if (wrong := wrong_setting()) is not None:
            raise urllib.error.URLError(OSError(errno.EINVAL, str(wrong))) from None
        raise
