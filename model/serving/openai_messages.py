"""Requests and answers of OpenAI's endpoints, as far as a language model by itself can serve them.

Field names, objects and errors are those of OpenAI's published API. A parameter that would change
the answer and has no effect here is refused, never ignored.
"""

from __future__ import annotations

from typing import Any, Literal, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_TOKENS = 2048
COMPLETION_TOKENS = 16
"""Drawn for a completion whose request names no limit: OpenAI's default."""
CHAT_TOKENS = 256
"""The same for a chat answer. OpenAI has no limit there, but a base model seldom ends a text."""
MOST_CHOICES = 16
MOST_STOPS = 4
_STOP_CHARACTERS = 200
_SEEDS = 2**63
_STRICT = ConfigDict(extra="forbid", strict=True)


def _ignored() -> Any:
    return Field(None, description="Accepted; it has no effect here.")


def _refused() -> Any:
    return Field(None, description="Rejected, unless its value is the default.")


class StreamOptions(BaseModel):
    """Settings of a stream."""

    model_config = _STRICT

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Drawing(BaseModel):
    """Parameters that completions and chat completions share."""

    model_config = _STRICT

    model: str = Field(description="The id that /v1/models lists, or the run's id.")
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(
        None, ge=0, description="Not in OpenAI's API: the K most likely tokens; 0: all."
    )
    seed: int | None = Field(
        None, ge=-_SEEDS, lt=_SEEDS, description="Choice i of a request uses seed + i."
    )
    stop: str | list[str] | None = Field(None, description="At most 4 strings.")
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: Any = _ignored()
    metadata: Any = _ignored()
    safety_identifier: Any = _ignored()
    prompt_cache_key: Any = _ignored()
    prompt_cache_retention: Any = _ignored()
    prompt_cache_options: Any = _ignored()
    service_tier: Any = _ignored()

    logprobs: Any = _refused()
    frequency_penalty: Any = _refused()
    presence_penalty: Any = _refused()
    logit_bias: Any = _refused()

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(Drawing):
    """Text to continue."""

    prompt: str | list[str] = Field(description="One text or several; token ids are not accepted.")
    echo: bool | None = Field(None, description="Repeat the prompt before each text.")
    best_of: Any = _refused()
    suffix: Any = _refused()


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = _STRICT

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = _STRICT

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, message: Any) -> Any:
        """An answer that is sent back has fields for what it is not: tools, refusals, audio."""
        if not isinstance(message, dict):
            return message
        return {name: value for name, value in message.items() if value not in (None, [])}

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, content: Any) -> Any:
        if isinstance(content, list) and not all(
            isinstance(part, dict) and part.get("type") == "text" for part in content
        ):
            raise ValueError("this model accepts only parts of type text")
        return content

    @property
    def text(self) -> str:
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(Drawing):
    """A conversation to continue."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    top_logprobs: Any = _refused()
    tools: Any = _refused()
    tool_choice: Any = _refused()
    parallel_tool_calls: Any = _refused()
    functions: Any = _refused()
    function_call: Any = _refused()
    response_format: Any = _refused()
    modalities: Any = _refused()
    audio: Any = _refused()
    prediction: Any = _refused()
    moderation: Any = _refused()
    web_search_options: Any = _refused()
    reasoning_effort: Any = _refused()
    verbosity: Any = _refused()
    store: Any = _refused()


_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "store": (False,),
}


def unsupported(request: Drawing) -> str:
    """Return the name of a parameter that asks for what this server does not do; or nothing."""
    names: dict[str, tuple[Any, ...]] = {**_NEUTRAL, "logprobs": ()}
    if isinstance(request, ChatRequest):
        names["logprobs"] = (False,)
    for name, neutral in names.items():
        value = getattr(request, name, None)
        if value is not None and not any(
            value == each and (isinstance(value, bool) == isinstance(each, bool))
            for each in neutral
        ):
            return name
    return ""


def wrong_stop(stops: Sequence[str]) -> str:
    """Return what is wrong with the strings that are to end a text; or nothing."""
    if len(stops) > MOST_STOPS:
        return f"stop: at most {MOST_STOPS} strings"
    if not all(stops):
        return "stop: a string must not be empty"
    if any(len(each) > _STOP_CHARACTERS for each in stops):
        return f"stop: at most {_STOP_CHARACTERS} characters each"
    return ""


FinishReason = Literal["stop", "length"]


class Usage(BaseModel):
    """Counted tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChoice(BaseModel):
    """One continued text."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason | None


class CompletionAnswer(BaseModel):
    """The answer to a completion request, and each event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AnswerMessage(BaseModel):
    """The model's turn."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer to a conversation."""

    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatAnswer(BaseModel):
    """The answer to a chat request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChunkChoice(BaseModel):
    """A part of one answer in an event of a stream."""

    index: int
    delta: dict[str, str] = Field(
        description="`role` in the first event, `content` in the others, nothing in the last."
    )
    logprobs: None = None
    finish_reason: FinishReason | None = None


class ChatChunk(BaseModel):
    """An event of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ServedModelEntry(BaseModel):
    """A model that may be asked. The fields after ``owned_by`` are trmcloud's own."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trmcloud"] = "trmcloud"
    run_id: str
    phase: str
    step: int
    sha256: str


class ModelList(BaseModel):
    """The models of this server: one."""

    object: Literal["list"] = "list"
    data: list[ServedModelEntry]


class ErrorDetail(BaseModel):
    """The error: OpenAI's four fields."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorObject(BaseModel):
    """The body of a refusal below /v1/."""

    error: ErrorDetail


def error_object(
    status: int, what: str, param: str | None = None, code: str | None = None
) -> ErrorObject:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return ErrorObject(error=ErrorDetail(message=what, type=kind, param=param, code=code))
