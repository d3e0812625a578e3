"""The OpenAPI document of all routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from model.serving import openai_messages as of
from model.serving.messages import Answer, Failure, Health, Info, Piece, Question

_MODELS: tuple[type[BaseModel], ...] = (
    Question, Answer, Piece, Failure, Health, Info,
    of.CompletionRequest, of.CompletionAnswer, of.ChatRequest, of.ChatAnswer, of.ChatChunk,
    of.ModelList, of.ServedModelEntry, of.ErrorObject,
)  # fmt: skip
_WAIT = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def openapi(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    _, schemas = models_json_schema(
        [(each, "validation") for each in _MODELS],
        ref_template="#/components/schemas/{model}",
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "A checkpoint served by trmcloud", "version": version},
        "paths": {
            "/v1/models": {
                "get": {
                    "summary": "The models of this server: one.",
                    "responses": {"200": _answered("The list.", of.ModelList)},
                }
            },
            "/v1/models/{model}": {
                "get": {
                    "summary": "One model.",
                    "parameters": [
                        {
                            "name": "model",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string"},
                        }
                    ],
                    "responses": {
                        "200": _answered("It.", of.ServedModelEntry),
                        "404": _answered("There is no such model.", of.ErrorObject),
                    },
                }
            },
            "/v1/completions": _openai(
                "Continue a text, like OpenAI's completions.",
                of.CompletionRequest,
                of.CompletionAnswer,
            ),
            "/v1/chat/completions": _openai(
                "Continue a conversation, like OpenAI's chat completions.",
                of.ChatRequest,
                of.ChatAnswer,
            ),
            "/generate": {
                "post": {
                    "summary": "Continue a prompt, in trmcloud's own shorter format.",
                    "requestBody": _body(Question),
                    "responses": {
                        "200": _streamed("The text, or its pieces where `stream` is true.", Answer),
                        "400": _answered("Not JSON.", Failure),
                        "408": _answered("The body did not arrive.", Failure),
                        "413": _answered("The body is too large.", Failure),
                        "415": _answered("The Content-Type is not JSON.", Failure),
                        "422": _answered(
                            "A value out of range, or a prompt that is too long.", Failure
                        ),
                        "500": _answered("A step failed.", Failure),
                        "503": _answered("The queue is full.", Failure, headers=_WAIT),
                    },
                }
            },
            "/health": {
                "get": {
                    "summary": "Whether the server works.",
                    "responses": {
                        "200": _answered("It does.", Health),
                        "503": _answered("The server does not work.", Health),
                    },
                }
            },
            "/info": {
                "get": {
                    "summary": "The model and the limits.",
                    "responses": {"200": _answered("The model and the limits.", Info)},
                }
            },
        },
        "components": {"schemas": schemas["$defs"]},
    }


def _openai(summary: str, request: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    refused = {
        "400": "Not JSON, a value out of range, an unsupported parameter, or a prompt that is too "
        "long.",
        "404": "There is no such model.",
        "408": "The body did not arrive.",
        "413": "The body is too large.",
        "415": "The Content-Type is not JSON.",
        "500": "A step failed.",
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": _body(request),
            "responses": {
                "200": _streamed("The answer, or its events where `stream` is true.", answer),
                **{code: _answered(what, of.ErrorObject) for code, what in refused.items()},
                "503": _answered("The queue is full.", of.ErrorObject, headers=_WAIT),
            },
        }
    }


def _body(model: type[BaseModel]) -> dict[str, Any]:
    return {"required": True, "content": _answered("", model)["content"]}


def _streamed(what: str, model: type[BaseModel]) -> dict[str, Any]:
    made = _answered(what, model)
    made["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return made


def _answered(what: str, model: type[BaseModel], **more: Any) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"description": what, "content": {"application/json": {"schema": schema}}, **more}
