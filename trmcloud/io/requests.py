"""HTTP requests without redirects, and growing pauses between tries."""

from __future__ import annotations

import urllib.request
from http.client import HTTPResponse
from typing import Any

# One HTTP request by the standard library that goes where it was sent and nowhere else: a
# redirect would carry the key in it to wherever it points. An answer of 3xx is an ``HTTPError``
# like 4xx.


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def send(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """
    Raises:
        urllib.error.HTTPError: an answer other than 2xx.
        OSError: there was none.
    """
    answer: HTTPResponse = urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s)
    return answer


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause after so many failures in a row, the first of them counted as 0."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))
