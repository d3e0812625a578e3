"""OpenAI's endpoints, asked by OpenAI's own Python package over a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import sample
from model.families.protocol import Sampling
from model.serving.openai import NO_TEMPLATE, WARNING_HEADER
from model.serving.text import StopStrings
from model.training.load import LoadedModel
from tests.model.test_serving import Client, serving
from tests.standins.loopback import until

openai = pytest.importorskip("openai", reason="the extra `dev`")

WITHIN_S = 60.0
USER = {"role": "user", "content": "the dog"}


@pytest.fixture(scope="module")
def served(loaded: LoadedModel) -> Iterator[Client]:
    with serving(loaded, batch=8) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Client) -> Iterator[Any]:
    with of(served) as made:
        yield made


@pytest.fixture(scope="module")
def model(client: Any) -> str:
    return str(client.models.list().data[0].id)


def of(served: Client, key: str = "unused") -> Any:
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{served.port}/v1", api_key=key, max_retries=0, timeout=WITHIN_S,
    )  # fmt: skip


def strictly(kind: Any, answer: Any) -> Any:
    """The answer, held to the types that OpenAI publishes; its library does not check them."""
    return kind.model_validate_json(answer.model_dump_json(warnings="error"), strict=True)


# -- what is answered ------------------------------------------------------------------------------


def test_the_model_is_listed_and_found(client: Any, loaded: LoadedModel) -> None:
    [listed] = client.models.list()
    assert (listed.id, listed.object) == (loaded.settings.recipe, "model")
    assert (listed.step, listed.phase) == (40, "fast")
    assert listed.created == int(loaded.manifest.created_at)
    for name in (listed.id, loaded.manifest.run_id):
        assert client.models.retrieve(name) == listed
    with pytest.raises(openai.NotFoundError, match="on this server: it has 'test'") as refused:
        client.models.retrieve("gpt-4o/../..")
    assert refused.value.code == "model_not_found"


def test_a_completion_is_the_text_that_sample_writes(
    client: Any, model: str, loaded: LoadedModel
) -> None:
    answer = client.completions.create(
        model=model, prompt="the dog", max_tokens=40, temperature=0.7, top_p=0.9, seed=3
    )
    whole = sample.sample(
        loaded, "the dog", max_tokens=40, temperature=0.7, top_k=0, top_p=0.9, seed=3
    )
    [choice] = strictly(openai.types.Completion, answer).choices
    assert "the dog" + choice.text == whole
    prompt = len(loaded.tokenizer.encode(["the dog"], [""])[0])
    usage = answer.usage
    assert (usage.prompt_tokens, usage.total_tokens) == (prompt, prompt + usage.completion_tokens)
    assert choice.finish_reason == ("length" if usage.completion_tokens == 40 else "stop")
    assert answer.id.startswith("cmpl-")
    assert answer.system_fingerprint == f"fp_{loaded.manifest.sha256[:12]}"


def test_a_stream_brings_the_same_text_and_its_usage_last(client: Any, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "prompt": "a", "max_tokens": 30, "seed": 5}
    whole = client.completions.create(**wish)
    chunks = list(
        client.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    )
    for chunk in chunks:
        for choice in chunk.choices:
            # null until a text ends, as OpenAI's streams are; the published type leaves it out.
            choice.finish_reason = choice.finish_reason or "stop"
        strictly(openai.types.Completion, chunk)
    chunks = list(
        client.completions.create(**wish, stream=True, stream_options={"include_usage": True})
    )
    *texts, last = chunks
    assert "".join(each.choices[0].text for each in texts) == whole.choices[0].text
    assert [each.choices[0].finish_reason for each in texts[-2:]] == [
        None, whole.choices[0].finish_reason,
    ]  # fmt: skip
    assert len(texts) > 5
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(each.usage is None for each in texts)
    assert len({each.id for each in chunks}) == 1


def test_the_bytes_of_a_stream_are_as_published(served: Client, model: str) -> None:
    def events(**more: Any) -> list[str]:
        wish = {"model": model, "messages": [USER], "max_tokens": 5, "seed": 1, **more}
        status, headers, body = served.ask("POST", "/v1/chat/completions", wish)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        *told, end = body.decode().split("\n\n")
        assert end == ""
        assert all(each.startswith("data: ") for each in told)
        return [each.removeprefix("data: ") for each in told]

    plain = events(stream=True)
    assert plain.pop() == "[DONE]"
    told = [json.loads(each) for each in plain]
    assert {frozenset(each) for each in told} == {
        frozenset({"id", "object", "created", "model", "system_fingerprint", "choices"})
    }
    deltas = [each["choices"][0]["delta"] for each in told]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(list(each) == ["content"] for each in deltas[1:-1])
    counted = events(stream=True, stream_options={"include_usage": True})
    assert counted.pop() == "[DONE]"
    usages = [json.loads(each)["usage"] for each in counted]
    assert usages.pop()["completion_tokens"] == 5
    assert set(usages) == {None}


def test_a_chat_joins_its_messages_by_line_feeds_and_says_so(client: Any, model: str) -> None:
    messages = [
        {"role": "system", "content": "a cat"},
        {"role": "user", "content": [{"type": "text", "text": "the "},
                                     {"type": "text", "text": "dog"}]},
        {"role": "assistant", "content": " sees"},
        {"role": "user", "content": "a"},
    ]  # fmt: skip
    wish: dict[str, Any] = {"model": model, "max_tokens": 12, "seed": 2}
    raw = client.chat.completions.with_raw_response.create(messages=messages, **wish)
    assert raw.headers[WARNING_HEADER] == NO_TEMPLATE
    answer = strictly(openai.types.chat.ChatCompletion, raw.parse())
    prompt = "a cat\nthe dog\n sees\na"
    plain = client.completions.create(prompt=prompt, **wish)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", plain.choices[0].text)
    assert (answer.usage, choice.finish_reason) == (plain.usage, plain.choices[0].finish_reason)

    wish["stop"] = choice.message.content[-2:]  # its helper for streams refuses what is cut short
    whole = client.chat.completions.create(messages=messages, **wish)
    with client.chat.completions.stream(
        messages=messages, **wish, stream_options={"include_usage": True}
    ) as stream:
        for event in stream:
            if event.type == "chunk":
                strictly(openai.types.chat.ChatCompletionChunk, event.chunk)
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].message.role == "assistant"
    assert (final.usage, final.choices[0].finish_reason) == (whole.usage, "stop")

    again = client.chat.completions.create(
        messages=[{"role": "user", "content": "a"}, final.choices[0].message], **wish
    )  # as a program continues a conversation: by the object that it got
    assert again.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_a_text_before_itself(client: Any, model: str, stream: bool) -> None:
    wish: dict[str, Any] = {"model": model, "prompt": "the", "max_tokens": 120, "seed": 1}
    whole = client.completions.create(**wish).choices[0].text
    stop = next(
        whole[at : at + 3]
        for at in range(20, len(whole) - 3)
        if whole.find(whole[at : at + 3]) == at
    )
    made = client.completions.create(**wish, stop=["\x00never", stop], stream=stream)
    choices = [each.choices[0] for each in made] if stream else [made.choices[0]]
    assert "".join(each.text for each in choices) == whole.partition(stop)[0]
    assert choices[-1].finish_reason == "stop"
    if not stream:
        assert made.usage.completion_tokens < 120


def test_limits_of_tokens_and_their_defaults(client: Any, model: str) -> None:
    def drawn(create: Any, **wish: Any) -> tuple[int, str]:
        answer = create(model=model, seed=4, **wish)
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    assert drawn(client.completions.create, prompt="a") in [(16, "length"), (16, "stop")]
    chat = client.chat.completions.create
    tokens, why = drawn(chat, messages=[USER])
    assert (why, tokens) == ("length", 256) or (why == "stop" and tokens <= 256)
    assert drawn(chat, messages=[USER], max_tokens=3)[0] == 3
    assert drawn(chat, messages=[USER], max_completion_tokens=4, max_tokens=4)[0] == 4


def test_several_choices_are_drawn_by_seeds_that_follow_one_another(
    client: Any, model: str
) -> None:
    wish: dict[str, Any] = {"model": model, "max_tokens": 10}
    alone = [
        client.completions.create(prompt="the", seed=seed, **wish).choices[0].text
        for seed in (7, 8, 9)
    ]
    assert len(set(alone)) == 3
    several = client.completions.create(prompt="the", seed=7, n=3, **wish)
    assert [each.text for each in several.choices] == alone
    assert [each.index for each in several.choices] == [0, 1, 2]
    texts, ends = [""] * 3, []
    for chunk in client.chat.completions.create(
        messages=[{"role": "user", "content": "the"}], seed=7, n=3, stream=True, **wish
    ):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        ends += [choice.index] if choice.finish_reason else []
    assert texts == alone
    assert sorted(ends) == [0, 1, 2]


def test_several_prompts_each_with_its_echo(client: Any, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "max_tokens": 6, "seed": 3, "n": 2, "echo": True}
    made = client.completions.create(prompt=["the dog", "a"], **wish)
    single = [client.completions.create(prompt=each, **wish) for each in ("the dog", "a")]
    assert [each.text for each in made.choices] == [
        choice.text for answer in single for choice in answer.choices
    ]
    assert [each.text[:3] for each in made.choices][:2] == ["the", "the"]
    assert made.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in single)
    streamed = [""] * 4
    for chunk in client.completions.create(prompt=["the dog", "a"], **wish, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [each.text for each in made.choices]


def test_without_a_seed_each_answer_is_drawn_anew(client: Any, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "prompt": "the", "max_tokens": 40, "temperature": 2}
    answers = [client.completions.create(**wish) for _ in range(4)]
    assert len({each.id for each in answers}) == 4
    assert len({each.choices[0].text for each in answers}) > 1
    assert client.completions.create(**wish, seed=-1).choices[0].text
    likeliest = {
        client.completions.create(**{**wish, "temperature": 0}).choices[0].text,
        client.completions.create(**wish, top_p=0).choices[0].text,
        client.completions.create(**wish, extra_body={"top_k": 1}).choices[0].text,
    }
    assert len(likeliest) == 1


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "more", "param", "code", "told"),
    [
        ("completions", {"logprobs": 0}, "logprobs", "unsupported_parameter", "leave it out"),
        ("completions", {"best_of": 2}, "best_of", "unsupported_parameter", ""),
        ("completions", {"suffix": "x"}, "suffix", "unsupported_parameter", ""),
        ("chat/completions", {"logprobs": True}, "logprobs", "unsupported_parameter", ""),
        ("chat/completions", {"top_logprobs": 3}, "top_logprobs", "unsupported_parameter", ""),
        ("chat/completions", {"presence_penalty": 0.5}, "presence_penalty",
         "unsupported_parameter", ""),
        ("chat/completions", {"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter", ""),
        ("chat/completions", {"tools": [{"type": "function"}]}, "tools",
         "unsupported_parameter", ""),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format",
         "unsupported_parameter", ""),
        ("chat/completions", {"store": True}, "store", "unsupported_parameter", ""),
        ("completions", {"prompt": [1, 2]}, "prompt", None, "prompt"),
        ("completions", {"prompt": []}, "prompt", None, "empty"),
        ("completions", {"prompt": "the dog " * 300}, "prompt", "context_length_exceeded",
         "at most"),
        ("completions", {"max_tokens": 0}, "max_tokens", None, "greater than or equal to 1"),
        ("completions", {"max_tokens": 2049}, "max_tokens", None, "2048"),
        ("completions", {"temperature": 2.1}, "temperature", None, "2"),
        ("completions", {"top_p": -0.1}, "top_p", None, ""),
        ("completions", {"seed": 2**63}, "seed", None, ""),
        ("completions", {"n": 17}, "n", None, "16"),
        ("completions", {"n": 9, "prompt": ["a", "b"]}, "n", None, "16 choices"),
        ("completions", {"stop": list("abcde")}, "stop", None, "at most 4"),
        ("completions", {"stop": ""}, "stop", None, "empty"),
        ("completions", {"stream_options": {"include_usage": True}}, "stream_options", None,
         "stream: true"),
        ("completions", {"maxtokens": 3}, "maxtokens", "unknown_parameter", "unknown parameter"),
        ("chat/completions", {"messages": []}, "messages", None, "at least 1"),
        ("chat/completions", {"messages": [{"role": "tool", "content": "a"}]}, "messages", None,
         "role"),
        ("chat/completions", {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages", None, "text"),
        ("chat/completions", {"messages": [{**USER, "content": "the dog " * 300}]}, "messages",
         "context_length_exceeded", "at most"),
        ("chat/completions", {"max_tokens": 3, "max_completion_tokens": 4},
         "max_completion_tokens", None, "differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    client: Any,
    model: str,
    path: str,
    more: dict[str, Any],
    param: str,
    code: str | None,
    told: str,
) -> None:
    asked = {"prompt": "a"} if path == "completions" else {"messages": [USER]}
    with pytest.raises(openai.BadRequestError) as refused:
        client.post(f"/{path}", body={"model": model, **asked, **more}, cast_to=object)
    error = refused.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert told in error.body["message"]
    assert "\n" not in error.body["message"]
    assert set(error.body) == {"message", "type", "param", "code"}


def test_values_that_change_nothing_are_taken(client: Any, model: str) -> None:
    wish: dict[str, Any] = {"model": model, "messages": [USER], "max_tokens": 4, "seed": 1}
    plain = client.chat.completions.create(**wish)
    told = client.chat.completions.create(
        **wish, user="ann", metadata={"a": "b"}, store=False, logprobs=False, top_logprobs=0,
        frequency_penalty=0, presence_penalty=0.0, logit_bias={}, tools=[], tool_choice="auto",
        response_format={"type": "text"}, modalities=["text"], n=1, stop=None, temperature=None,
    )  # fmt: skip
    assert told.choices == plain.choices


def test_that_there_is_no_template_is_warned_of_once(
    loaded: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(loaded) as server, of(server) as client:
        for _ in range(2):
            client.chat.completions.create(model="test", messages=[USER], max_tokens=1)
    assert capsys.readouterr().err == f"warning: {NO_TEMPLATE}\n"


def test_another_model_a_wrong_path_and_no_json_are_refused_as_objects(
    client: Any, served: Client
) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4o", messages=[USER])
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="see /docs"):
        client.embeddings.create(model="gpt-4o", input="a")
    for status, path, body, headers in (
        (400, "/v1/completions", b"{", {}),
        (400, "/v1/completions", b"[" * 100_000, {}),
        (413, "/v1/completions", b"a" * 300_000, {}),
        (415, "/v1/completions", b"{}", {"Content-Type": "text/plain"}),
        (405, "/v1/models", b"{}", {}),
        (403, "/v1/models", b"{}", {"Origin": "http://evil.example"}),
        (421, "/v1/models", b"{}", {"Host": "evil.example"}),
    ):
        got, _, told = served.ask("POST", path, body, **headers)
        error = json.loads(told)["error"]
        assert got == status
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"].isprintable()


def test_beyond_loopback_the_token_is_the_api_key(loaded: LoadedModel) -> None:
    with serving(loaded, token="s3cret") as server:
        with of(server, "wrong") as client, pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"
        with of(server, "s3cret") as client:
            assert client.models.list().data
        assert server.ask("GET", "/")[0] == 200, "the chat page holds nothing of the model"


# -- places and faults -----------------------------------------------------------------------------


def test_choices_that_the_queue_has_no_room_for_take_no_place(
    loaded: LoadedModel, slow: threading.Event
) -> None:
    wish: dict[str, Any] = {"model": loaded.settings.recipe, "prompt": "a", "max_tokens": 2000}
    with serving(loaded, batch=2, queue=2) as server, of(server) as client:
        with pytest.raises(openai.InternalServerError, match="try again") as full:
            client.completions.create(**wish, n=5)
        assert (full.value.status_code, full.value.type) == (503, "server_error")
        assert full.value.response.headers["retry-after"] == "1"
        until(lambda: server.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})
        stream = client.completions.create(**wish, n=4, stream=True)
        next(iter(stream))
        until(lambda: server.get("/health") == {"status": "ok", "drawn": 2, "waiting": 2})
        stream.close()  # as where a program breaks out of its loop
        until(lambda: server.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})
        slow.set()


def test_a_step_that_fails_is_an_error_of_the_library(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = loaded.model.decode
    left = [3]

    def decode(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("no room")
        return real(*arguments)

    wish: dict[str, Any] = {"model": loaded.settings.recipe, "messages": [USER], "max_tokens": 9}
    with serving(loaded) as server, of(server) as client:
        monkeypatch.setattr(loaded.model, "decode", decode)
        came = []
        with pytest.raises(openai.APIError, match="a step of the model failed"):
            came.extend(client.chat.completions.create(**wish, stream=True))
        assert any(each.choices[0].delta.content for each in came)
        with pytest.raises(openai.InternalServerError, match="a step of the model failed"):
            client.chat.completions.create(**wish)
        monkeypatch.setattr(loaded.model, "decode", real)
        assert client.chat.completions.create(**wish).choices


# -- strings that end a text -----------------------------------------------------------------------


@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
       st.data())  # fmt: skip
def test_a_text_ends_at_the_first_stop_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    ends, made, at = StopStrings(stops), "", 0
    while at < len(text) and not ends.found:
        size = data.draw(st.integers(1, 5))
        made += ends.add(text[at : at + size])
        at += size
    made += ends.end()
    complete = [
        end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)
    ]
    if not complete:
        assert (made, ends.found) == (text, False)
        return
    longest = max(len(stop) for stop in stops if text[: complete[0]].endswith(stop))
    assert (made, ends.found) == (text[: complete[0] - longest], True)


def test_the_model_may_draw_what_top_k_and_top_p_leave(loaded: LoadedModel) -> None:
    """``top_k`` 0 is all ids; ``/generate`` has another default than OpenAI's endpoints."""
    stop = loaded.tokenizer.bos
    every = Sampling(30, 2.0, 0, 1.0, 1, loaded.tokenizer.vocab_size, stop)
    some = Sampling(30, 2.0, 2, 1.0, 1, loaded.tokenizer.vocab_size, stop)
    assert list(loaded.model.generate([stop], every)) != list(loaded.model.generate([stop], some))
