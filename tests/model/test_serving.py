"""The server over a checkpoint: what it answers, what it refuses, and who gets a place when."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from model import sample
from model.data.tokenizers import BpeTokenizer, CharTokenizer
from model.families.cache import Cache
from model.families.drawing import BatchedSampler, SequentialSampler
from model.families.protocol import Sampling
from model.serving import memory
from model.serving.engine import EndOfText, Engine, QueueFull
from model.serving.memory import check_room, need_of
from model.serving.text import TextStream
from model.training.load import LoadedModel
from tests.standins.loopback import until
from tests.waiting import deadline_s
from trmcloud.core.errors import UsageError

pytest.importorskip("starlette", reason="the extra `serve`")
pytest.importorskip("uvicorn", reason="the extra `serve`")
pytest.importorskip("pydantic", reason="the extra `serve`")

WITHIN_S = 60.0


class Client:
    """Asks a server at a port of this machine, each time anew."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=deadline_s(WITHIN_S)
        )
        try:
            made = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            sent = {"Content-Type": "application/json", **headers}
            connection.request(method, path, made, sent)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", path)
        assert status == 200
        return json.loads(body)

    def generate(self, **question: Any) -> dict[str, Any]:
        status, _, body = self.ask("POST", "/generate", question)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    def refused(self, status: int, body: Any, **headers: str) -> str:
        """The line of a refusal with ``status``."""
        got, _, answer = self.ask("POST", "/generate", body, **headers)
        assert got == status, answer
        told = json.loads(answer)
        assert list(told) == ["error"]
        assert "\n" not in told["error"]
        return str(told["error"])

    def begin(self, **question: Any) -> socket.socket:
        """A request whose answer is not waited for."""
        body = json.dumps(question).encode()
        head = (
            "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        made = socket.create_connection(("127.0.0.1", self.port), timeout=deadline_s(WITHIN_S))
        made.sendall(head.encode() + body)
        return made


@contextmanager
def serving(
    loaded: LoadedModel, *, batch: int = 4, queue: int = 8, token: str = ""
) -> Iterator[Client]:
    from model.serve import make_served_model, server
    from trmcloud.io.web_server import listening

    with listening("127.0.0.1", 0) as sock:
        made = server(make_served_model(loaded, batch=batch, queue=queue), token=token)
        thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield Client(sock.getsockname()[1])
        finally:
            made.should_exit = True
            thread.join(deadline_s(WITHIN_S))
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(loaded: LoadedModel) -> Iterator[Client]:
    with serving(loaded) as made:
        yield made


# -- what is answered ------------------------------------------------------------------------------


def test_an_answer_is_the_text_that_sample_writes(client: Client, loaded: LoadedModel) -> None:
    wish = {"prompt": "the dog", "max_tokens": 40, "temperature": 0.7, "top_k": 20, "seed": 3}
    answer = client.generate(**wish)
    settings = {key: value for key, value in wish.items() if key != "prompt"}
    whole = sample.sample(loaded, "the dog", **settings)  # type: ignore[arg-type]
    assert "the dog" + answer["text"] == whole
    assert answer["prompt_tokens"] == len(loaded.tokenizer.encode(["the dog"], [""])[0])
    assert (answer["tokens"], answer["finish_reason"]) in [
        (40, "length"),
        (answer["tokens"], "stop"),
    ]


def test_a_stream_brings_the_same_text_in_pieces(client: Client) -> None:
    wish = {"prompt": "a", "max_tokens": 30, "seed": 5}
    status, headers, body = client.ask("POST", "/generate", {**wish, "stream": True})
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = body.decode().split("\n\n")
    assert events.pop() == ""
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    whole = client.generate(**wish)
    assert "".join(each["text"] for each in told) == whole["text"]
    assert told[-1] == {**whole, "text": ""}
    assert len(told) > 5


def test_a_line_feed_ends_a_text_where_that_is_wished(client: Client) -> None:
    wish = {"prompt": "the", "max_tokens": 200, "seed": 1, "temperature": 1.0}
    whole = client.generate(**wish)["text"]
    assert "\n" in whole
    cut = client.generate(**wish, stop_on_newline=True)
    assert cut["text"] == whole.partition("\n")[0]
    assert cut["finish_reason"] == "newline"
    assert cut["tokens"] < 200


def test_pages_tell_what_is_served_and_how_to_ask(client: Client, loaded: LoadedModel) -> None:
    # Of a client of another test, which has left, something may still be drawn.
    until(lambda: client.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})
    info = client.get("/info")
    assert (info["family"], info["step"], info["batched"]) == ("trm", 40, True)
    assert info["sequence"] == loaded.settings.sequence
    assert info["parameters"] == sum(each.numel() for each in loaded.model.parameters())
    document = client.get("/openapi.json")
    assert set(document["paths"]) == {
        "/generate", "/health", "/info", "/v1/models", "/v1/models/{model}", "/v1/completions",
        "/v1/chat/completions",
    }  # fmt: skip
    asked = document["components"]["schemas"]["Question"]["properties"]
    assert (asked["max_tokens"]["minimum"], asked["max_tokens"]["maximum"]) == (1, 2048)
    assert (asked["temperature"]["minimum"], asked["temperature"]["maximum"]) == (0, 2)
    assert (asked["top_k"]["minimum"], asked["top_k"]["maximum"]) == (1, 32)
    status, headers, body = client.ask("GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert all(text in body.decode() for text in ("POST /generate", "stop_on_newline", "≤ 2048"))
    assert b"http:" not in body


def test_the_openapi_document_is_one(client: Client) -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(client.get("/openapi.json"))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, b"prompt=a", "JSON"),
        (400, b"", "JSON"),
        (400, b'{"prompt": "\xff"}', "JSON"),
        (422, b"[]", "object"),
        (422, {}, "prompt: Field required"),
        (422, {"prompt": 3}, "prompt: "),
        (422, {"prompt": "a", "max_tokens": 0}, "max_tokens: "),
        (422, {"prompt": "a", "max_tokens": 2049}, "max_tokens: "),
        (422, {"prompt": "a", "max_tokens": True}, "max_tokens: "),
        (422, {"prompt": "a", "temperature": 2.01}, "temperature: "),
        (422, {"prompt": "a", "temperature": -0.1}, "temperature: "),
        (422, b'{"prompt": "a", "temperature": NaN}', "temperature: "),
        (422, {"prompt": "a", "top_k": 0}, "top_k: "),
        (422, {"prompt": "a", "top_k": 33}, "top_k: "),
        (422, {"prompt": "a", "seed": 2**63}, "seed: "),
        (422, {"prompt": "a", "seed": -1}, "seed: "),
        (422, {"prompt": "a", "stop_on_newline": 1}, "stop_on_newline: "),
        (422, {"prompt": "a", "maxtokens": 3}, "maxtokens: "),
        (422, {"prompt": "the dog " * 300}, "prompt: 6"),
        (413, b'{"prompt": "' + b"a" * 300_000 + b'"}', "bytes"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told(client: Client, status: int, body: Any, told: str) -> None:
    assert told in client.refused(status, body)


def test_what_a_page_elsewhere_could_make_a_browser_send_is_refused(client: Client) -> None:
    line = client.refused(415, {"prompt": "a"}, **{"Content-Type": "text/plain"})
    assert "application/json" in line


def test_other_pages_and_methods_are_refused_as_json(client: Client) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/generate", 405)):
        got, _, body = client.ask(method, path)
        assert got == status
        assert "/docs" in json.loads(body)["error"]


def test_a_character_that_no_id_stands_for_is_named() -> None:
    from model.serving.active import RefusedRequest, TextSource

    source = TextSource(None, CharTokenizer("ab\n"), 8)  # type: ignore[arg-type]

    def start(prompt: str) -> list[int]:
        return asyncio.run(source.start_of(prompt))

    assert start("ab") == [3, 0, 1]
    with pytest.raises(RefusedRequest, match="no character 'c'"):
        start("abc")
    with pytest.raises(RefusedRequest, match="8 tokens, but the model takes at most 7"):
        start("a" * 8)
    with pytest.raises(RefusedRequest, match="5,000 tokens"):  # on a thread of its own
        start("a" * 5_000)
    source = TextSource(None, CharTokenizer("ab\n"), 5, least_given=5)  # type: ignore[arg-type]
    assert start("abab") == [3, 0, 1, 0, 1]
    with pytest.raises(RefusedRequest, match="2 tokens, but the model needs 4"):
        start("ab")


# -- places ----------------------------------------------------------------------------------------


def test_a_full_queue_says_when_to_come_again(loaded: LoadedModel, slow: threading.Event) -> None:
    with serving(loaded, batch=1, queue=1) as client:
        going = client.begin(prompt="a", max_tokens=2000, temperature=1.0)
        until(lambda: client.get("/health")["drawn"] == 1)
        waits = client.begin(prompt="b", max_tokens=1)
        until(lambda: client.get("/health")["waiting"] == 1)
        status, headers, body = client.ask("POST", "/generate", {"prompt": "c"})
        assert (status, headers["retry-after"]) == (503, "1")
        assert "try again" in json.loads(body)["error"]
        going.close()
        slow.set()
        assert waits.recv(100).startswith(b"HTTP/1.1 200")
        waits.close()
        assert client.generate(prompt="c", max_tokens=1)["tokens"] <= 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_it(
    loaded: LoadedModel, slow: threading.Event, stream: bool
) -> None:
    with serving(loaded, batch=1, queue=4) as client:
        going = client.begin(prompt="a", max_tokens=2048, temperature=1.0, stream=stream)
        waits = client.begin(prompt="a", max_tokens=2048, temperature=1.0, stream=stream)
        until(lambda: client.get("/health") == {"status": "ok", "drawn": 1, "waiting": 1})
        waits.close()
        until(lambda: client.get("/health") == {"status": "ok", "drawn": 1, "waiting": 0})
        going.close()
        until(lambda: client.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})


def test_a_server_ends_though_texts_are_drawn(loaded: LoadedModel, slow: threading.Event) -> None:
    with serving(loaded, batch=1) as client:
        going = client.begin(prompt="a", max_tokens=2048, temperature=1.0)
        until(lambda: client.get("/health")["drawn"] == 1)
    going.close()


# -- the engine and the text alone -----------------------------------------------------------------


class Counting:
    """A family whose texts are 0, 1, 2 …; ``model.generate`` for a drawing in turns."""

    def generate(self, start: Any, sampling: Sampling) -> Iterator[int]:
        yield from range(100 if sampling.seed == 0 else sampling.seed)


def test_a_family_in_turns_is_served_and_told_why_each_text_ended() -> None:
    came: dict[str, list[int | EndOfText]] = {"long": [], "ends": [], "gone": []}
    engine = Engine(SequentialSampler(Counting()), rows=2, waiting=1, report=print)  # type: ignore[arg-type]

    def wish(name: str, tokens: int, seed: int) -> Any:
        sampling = Sampling(tokens, 0.0, 0, 1.0, seed, 100, -1)
        return engine.submit([1], sampling, came[name].append)

    wish("long", 5, 0)
    wish("ends", 5, 3)
    gone = wish("gone", 5, 0)
    with pytest.raises(QueueFull):
        wish("gone", 1, 0)
    engine.give_up(gone)
    engine.start()
    until(lambda: all(EndOfText in map(type, came[name]) for name in ("long", "ends")))
    engine.close()
    assert came["long"] == [0, 1, 2, 3, 4, EndOfText("length")]
    assert came["ends"] == [0, 1, 2, EndOfText("stop")]
    assert came["gone"] == []
    with pytest.raises(QueueFull):
        wish("long", 1, 0)


def test_text_comes_character_by_whole_character() -> None:
    tokenizer = BpeTokenizer.train(["plain text"], 257)
    words = "aé漢🙂 b"
    ids = [int(each) for each in tokenizer.encode([words], [""])[0]]
    stream = TextStream(tokenizer)
    pieces = [stream.add(each) for each in ids]
    assert "".join(pieces) == words
    assert [each for each in pieces if each] == list(words)
    assert stream.end() == ""
    half = ids[1:2]
    assert stream.add(half[0]) == ""
    assert stream.end() == "\ufffd"


# -- room ---------------------------------------------------------------------------------------


def test_a_requests_room_is_what_its_keys_and_values_take(loaded: LoadedModel) -> None:
    model, device = loaded.model, loaded.device
    drawing = BatchedSampler(model, 3, device)  # type: ignore[arg-type]
    drawing.add([1, 2, 3], Sampling(4, 1.0, 0, 1.0, 1, 300, 300))
    drawing.step()
    kept = sum(t.numel() * 4 for _, slot in drawing._cache.slots() for t in slot.kept)
    need = need_of(loaded.settings, on_gpu=False)
    logits = 3 * loaded.settings.vocab_size * 4
    assert 3 * (need.request - logits) == kept
    assert need.weights == 2 * 4 * sum(each.numel() for each in model.parameters())
    alone = Cache(model.sequence)
    model.decode(torch.zeros(1, model.sequence, dtype=torch.long), alone)  # type: ignore[operator]
    assert need.beginning >= sum(t.numel() * 4 for _, slot in alone.slots() for t in slot.kept)


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(loaded: LoadedModel) -> None:
    need = need_of(loaded.settings, on_gpu=False)
    free = round(need.of(5) / 0.9) + 16
    check_room(loaded.settings, 5, free, on_gpu=False)
    check_room(loaded.settings, 256, None, on_gpu=False)
    with pytest.raises(UsageError, match="--batch 6 needs about") as caught:
        check_room(loaded.settings, 6, free, on_gpu=False)
    assert caught.value.next_step == "--batch 5"
    weights = need_of(loaded.settings, on_gpu=True).weights
    assert need.weights == 2 * weights
    with pytest.raises(UsageError, match="the GPU has") as caught:
        check_room(loaded.settings, 1, weights, on_gpu=True)
    assert caught.value.next_step == "a machine with more memory"


def test_room_is_looked_for_before_the_weights_are_read(
    loaded: LoadedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from model import serve
    from trmcloud.core.contract.manifest import to_json

    (tmp_path / "manifest.json").write_text(to_json(loaded.manifest))  # and nothing beside it
    monkeypatch.setattr(memory, "free_bytes", lambda *, on_gpu: 1_000_000)
    arguments = ["--checkpoint", str(tmp_path), "--port", "0", "--batch", "200"]
    assert serve.main(arguments) == 2
    assert "--batch 200 needs about" in capsys.readouterr().err
