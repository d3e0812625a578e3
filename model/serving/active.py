"""A request in the engine, from its submission to the last piece of its text."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import AsyncGenerator, Mapping, Sequence

from model.data.chat import ChatTokens, Messages, render_for_completion
from model.data.tokenizers import TextTokenizer
from model.families.protocol import Sampling
from model.serving.engine import EndOfText, Engine, GenerationRequest, QueueFull
from model.serving.text import StopStrings, TextStream
from trmcloud.core.errors import DataError

RETRY_AFTER_S = 1
TOO_LONG = "context_length_exceeded"
_LONG = 4096
"""Characters of a prompt that take more than about a millisecond to become ids."""
_FAILED = "a step of the model failed; see the server's output"


class RefusedRequest(Exception):
    """A request that is answered with ``status`` and one line.

    ``param`` and ``code`` are for the error objects of OpenAI's endpoints.
    """

    def __init__(
        self,
        status: int,
        what: str,
        headers: Mapping[str, str] | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what)
        self.status, self.what, self.headers = status, what, headers
        self.param, self.code = param, code


@dataclass(frozen=True)
class TextSource:
    """The model's engine and what turns text into its ids. ``most_given``, ``least_given``: ids
    that a text may and must begin with, the special one among them. ``chat``: the special ids of
    conversations, if the model was trained on them."""

    engine: Engine
    tokenizer: TextTokenizer
    most_given: int
    chat: ChatTokens | None = None
    least_given: int = 1

    async def start_of(self, prompt: str, param: str = "prompt") -> list[int]:
        """Return the prompt's ids behind the one that begins a text.

        Raises:
            RefusedRequest: a character that the model lacks, or more than it has room for.
        """
        if len(prompt) > _LONG:  # so that other requests do not wait for it
            return await asyncio.to_thread(self._start_of, prompt, param)
        return self._start_of(prompt, param)

    async def start_of_answer(self, messages: Messages) -> list[int]:
        """Return the ids of a conversation, after which the assistant's next message follows.

        Raises:
            RefusedRequest: the messages do not make a conversation, or the model has no room for
                it.
        """
        return await asyncio.to_thread(self._start_of_answer, messages)

    def _start_of_answer(self, messages: Messages) -> list[int]:
        try:
            ids = render_for_completion(self.tokenizer, messages)
        except DataError as error:
            raise RefusedRequest(400, f"messages: {error.what}", param="messages") from None
        if len(ids) > self.most_given:
            what = (
                f"messages: {len(ids):,} tokens with those of the template, but the model takes at "
                f"most {self.most_given:,}"
            )
            raise RefusedRequest(422, what, param="messages", code=TOO_LONG)
        return ids

    def _start_of(self, prompt: str, param: str) -> list[int]:
        try:
            [ids] = self.tokenizer.encode([prompt], [param])
        except DataError as error:
            raise RefusedRequest(422, f"{param}: {error.what}", param=param) from None
        room = self.most_given - 1
        if len(ids) > room:
            what = f"{param}: {len(ids):,} tokens, but the model takes at most {room:,}"
            raise RefusedRequest(422, what, param=param, code=TOO_LONG)
        if len(ids) < self.least_given - 1:
            what = f"{param}: {len(ids):,} tokens, but the model needs {self.least_given - 1:,}"
            raise RefusedRequest(422, what, param=param)
        return [self.tokenizer.bos, *(int(each) for each in ids)]


@dataclass(frozen=True)
class Choice:
    """How a text is drawn: the sampler's settings, and strings that end it."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: Sequence[str] = ()
    why_stopped: str = "stop"
    """The reason given where one of ``stop`` ended the text."""
    is_answer: bool = False
    """It is the assistant's message in a conversation, and ends as one."""


class ActiveRequest:
    """One text. ``why`` and ``tokens`` are final once its pieces have ended."""

    def __init__(self, source: TextSource, start: Sequence[int], choice: Choice) -> None:
        """
        Raises:
            RefusedRequest: the queue is full.
        """
        self._source, self._choice, self._start = source, choice, start
        self._came: asyncio.Queue[int | EndOfText] = asyncio.Queue()
        self.prompt_tokens = len(start) - 1
        self.tokens = 0
        self.why = ""
        self._ticket = self._submit()

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The text, as it becomes certain. However this ends, the request then leaves the engine.

        Raises:
            RefusedRequest: a step failed.
        """
        tokenizer = self._source.tokenizer
        parted = None if self._choice.is_answer else tokenizer.bos
        text, ends = TextStream(tokenizer, parted), StopStrings(self._choice.stop)
        try:
            while not isinstance(came := await self._came.get(), EndOfText):
                self.tokens += 1
                if self._choice.is_answer and came == tokenizer.bos:
                    came = EndOfText("stop")  # another conversation begins
                    break
                piece = ends.add(text.add(came))
                if piece:
                    yield piece
                if ends.found:
                    self.why = self._choice.why_stopped
                    return
            rest = ends.add(text.end())
            if ends.found:
                came = EndOfText(self._choice.why_stopped)
            else:
                rest += ends.end()
            if rest:
                yield rest
            self.why = came.why
            if self.why == "failed":
                raise RefusedRequest(500, _FAILED)
        finally:
            self.leave()

    async def whole(self) -> str:
        """
        Raises:
            RefusedRequest: a step failed.
        """
        return "".join([piece async for piece in self.pieces()])

    def leave(self) -> None:
        """Give the request's place to others."""
        self._source.engine.give_up(self._ticket)

    def _submit(self) -> GenerationRequest:
        loop = asyncio.get_running_loop()

        def deliver(came: int | EndOfText) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no reader is left
                loop.call_soon_threadsafe(self._came.put_nowait, came)

        tokenizer, choice, chat = self._source.tokenizer, self._choice, self._source.chat
        sampling = Sampling(
            max_tokens=choice.max_tokens,
            temperature=choice.temperature,
            top_k=choice.top_k,
            top_p=choice.top_p,
            seed=choice.seed,
            known_ids=tokenizer.vocab_size,
            stop=chat.assistant_end if choice.is_answer and chat else tokenizer.bos,
        )
        try:
            return self._source.engine.submit(self._start, sampling, deliver)
        except QueueFull:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise RefusedRequest(503, "the queue is full: try again later", headers) from None


def submit_all(
    source: TextSource, wanted: Sequence[tuple[Sequence[int], Choice]]
) -> list[ActiveRequest]:
    """Submit all of them, or none.

    Raises:
        RefusedRequest: the queue has no room for all.
    """
    made: list[ActiveRequest] = []
    try:
        for start, choice in wanted:
            made.append(ActiveRequest(source, start, choice))
    except RefusedRequest:
        for each in made:
            each.leave()
        raise
    return made
