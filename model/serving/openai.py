"""OpenAI's endpoints: /v1/models, /v1/completions and /v1/chat/completions."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from model.serving.active import ActiveRequest, Choice, RefusedRequest, TextSource, submit_all
from model.serving.bodies import UNBUFFERED, json_body, unless_gone
from model.serving.messages import Info, is_json, line_of
from model.serving.openai_messages import (
    CHAT_TOKENS,
    COMPLETION_TOKENS,
    MOST_CHOICES,
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatRequest,
    ChunkChoice,
    CompletionAnswer,
    CompletionChoice,
    CompletionRequest,
    Drawing,
    FinishReason,
    Message,
    ModelList,
    ServedModelEntry,
    Usage,
    error_object,
    unsupported,
    wrong_stop,
)
from trmcloud.io.web_guard import mark_trusted

NO_TEMPLATE = (
    "this model has no chat template: messages are joined by line feeds, without their roles"
)
WARNING_HEADER = "Trmcloud-Warning"
_SEEDS = 2**63
_DONE = "data: [DONE]\n\n"
_OPENING = {"role": "assistant", "content": ""}

Request_ = TypeVar("Request_", bound=Drawing)


@dataclass(frozen=True)
class Fresh:
    """The parts that differ from answer to answer: ``now`` in seconds since 1970, and a random
    ``number`` of 63 bits."""

    now: Callable[[], float]
    number: Callable[[], int]


def as_conversation(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return the messages as a chat template takes them: what the system and the developer say
    first is one message of the system."""
    given = [
        {"role": "system" if each.role == "developer" else each.role, "content": each.text}
        for each in messages
    ]
    first = next((at for at, each in enumerate(given) if each["role"] != "system"), len(given))
    told = "\n\n".join(each["content"] for each in given[:first] if each["content"])
    return [*([{"role": "system", "content": told}] if told else []), *given[first:]]


def joined(messages: Sequence[Message]) -> str:
    """Return the prompt of a conversation for a model without a chat template: its messages' texts
    in their order, a line feed between each two, without roles. The model continues the last."""
    return "\n".join(message.text for message in messages)


class OpenAIRoutes:
    """The three endpoints over one model. ``warn`` is called with a line, once, when messages are
    first joined without a template."""

    def __init__(
        self, source: TextSource, info: Info, fresh: Fresh, warn: Callable[[str], None]
    ) -> None:
        self._source, self._info, self._fresh, self._warn = source, info, fresh, warn
        self._warned = False

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/v1/completions", self._completions, methods=["POST"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]

    async def _models(self, request: Request) -> Response:
        return _json(ModelList(data=[self._entry()]))

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return _json(self._entry())

    async def _completions(self, request: Request) -> Response:
        asked = await _parsed(request, CompletionRequest)
        self._check(asked)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        if not prompts:
            raise RefusedRequest(400, "prompt: the list is empty", param="prompt")
        starts = [await self._source.start_of(prompt) for prompt in prompts]
        answer = _Answer(self, asked, starts, asked.max_tokens or COMPLETION_TOKENS, "cmpl")
        echoed = prompts if asked.echo else [""] * len(prompts)
        return await _CompletionWriter(answer, echoed).response(request)

    async def _chat(self, request: Request) -> Response:
        asked = await _parsed(request, ChatRequest)
        self._check(asked)
        limit, older = asked.max_completion_tokens, asked.max_tokens
        if limit is not None and older is not None and limit != older:
            raise RefusedRequest(
                400,
                "max_tokens and max_completion_tokens differ: give only one",
                param="max_completion_tokens",
            )
        most = limit or older or CHAT_TOKENS
        if self._source.chat is not None:
            start = await self._source.start_of_answer(as_conversation(asked.messages))
            answer = _Answer(self, asked, [start], most, "chatcmpl", is_answer=True)
            return await _ChatWriter(answer).response(request)
        start = await self._source.start_of(joined(asked.messages), "messages")
        answer = _Answer(self, asked, [start], most, "chatcmpl")
        if not self._warned:
            self._warned = True
            self._warn(NO_TEMPLATE)
        return await _ChatWriter(answer, {WARNING_HEADER: NO_TEMPLATE}).response(request)

    def _entry(self) -> ServedModelEntry:
        info = self._info
        return ServedModelEntry(
            id=info.model, created=info.created, run_id=info.run_id, phase=info.phase,
            step=info.step, sha256=info.sha256,
        )  # fmt: skip

    def _check(self, asked: Drawing) -> None:
        """
        Raises:
            RefusedRequest: another model, or a parameter that has no effect here.
        """
        self._check_model(asked.model)
        if name := unsupported(asked):
            raise RefusedRequest(
                400,
                f"{name} is not supported by this server: leave it out",
                param=name,
                code="unsupported_parameter",
            )
        if wrong := wrong_stop(asked.stops):
            raise RefusedRequest(400, wrong, param="stop")
        if asked.stream_options is not None and not asked.stream:
            raise RefusedRequest(400, "stream_options needs stream: true", param="stream_options")

    def _check_model(self, name: str) -> None:
        if name not in (self._info.model, self._info.run_id):
            raise RefusedRequest(
                404,
                f"there is no model {name[:80]!r} on this server: it has {self._info.model!r}",
                param="model",
                code="model_not_found",
            )


class _Answer:
    """The texts of one request in the engine, and the fields that all its objects share."""

    def __init__(
        self,
        routes: OpenAIRoutes,
        asked: Drawing,
        starts: Sequence[Sequence[int]],
        max_tokens: int,
        prefix: str,
        *,
        is_answer: bool = False,
    ) -> None:
        """
        Raises:
            RefusedRequest: more texts than a request may ask for, or the queue has no room.
        """
        fresh = routes._fresh
        count = asked.n or 1
        if len(starts) * count > MOST_CHOICES:
            raise RefusedRequest(
                400, f"n: a request may have at most {MOST_CHOICES} choices", param="n"
            )
        seed = fresh.number() if asked.seed is None else asked.seed
        texts = [
            (start, Choice(
                max_tokens,
                1.0 if asked.temperature is None else asked.temperature,
                asked.top_k or 0,
                1.0 if asked.top_p is None else asked.top_p,
                (seed + number) % _SEEDS,
                asked.stops,
                is_answer=is_answer,
            ))
            for start in starts
            for number in range(count)
        ]  # fmt: skip
        self.texts = submit_all(routes._source, texts)
        self.prompt_tokens = sum(len(start) - 1 for start in starts)
        self.count = count
        self.stream = bool(asked.stream)
        options = asked.stream_options
        self.tells_usage = bool(options and options.include_usage)
        self.head: dict[str, Any] = {
            "id": f"{prefix}-{fresh.number():016x}",
            "created": int(fresh.now()),
            "model": routes._info.model,
            "system_fingerprint": f"fp_{routes._info.sha256[:12]}",
        }

    def usage(self) -> Usage:
        drawn = sum(text.tokens for text in self.texts)
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=drawn,
            total_tokens=self.prompt_tokens + drawn,
        )

    def reason(self, number: int) -> FinishReason:
        """Why a text ended."""
        return "length" if self.texts[number].why == "length" else "stop"

    def leave(self) -> None:
        for text in self.texts:
            text.leave()

    async def left(self) -> None:
        """As ``leave``: a stream may have been closed before its first piece was read."""
        self.leave()

    async def wholes(self) -> list[str]:
        """
        Raises:
            RefusedRequest: a step of one of them failed.
        """
        try:
            return list(await asyncio.gather(*(text.whole() for text in self.texts)))
        finally:
            self.leave()

    async def pieces(self) -> AsyncGenerator[tuple[int, str | None], None]:
        """(a text's number, its next piece) as they come; None after its last.

        Raises:
            RefusedRequest: a step of one of them failed.
        """
        came: asyncio.Queue[tuple[int, str | RefusedRequest | None]] = asyncio.Queue()

        async def read(number: int, text: ActiveRequest) -> None:
            try:
                async with contextlib.aclosing(text.pieces()) as pieces:
                    async for piece in pieces:
                        came.put_nowait((number, piece))
                came.put_nowait((number, None))
            except RefusedRequest as error:
                came.put_nowait((number, error))

        tasks = [asyncio.ensure_future(read(*each)) for each in enumerate(self.texts)]
        try:
            going = len(tasks)
            while going:
                number, piece = await came.get()
                if isinstance(piece, RefusedRequest):
                    raise piece
                going -= piece is None
                yield number, piece
        finally:
            self.leave()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Writer(ABC):
    """An answer as JSON or as a stream of events; subclasses give their objects."""

    def __init__(self, answer: _Answer, headers: Mapping[str, str] | None = None) -> None:
        self._answer, self._headers = answer, dict(headers or {})

    async def response(self, request: Request) -> Response:
        mark_trusted(request.scope)  # it has one of the places that there are
        answer = self._answer
        if answer.stream:
            return StreamingResponse(
                self._events(),
                headers={**UNBUFFERED, **self._headers},
                media_type="text/event-stream",
                background=BackgroundTask(answer.left),
            )
        texts = await unless_gone(request, answer.wholes(), answer.leave)
        if texts is None:
            return Response()
        return _json(self._whole(texts), headers=self._headers)

    async def _events(self) -> AsyncIterator[str]:
        answer = self._answer
        for event in self._first():
            yield self._event(event)
        try:
            async with contextlib.aclosing(answer.pieces()) as pieces:
                async for number, piece in pieces:
                    why = answer.reason(number) if piece is None else None
                    yield self._event(self._chunk(number, piece, why))
        except RefusedRequest as error:
            yield f"data: {error_object(error.status, error.what).model_dump_json()}\n\n"
            return
        if answer.tells_usage:
            yield self._event(self._usage_chunk())
        yield _DONE

    def _event(self, chunk: BaseModel) -> str:
        # Where usage is asked for, every event has the field, which is null before the last one.
        unwanted = None if self._answer.tells_usage else {"usage"}
        return f"data: {chunk.model_dump_json(exclude=unwanted)}\n\n"

    def _first(self) -> list[BaseModel]:
        """Events before any piece."""
        return []

    @abstractmethod
    def _whole(self, texts: Sequence[str]) -> BaseModel: ...

    @abstractmethod
    def _chunk(self, number: int, piece: str | None, why: FinishReason | None) -> BaseModel: ...

    @abstractmethod
    def _usage_chunk(self) -> BaseModel: ...


class _CompletionWriter(_Writer):
    def __init__(self, answer: _Answer, echoed: Sequence[str]) -> None:
        super().__init__(answer)
        self._echoed = echoed

    def _first(self) -> list[BaseModel]:
        texts = enumerate(self._answer.texts)
        return [self._chunk(at, self._echo(at), None) for at, _ in texts if self._echo(at)]

    def _whole(self, texts: Sequence[str]) -> BaseModel:
        answer = self._answer
        choices = [
            CompletionChoice(index=at, text=self._echo(at) + text, finish_reason=answer.reason(at))
            for at, text in enumerate(texts)
        ]
        return CompletionAnswer(**answer.head, choices=choices, usage=answer.usage())

    def _chunk(self, number: int, piece: str | None, why: FinishReason | None) -> BaseModel:
        choice = CompletionChoice(index=number, text=piece or "", finish_reason=why)
        return CompletionAnswer(**self._answer.head, choices=[choice])

    def _usage_chunk(self) -> BaseModel:
        return CompletionAnswer(**self._answer.head, choices=[], usage=self._answer.usage())

    def _echo(self, number: int) -> str:
        return self._echoed[number // self._answer.count]


class _ChatWriter(_Writer):
    def _first(self) -> list[BaseModel]:
        return [
            ChatChunk(**self._answer.head, choices=[ChunkChoice(index=at, delta=_OPENING)])
            for at, _ in enumerate(self._answer.texts)
        ]

    def _whole(self, texts: Sequence[str]) -> BaseModel:
        answer = self._answer
        choices = [
            ChatChoice(
                index=at,
                message=AnswerMessage(content=text),
                finish_reason=answer.reason(at),
            )
            for at, text in enumerate(texts)
        ]
        return ChatAnswer(**answer.head, choices=choices, usage=answer.usage())

    def _chunk(self, number: int, piece: str | None, why: FinishReason | None) -> BaseModel:
        delta = {} if piece is None else {"content": piece}
        choice = ChunkChoice(index=number, delta=delta, finish_reason=why)
        return ChatChunk(**self._answer.head, choices=[choice])

    def _usage_chunk(self) -> BaseModel:
        return ChatChunk(**self._answer.head, choices=[], usage=self._answer.usage())


async def _parsed(request: Request, kind: type[Request_]) -> Request_:
    """
    Raises:
        RefusedRequest: the body is no such request.
    """
    body = await json_body(request)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0])[:80] if first["loc"] else None
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            what, code = f"unknown parameter: {name}", "unknown_parameter"
        else:
            what, code = line_of(error), "" if is_json(error) else "invalid_json"
        raise RefusedRequest(400, what, param=name, code=code or None) from None


def openai_failure(
    status: int, what: str, param: str | None, code: str | None, headers: Mapping[str, str] | None
) -> Response:
    """A refusal below /v1/: what is out of limits there has OpenAI's status, 400."""
    shown = 400 if status == 422 else status
    return _json(error_object(shown, what, param, code), shown, headers)


def _json(
    content: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return JSONResponse(content.model_dump(), status, headers)
