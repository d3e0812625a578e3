"""HTTP requests without redirects, and retries with growing pauses."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any, TypeVar

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


# Doing again what may pass: a few times, each pause twice as long as the one before.

T = TypeVar("T")


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause after so many failures in a row, the first of them counted as 0."""
    return min(longest_s, first_s * 2.0 ** min(failures, 32))


def retry(
    act: Callable[[], T],
    is_final: Callable[[Exception], bool],
    *,
    tries: int,
    first_s: float,
    longest_s: float,
    sleep: Callable[[float], object],
) -> T:
    """Return the result of ``act``; its error is raised where it is final, or came ``tries``
    times."""
    for failures in range(tries - 1):
        try:
            return act()
        except Exception as error:
            if is_final(error):
                raise
        sleep(pause_s(failures, first_s, longest_s))
    return act()
