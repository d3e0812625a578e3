"""The requests and answers of the server's own endpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trmcloud.core.text import one_line

MAX_BODY_BYTES = 256 * 1024
_SEEDS = 2**63
_SHOWN = 80
"""Characters of a field's name that a refusal repeats."""


class Question(BaseModel):
    """A prompt to go on from, and how."""

    model_config = ConfigDict(extra="forbid", strict=True, title="Question")

    prompt: str = Field(description="Text to continue; empty: the beginning of a document.")
    max_tokens: int = Field(120, ge=1, le=2048, description="Most tokens to generate.")
    temperature: float = Field(
        0.8, ge=0, le=2, allow_inf_nan=False, description="0: always the most likely token."
    )
    top_k: int = Field(32, ge=1, le=32, description="Choose among the K most likely tokens.")
    stop_on_newline: bool = Field(False, description="Stop before the first line feed.")
    seed: int = Field(
        0, ge=0, lt=_SEEDS, description="Random seed: the same seed gives the same text."
    )
    stream: bool = Field(False, description="Send the text piece by piece, as server-sent events.")


class Answer(BaseModel):
    """The text after the prompt, which is not repeated."""

    text: str
    prompt_tokens: int
    tokens: int = Field(description="Token ids of the generated text.")
    finish_reason: Literal["stop", "length", "newline"]


class Piece(BaseModel):
    """An event's ``data``: some text more. After the last one comes an ``Answer`` without text."""

    text: str


class Failure(BaseModel):
    """An error, in one line."""

    error: str


class Health(BaseModel):
    """The server's state, and its number of requests."""

    status: Literal["ok", "failed"]
    drawn: int
    waiting: int


class Info(BaseModel):
    """The model that is served, and its limits."""

    model: str = Field(description="The model's id in requests to /v1/: the recipe's name.")
    created: int = Field(description="When the checkpoint was saved, in seconds since 1970.")
    family: str
    recipe: str
    run_id: str
    phase: str
    step: int
    sha256: str
    parameters: int
    vocab_size: int
    sequence: int = Field(description="Most tokens that a prompt may have.")
    device: str
    batched: bool = Field(description="Whether requests share a pass, or take turns.")
    batch: int
    queue: int
    max_body_bytes: int


def line_of(error: ValidationError) -> str:
    """The first thing that is wrong with a question, as one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(each) for each in first["loc"])
    text = " ".join(first["msg"].split()).removeprefix("Value error, ")
    return one_line(f"{where[:_SHOWN]}: {text}" if where else text)


def is_json(error: ValidationError) -> bool:
    """Whether it could at least be read."""
    return all(each["type"] != "json_invalid" for each in error.errors(include_url=False))
