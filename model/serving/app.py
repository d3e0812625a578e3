"""The server's routes: what each request is parsed into, drawn by the engine, and answered with."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import AsyncIterator, Callable, Mapping

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from model.serving.active import ActiveRequest, Choice, RefusedRequest, TextSource
from model.serving.bodies import UNBUFFERED, json_body, unless_gone
from model.serving.chat_page import CHAT_HEADERS, CHAT_PAGE
from model.serving.messages import Answer, Failure, Health, Info, Piece, Question, is_json, line_of
from model.serving.openai import Fresh, OpenAIRoutes, openai_failure
from model.serving.openapi import openapi
from model.serving.page import page_of
from trmcloud.core.text import one_line
from trmcloud.io.web_guard import mark_trusted

OPENAI = "/v1/"
"""Paths below it answer, and refuse, as OpenAI's published API does."""


@dataclass(frozen=True)
class ServedModel:
    """The routes' access to a checkpoint and its engine. ``warn`` is called with a line for
    standard error."""

    source: TextSource
    info: Info
    version: str
    fresh: Fresh
    warn: Callable[[str], None]


def application(served: ServedModel) -> Starlette:
    """The ASGI application; it starts the engine, and closes it in the end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.source.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(served.source.engine.close)

    document = openapi(served.version)

    async def generate(request: Request) -> Response:
        return await _generate(served, request)

    async def health(request: Request) -> Response:
        drawn, waiting = served.source.engine.counts
        alive = served.source.engine.alive
        told = Health(status="ok" if alive else "failed", drawn=drawn, waiting=waiting)
        return _json(told, 200 if alive else 503)

    async def info(request: Request) -> Response:
        return _json(served.info)

    async def described(request: Request) -> Response:
        return JSONResponse(document)

    async def page(request: Request) -> Response:
        return HTMLResponse(page_of(document))

    async def chat(request: Request) -> Response:
        return HTMLResponse(CHAT_PAGE, headers=CHAT_HEADERS)

    routes = OpenAIRoutes(served.source, served.info, served.fresh, served.warn)
    return Starlette(
        routes=[
            Route("/", chat),
            *routes.routes(),
            Route("/generate", generate, methods=["POST"]),
            Route("/health", health),
            Route("/info", info),
            Route("/openapi.json", described),
            Route("/docs", page),
        ],
        lifespan=lifespan,
        exception_handlers={
            RefusedRequest: _refused,
            HTTPException: _not_here,
            Exception: _unexpected,
        },
    )


async def _generate(served: ServedModel, request: Request) -> Response:
    question = _question(await json_body(request))
    start = await served.source.start_of(question.prompt)
    choice = Choice(
        question.max_tokens,
        question.temperature,
        question.top_k,
        1.0,
        question.seed,
        ("\n",) if question.stop_on_newline else (),
        "newline",
    )
    drawn = ActiveRequest(served.source, start, choice)
    mark_trusted(request.scope)  # it has one of the places that there are

    async def left() -> None:
        drawn.leave()  # the stream may have been closed before its first piece was read

    if question.stream:
        return StreamingResponse(
            _events(drawn),
            headers=UNBUFFERED,
            media_type="text/event-stream",
            background=BackgroundTask(left),
        )
    text = await unless_gone(request, drawn.whole(), drawn.leave)
    return Response() if text is None else _json(_answer(drawn, text))


def _question(body: bytes) -> Question:
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        raise RefusedRequest(422 if is_json(error) else 400, line_of(error)) from None


def _answer(drawn: ActiveRequest, text: str) -> Answer:
    return Answer(
        text=text,
        prompt_tokens=drawn.prompt_tokens,
        tokens=drawn.tokens,
        finish_reason=drawn.why,  # type: ignore[arg-type]
    )


async def _events(drawn: ActiveRequest) -> AsyncIterator[str]:
    """Server-sent events: pieces, and an answer without text or what went wrong."""
    try:
        async with contextlib.aclosing(drawn.pieces()) as pieces:
            async for piece in pieces:
                yield _event(Piece(text=piece))
        yield _event(_answer(drawn, ""))
    except RefusedRequest as error:
        yield _event(Failure(error=error.what))


def _event(content: BaseModel) -> str:
    return f"data: {content.model_dump_json()}\n\n"


def _json(
    content: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(content.model_dump(), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequest)
    return _failure(request, error.status, error.what, error.headers, error.param, error.code)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail.lower()}: {request.method} {one_line(request.url.path)}; see /docs"
    return _failure(request, error.status_code, text, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: it ends this request alone."""
    return _failure(request, 500, f"unexpected {type(error).__name__}")


def _failure(
    request: Request,
    status: int,
    what: str,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
    code: str | None = None,
) -> Response:
    if request.url.path.startswith(OPENAI):
        return openai_failure(status, what, param, code, headers)
    return _json(Failure(error=what), status, headers)
