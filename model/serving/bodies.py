"""Reading of a request's JSON, and answers that end with their client."""

from __future__ import annotations

import asyncio
from typing import Callable, Coroutine, Mapping, TypeVar

from starlette.requests import ClientDisconnect, Request

from model.serving.active import RefusedRequest
from model.serving.messages import MAX_BODY_BYTES
from trmcloud.io.web_guard import BodyRefused, read_body

BODY_WITHIN_S = 30.0
UNBUFFERED: Mapping[str, str] = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_CLOSE = {"Connection": "close"}

Answered = TypeVar("Answered")


async def json_body(request: Request) -> bytes:
    """
    Raises:
        RefusedRequest: it is not said to be JSON, too large, or did not come in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # So that no page of another site can make a browser ask.
        raise RefusedRequest(415, "set the header Content-Type: application/json")
    try:
        return await read_body(request.stream(), MAX_BODY_BYTES, BODY_WITHIN_S)
    except BodyRefused as error:
        raise RefusedRequest(error.status, error.what, _CLOSE) from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the client disconnected before its body arrived") from None


async def unless_gone(
    request: Request, making: Coroutine[None, None, Answered], leave: Callable[[], None]
) -> Answered | None:
    """The answer; None where the client left before it. In the end ``leave`` is called."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, left = asyncio.ensure_future(making), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        leave()
        for task in (answer, left):
            task.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)
