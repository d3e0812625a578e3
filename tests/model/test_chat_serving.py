"""A server over a chat checkpoint: its template, and where an answer ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from model.data.chat import SPECIAL_TOKENS, ChatTokens, render_for_completion
from model.data.tokenizers import BpeTokenizer
from model.families import registry
from model.sample import sample
from model.training.load import LoadedModel
from tests.model.test_serving import Client, serving
from tests.unit.core.manifests import manifest
from trmcloud.adapters.files import load_recipe
from trmcloud.core.errors import DataError

TOKENIZER = BpeTokenizer.train(["the cat sat on the mat " * 50], 300, SPECIAL_TOKENS)
SHAPE = {
    "depth": 1, "width": 32, "head_dim": 16, "hidden": 32, "vocab_size": 320, "sequence": 48,
}  # fmt: skip
ASKED = [{"role": "user", "content": "the cat"}]


def chat_model(says: dict[int, float]) -> LoadedModel:
    """A model whose every answer begins with the likeliest of ``says``, ids with their logits."""
    settings = load_recipe("chat-tiny").resolve("chat", hardware="local", gpus=1, overrides=SHAPE)
    model: Any = registry.build(settings, torch.device("cpu"))
    model.initialise(0)
    with torch.no_grad():
        # Every state is the same, since blocks add nothing yet.
        model.embedding.weight.fill_(1.0)
        model.head.weight.zero_()
        for token, logit in says.items():
            model.head.weight[token] = logit / settings.width
    made = manifest(phase="chat", recipe="chat-tiny")
    return LoadedModel(model.eval(), TOKENIZER, settings, made, torch.device("cpu"))


def one_text_id(text: str) -> int:
    [[token]] = [each.tolist() for each in TOKENIZER.encode([text], [""])]
    return int(token)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Its model answers with the end of the answer."""
    with serving(chat_model({ChatTokens.of(TOKENIZER).assistant_end: 9.0})) as made:
        yield made


def asked(client: Client, messages: Any, **more: Any) -> tuple[int, dict[str, str], Any]:
    wish = {"model": "chat-tiny", "messages": messages, "temperature": 0, "max_tokens": 5, **more}
    status, headers, body = client.ask("POST", "/v1/chat/completions", wish)
    return status, headers, json.loads(body)


def test_an_answer_ends_with_the_assistants_end(client: Client) -> None:
    status, headers, told = asked(client, ASKED)
    assert status == 200
    assert "trmcloud-warning" not in {name.lower() for name in headers}
    [choice] = told["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    start = render_for_completion(TOKENIZER, ASKED)
    assert told["usage"]["prompt_tokens"] == len(start) - 1


def test_an_answer_ends_where_another_conversation_begins() -> None:
    text = one_text_id("a")
    bos = TOKENIZER.bos
    with serving(chat_model({bos: 9.0, text: 1.0})) as client:
        _, _, told = asked(client, ASKED)
        assert told["choices"][0]["finish_reason"] == "stop"
        assert told["choices"][0]["message"]["content"] == ""
    with serving(chat_model({text: 9.0})) as client:
        _, _, told = asked(client, ASKED)
        assert told["choices"][0]["finish_reason"] == "length"
        assert told["choices"][0]["message"]["content"] == "aaaaa"
        # A text without a template is continued as before, and its end is a document's.
        wish = {"model": "chat-tiny", "prompt": "the", "temperature": 0, "max_tokens": 3}
        status, _, body = client.ask("POST", "/v1/completions", wish)
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "aaa")


def test_what_the_developer_and_the_system_say_goes_before_the_first_question(
    client: Client,
) -> None:
    told = [
        {"role": "system", "content": "sat"},
        {"role": "developer", "content": [{"type": "text", "text": "on"}]},
        *ASKED,
    ]
    merged = [{"role": "user", "content": "sat\n\non\n\nthe cat"}]
    _, _, answer = asked(client, told)
    wanted = len(render_for_completion(TOKENIZER, merged)) - 1
    assert answer["usage"]["prompt_tokens"] == wanted


def test_messages_that_make_no_conversation_are_refused(client: Client) -> None:
    status, _, told = asked(client, [*ASKED, {"role": "assistant", "content": "sat"}])
    assert (status, told["error"]["param"]) == (400, "messages")
    assert "there is nothing to answer" in told["error"]["message"]


def test_a_conversation_longer_than_the_model_says_so(client: Client) -> None:
    status, _, told = asked(client, [{"role": "user", "content": "cat " * 100}])
    assert (status, told["error"]["code"]) == (400, "context_length_exceeded")
    assert "the model takes at most 48" in told["error"]["message"]


def test_sample_answers_its_prompt() -> None:
    drawn = {"max_tokens": 4, "temperature": 0.0, "top_k": 0, "seed": 0}
    loaded = chat_model({one_text_id("a"): 9.0})
    assert sample(loaded, "the cat", **drawn) == "aaaa"  # type: ignore[arg-type]
    base = replace(loaded, manifest=manifest(phase="train"))
    assert sample(base, "the cat", **drawn) == "the cataaaa"  # type: ignore[arg-type]
    with pytest.raises(DataError, match="message 1 is empty"):
        sample(loaded, "", **drawn)  # type: ignore[arg-type]
