"""The pages of the server: a question is checked, drawn by the engine, and answered."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import AsyncGenerator, AsyncIterator, Mapping

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from model.data.tokenizers import TextTokenizer
from model.families.protocol import Sampling
from model.serving.engine import EndOfText, Engine, GenerationRequest, QueueFull
from model.serving.messages import (
    MAX_BODY_BYTES,
    Answer,
    Failure,
    Health,
    Info,
    Piece,
    Question,
    is_json,
    line_of,
    openapi,
)
from model.serving.page import page_of
from model.serving.text import TextStream
from trmcloud.core.errors import DataError
from trmcloud.core.text import one_line
from trmcloud.io.web_guard import BodyRefused, mark_trusted, read_body

RETRY_AFTER_S = 1
BODY_WITHIN_S = 30.0
_LONG = 4096
"""Characters of a prompt that take more than about a millisecond to become ids."""
_FAILED = "a step of the model failed; what serves it was told why"


class RefusedRequest(Exception):
    """A request that is answered with ``status`` and one line."""

    def __init__(self, status: int, what: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(what)
        self.status, self.what, self.headers = status, what, headers


@dataclass(frozen=True)
class ServedModel:
    """The pages' access to the checkpoint and its engine."""

    engine: Engine
    tokenizer: TextTokenizer
    info: Info
    version: str
    most_given: int
    """Ids that a text may begin with, the special one among them."""


def application(served: ServedModel) -> Starlette:
    """The ASGI application; it starts the engine, and closes it in the end."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        served.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(served.engine.close)

    document = openapi(served.version)

    async def generate(request: Request) -> Response:
        return await _generate(served, request)

    async def health(request: Request) -> Response:
        drawn, waiting = served.engine.counts
        alive = served.engine.alive
        told = Health(status="ok" if alive else "failed", drawn=drawn, waiting=waiting)
        return _json(told, 200 if alive else 503)

    async def info(request: Request) -> Response:
        return _json(served.info)

    async def described(request: Request) -> Response:
        return JSONResponse(document)

    async def page(request: Request) -> Response:
        return HTMLResponse(page_of(document))

    return Starlette(
        routes=[
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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # So that no page of another site can make a browser ask.
        raise RefusedRequest(415, "say that it is JSON: Content-Type: application/json")
    question = _question(await _body(request))
    if len(question.prompt) > _LONG:  # so that nobody else waits for it
        start = await asyncio.to_thread(_start, served, question.prompt)
    else:
        start = _start(served, question.prompt)
    drawn = ActiveRequest(served, question, start)
    mark_trusted(request.scope)  # it has one of the places that there are
    if question.stream:
        return StreamingResponse(
            drawn.events(),
            headers=_UNBUFFERED,
            media_type="text/event-stream",
            background=BackgroundTask(drawn.left),
        )
    answer = await _unless_gone(request, drawn)
    return Response() if answer is None else _json(answer)


_UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def _body(request: Request) -> bytes:
    try:
        return await read_body(request.stream(), MAX_BODY_BYTES, BODY_WITHIN_S)
    except BodyRefused as error:
        raise RefusedRequest(error.status, error.what, _CLOSE) from None
    except ClientDisconnect:
        raise RefusedRequest(400, "the client left before its body was here") from None


_CLOSE = {"Connection": "close"}


def _question(body: bytes) -> Question:
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        raise RefusedRequest(422 if is_json(error) else 400, line_of(error)) from None


def _start(served: ServedModel, prompt: str) -> list[int]:
    """The prompt's ids behind the one that begins a text."""
    try:
        [ids] = served.tokenizer.encode([prompt], ["prompt"])
    except DataError as error:
        raise RefusedRequest(422, f"prompt: {error.what}") from None
    room = served.most_given - 1
    if len(ids) > room:
        raise RefusedRequest(422, f"prompt: {len(ids):,} tokens; the model has room for {room:,}")
    return [served.tokenizer.bos, *(int(each) for each in ids)]


class ActiveRequest:
    """A question in the engine's hands, from its being taken in to its last piece."""

    def __init__(self, served: ServedModel, question: Question, start: list[int]) -> None:
        """
        Raises:
            Refused: as many requests wait as may.
        """
        self._served, self._question = served, question
        self._start = start
        self._came: asyncio.Queue[int | EndOfText] = asyncio.Queue()
        self.tokens = 0
        self.why = ""
        self._ticket = self._submit()

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The text, as it becomes certain. The engine is let go whichever way this ends."""
        text = TextStream(self._served.tokenizer, self._served.tokenizer.bos)
        try:
            while not isinstance(came := await self._came.get(), EndOfText):
                self.tokens += 1
                piece = text.add(came)
                if self._question.stop_on_newline and "\n" in piece:
                    self.why = "newline"
                    yield piece.partition("\n")[0]
                    return
                if piece:
                    yield piece
            if rest := text.end():
                yield rest
            self.why = came.why
        finally:
            self.leave()

    async def left(self) -> None:
        """As ``leave``, where no piece may have been asked for."""
        self.leave()

    def leave(self) -> None:
        """Gives the request's place to others."""
        self._served.engine.give_up(self._ticket)

    def answer(self, text: str) -> Answer:
        """
        Raises:
            Refused: a step failed.
        """
        if self.why == "failed":
            raise RefusedRequest(500, _FAILED)
        return Answer(
            text=text,
            prompt_tokens=len(self._start) - 1,
            tokens=self.tokens,
            finish_reason=self.why,  # type: ignore[arg-type]
        )

    async def whole(self) -> Answer:
        return self.answer("".join([piece async for piece in self.pieces()]))

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events: pieces, and an answer without text or what went wrong."""
        async with contextlib.aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                yield _event(Piece(text=piece))
        try:
            yield _event(self.answer(""))
        except RefusedRequest as error:
            yield _event(Failure(error=error.what))

    def _submit(self) -> GenerationRequest:
        loop = asyncio.get_running_loop()

        def deliver(came: int | EndOfText) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(self._came.put_nowait, came)

        asked = self._question
        sampling = Sampling(
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=1.0,
            seed=asked.seed,
            known_ids=self._served.tokenizer.vocab_size,
            stop=self._served.tokenizer.bos,
        )
        try:
            return self._served.engine.submit(self._start, sampling, deliver)
        except QueueFull:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise RefusedRequest(503, "as many requests wait as may: try again", headers) from None


async def _unless_gone(request: Request, drawn: ActiveRequest) -> Answer | None:
    """The answer; None where the client left before it was there."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, left = asyncio.ensure_future(drawn.whole()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        drawn.leave()
        for task in (answer, left):
            task.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)


def _event(content: BaseModel) -> str:
    return f"data: {content.model_dump_json()}\n\n"


def _json(
    content: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(content.model_dump(), status, headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequest)
    return _json(Failure(error=error.what), error.status, error.headers)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail.lower()}: {request.method} {one_line(request.url.path)}; see /docs"
    return _json(Failure(error=text), error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: it ends this request alone."""
    return _json(Failure(error=f"unexpected {type(error).__name__}"), 500)
