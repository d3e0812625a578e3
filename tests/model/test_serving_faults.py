"""``model.serve`` as a process of its own, asked wrongly: no request costs another its answer."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from model.families import drawing
from model.families.drawing import BatchedSampler, SequentialSampler, Text
from model.families.protocol import Sampling
from model.serving.engine import EndOfText, Engine
from model.training.load import LoadedModel
from tests.model.test_serving import Client, serving
from tests.standins.half_open import no_more_files
from tests.standins.loopback import until
from tests.waiting import deadline_s

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
BAD_REQUESTS = 400


class Served(Client):
    """The process, and what it printed."""

    def __init__(self, checkpoint: Path, *more: str) -> None:
        self.process = subprocess.Popen(
            no_more_files(
                [sys.executable, "-m", "model.serve", "--checkpoint", str(checkpoint),
                 "--port", "0", "--batch", "8", *more]
            ),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.shown = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", self.shown)
        assert found is not None, self.shown + self.process.communicate(timeout=WITHIN_S)[1]
        super().__init__(int(found[1]))

    def end(self) -> tuple[str, str]:
        self.process.terminate()
        out, err = self.process.communicate(timeout=deadline_s(WITHIN_S))
        assert self.process.returncode == 0, out + err
        return out, err


@contextmanager
def started(checkpoint: Path, *more: str) -> Iterator[Served]:
    made = Served(checkpoint, *more)
    try:
        yield made
        out, err = made.end()
        assert (out, err) == ("ended\n", ""), "it had nothing to complain of"
    finally:
        made.process.kill()
        made.process.wait()


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[Served]:
    with started(checkpoint) as made:
        yield made


def good(number: int, tokens: int = 120) -> dict[str, Any]:
    return {"prompt": "the dog", "max_tokens": tokens, "seed": number, "temperature": 0.8}


def alongside(
    client: Client, disturb: Callable[[], Any], wishes: list[dict[str, Any]]
) -> tuple[list[Any], list[Any]]:
    """What each of ``wishes`` gets alone, and what it gets while ``disturb`` is called."""
    alone = [client.ask("POST", "/generate", wish)[::2] for wish in wishes]
    with ThreadPoolExecutor(len(wishes)) as pool:
        going = [pool.submit(client.ask, "POST", "/generate", wish) for wish in wishes]
        until(lambda: client.get("/health")["drawn"] > 0 or all(each.done() for each in going))
        disturb()
        return alone, [each.result()[::2] for each in going]


# -- numbers at the border -------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", ["5e-324", "1e-39", "1e-7"])
def test_a_tiny_temperature_costs_no_other_its_answer(client: Served, temperature: str) -> None:
    told: list[tuple[int, bytes]] = []

    def poison() -> None:
        body = f'{{"prompt": "the dog", "max_tokens": 3, "temperature": {temperature}}}'
        told.append(client.ask("POST", "/generate", body.encode())[::2])

    alone, beside = alongside(client, poison, [good(number, 60) for number in range(3)])
    assert beside == alone
    assert {status for status, _ in beside} == {200}
    assert told[0] == client.ask("POST", "/generate", {
        "prompt": "the dog", "max_tokens": 3, "temperature": 0,
    })[::2]  # fmt: skip


def test_shares_and_counts_at_their_borders_draw_what_there_is(loaded: LoadedModel) -> None:
    stop = loaded.tokenizer.bos
    likeliest = None
    for temperature, top_k, top_p in (
        (0.0, 0, 1.0), (0.8, 1, 1.0), (0.8, 0, 1e-320), (0.8, 0, 5e-324), (1e-320, 10**9, 1e-320),
        (0.8, 10**9, 1e-9),
    ):  # fmt: skip
        sampling = Sampling(20, temperature, top_k, top_p, 1, loaded.tokenizer.vocab_size, stop)
        drawn = list(loaded.model.generate([stop], sampling))
        likeliest = likeliest or drawn
        assert drawn == likeliest, (temperature, top_k, top_p)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e400}',
        b'{"prompt": "a", "temperature": -1e-320}',
        b'{"prompt": "a", "temperature": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "seed": 1e400}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 100_000 + b"}",
        b'{"prompt": "a", "top_k": 1e-320}',
        b'{"prompt": "a", "top_p": 1e-320}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 40_000,
        b"[" * 250_000,
        b'{"a\\nb\\u001b[2J": 1, "prompt": "a"}',
        b'{"' + b"k" * 200_000 + b'": 1, "prompt": "a"}',
        b"\xff\xfe\x00",
        b"null",
    ],
)
def test_no_body_is_answered_by_a_fault_of_the_server(client: Served, body: bytes) -> None:
    status, _, told = client.ask("POST", "/generate", body)
    assert status in (400, 422)
    line = json.loads(told)["error"]
    assert line
    assert len(line) < 400
    assert line.isprintable()


@pytest.mark.parametrize("prompt", ["", " ", "\n", "\x00", "\u200b", "\u202e", "🙂" * 5, "\ufffd"])
def test_a_prompt_with_next_to_no_text_is_answered_or_refused(client: Served, prompt: str) -> None:
    status, _, told = client.ask("POST", "/generate", {"prompt": prompt, "max_tokens": 3})
    assert status in (200, 422), told


# -- faults of one request -------------------------------------------------------------------------


def test_a_fault_in_one_row_ends_that_row_alone(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = drawing.choose

    def choose(logits: Any, sampling: Sampling, generator: Any) -> int:
        if sampling.seed == 666 and generator.initial_seed() == 666 and counted.pop(0):
            raise RuntimeError("probability tensor contains NaN")
        return real(logits, sampling, generator)

    counted = [False] * 5 + [True] * 100
    with serving(loaded, batch=8) as client:
        alone = [client.generate(**good(number)) for number in range(4)]
        monkeypatch.setattr("model.families.drawing.choose", choose)
        with ThreadPoolExecutor(5) as pool:
            bad = pool.submit(client.ask, "POST", "/generate", good(666))
            beside = list(pool.map(lambda number: client.generate(**good(number)), range(4)))
        assert bad.result()[0] == 500
        assert beside == alone
        assert client.get("/health")["status"] == "ok"
    assert "warning: a step failed: RuntimeError" in capsys.readouterr().out


def test_a_pass_of_several_that_fails_is_made_again_for_each(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where memory ran out for a moment: each text comes out as it does alone."""
    failed: list[Exception] = []
    real: Any = loaded.model.decode
    sampling = [
        Sampling(30, 0.8, 32, 1.0, seed, loaded.tokenizer.vocab_size, loaded.tokenizer.bos)
        for seed in range(3)
    ]
    start = [loaded.tokenizer.bos, 5, 6]
    alone = [list(loaded.model.generate(start, each)) for each in sampling]
    passes = [0]

    def decode(ids: Any, cache: Any) -> Any:
        if len(ids) > 1:
            passes[0] += 1
            if passes[0] % 7 == 3:
                raise MemoryError("no room")
        return real(ids, cache)

    monkeypatch.setattr(loaded.model, "decode", decode)
    together = BatchedSampler(loaded.model, 3, torch.device("cpu"), failed.append)  # type: ignore[arg-type]
    texts = [together.add(start, each) for each in sampling]
    drawn: dict[Text, list[int]] = {text: [] for text in texts}
    while not all(text.ended for text in texts):
        made = together.step()
        assert len({text for text, _ in made}) == len(made), "one id of each a step"
        for text, token in made:
            drawn[text].append(token)
    assert list(drawn.values()) == alone
    assert passes[0] > 7
    assert [str(each) for each in failed] == ["no room"], "told once"


class Faulty:
    """A family in turns whose text of seed 1 fails at its third id, and of seed 2 at once."""

    def generate(self, start: Any, sampling: Sampling) -> Iterator[int]:
        if sampling.seed == 2:
            raise ValueError("not even one")
        return self._ids(sampling.seed)

    def _ids(self, seed: int) -> Iterator[int]:
        for number in range(10):
            if seed == 1 and number == 2:
                raise ZeroDivisionError
            yield number


def test_a_family_in_turns_goes_on_past_a_text_that_fails() -> None:
    told: list[str] = []
    engine = Engine(SequentialSampler(Faulty()), rows=3, waiting=9, report=told.append)  # type: ignore[arg-type]
    came: list[list[int | EndOfText]] = [[], [], []]
    for seed in (1, 2, 0):
        engine.submit([1], Sampling(6, 0.0, 0, 1.0, seed, 100, -1), came[seed].append)
    engine.start()
    until(lambda: all(each and isinstance(each[-1], EndOfText) for each in came))
    assert engine.alive
    engine.close()
    assert came == [
        [0, 1, 2, 3, 4, 5, EndOfText("length")],
        [0, 1, EndOfText("failed")],
        [EndOfText("failed")],
    ]
    assert sorted(told) == [
        "a step failed: ValueError: not even one",
        "a step failed: ZeroDivisionError: ",
    ]


def test_clients_that_leave_in_the_middle_cost_no_other_its_text(client: Served) -> None:
    def leave() -> None:
        for number in range(12):
            gone = client.begin(**good(number, 500), stream=bool(number % 2))
            if number % 3:
                gone.recv(40)
            gone.close()

    alone, beside = alongside(client, leave, [good(number, 150) for number in range(4)])
    assert beside == alone
    until(lambda: client.get("/health") == {"status": "ok", "drawn": 0, "waiting": 0})


# -- many bad requests -----------------------------------------------------------------------------


def test_good_streams_stay_whole_beside_many_bad_requests(client: Served) -> None:
    """Their kinds and bytes are drawn from one seed. None is answered by a fault of the server."""
    wish = {**good(7, 300), "stream": True}
    _, _, alone = client.ask("POST", "/generate", wish)
    assert b"finish_reason" in alone
    over = threading.Event()
    streams: list[bytes] = []

    def listen() -> None:
        while not over.is_set():
            streams.append(client.ask("POST", "/generate", wish)[2])

    listeners = [threading.Thread(target=listen) for _ in range(2)]
    for each in listeners:
        each.start()
    with ThreadPoolExecutor(6) as pool:
        seeds = range(BAD_REQUESTS)
        told = list(pool.map(lambda seed: _raw(client.port, _bad(random.Random(seed))), seeds))
    over.set()
    for each in listeners:
        each.join(deadline_s(WITHIN_S))
    assert len(streams) >= 2
    assert set(streams) == {alone}
    statuses = {answer.split(b" ", 2)[1] for answer in told if answer}
    assert statuses <= {b"200", b"400", b"403", b"404", b"405", b"408", b"413", b"415", b"421",
                        b"422", b"503"}, statuses  # fmt: skip
    assert len(statuses) >= 6, "the requests differ in what is wrong with them"
    assert client.get("/health")["status"] == "ok"


def _bad(at: random.Random) -> bytes:
    """The bytes of a request with something wrong in it."""
    value = at.choice([
        b"NaN", b"1e400", b"-1e400", b"1e-320", b"-1", b"9" * at.randrange(1, 6000), b"null", b'""',
        b"true", b"[]", b"{}", b"[" * at.randrange(1, 3000), b'"\\ud800"', b'"\\u0000"',
        b"0." + b"0" * 400 + b"1", at.randbytes(at.randrange(40)),
    ])  # fmt: skip
    key = at.choice([b"prompt", b"max_tokens", b"temperature", b"top_k", b"seed", b"stream", b"x"])
    body = b'{"prompt": "a", "max_tokens": 2, "%s": %s}' % (key, value)
    if at.random() < 0.2:
        body = body[: at.randrange(len(body))] + at.randbytes(at.randrange(9))
    head = [
        at.choice([b"POST", b"POST", b"POST", b"POST", b"GET", b"PUT", b"\x00"]),
        at.choice([b"/generate"] * 6 + [b"/", b"/info", b"/%ff%00", b"/nope"]),
    ]  # fmt: skip
    lines = [
        b" ".join([*head, b"HTTP/1.1"]),
        at.choice([b"Host: localhost"] * 8 + [b"Host: evil.example", b"Host:", b"X: y"]),
        at.choice([b"Content-Type: application/json"] * 8 + [b"Content-Type: text/plain"]),
        at.choice([b"Content-Length: %d" % len(body)] * 8 + [
            b"Content-Length: -1", b"Content-Length: 99999999", b"Transfer-Encoding: chunked",
        ]),
        b"Connection: close",
    ]  # fmt: skip
    if at.random() < 0.1:
        lines.append(at.choice([b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site",
                                b"Origin: null", at.randbytes(9)]))  # fmt: skip
    request = b"\r\n".join(lines) + b"\r\n\r\n" + body
    return request[: at.randrange(len(request))] if at.random() < 0.1 else request


def _raw(port: int, request: bytes) -> bytes:
    """What the server answers before it closes, or before the client has had enough."""
    with socket.create_connection(("127.0.0.1", port), timeout=deadline_s(WITHIN_S)) as made:
        try:
            made.sendall(request)
            made.shutdown(socket.SHUT_WR)
            return made.recv(4000)
        except ConnectionError:
            return b""


# -- who asks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (421, {"Host": "evil.example"}),
        (421, {"Host": "127.0.0.1.evil.example:8000"}),
        (421, {"Host": ""}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "https://localhost"}),
        (403, {"Sec-Fetch-Site": "cross-site"}),
        (403, {"Sec-Fetch-Site": "same-site"}),
    ],
)
def test_another_site_is_refused(client: Served, status: int, headers: dict[str, str]) -> None:
    for method, path, body in (("POST", "/generate", good(1, 2)), ("GET", "/info", None)):
        got, _, told = client.ask(method, path, body, **headers)
        assert got == status
        assert list(json.loads(told)) == ["error"]


def test_programs_and_its_own_page_may_ask(client: Served) -> None:
    own = f"localhost:{client.port}"
    for headers in (
        {"Authorization": "Bearer anything", "User-Agent": "OpenAI/Python"},
        {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"},
        {"Host": f"[::1]:{client.port}"},
    ):
        assert client.ask("POST", "/generate", good(1, 2), **headers)[0] == 200
    page = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.ask("GET", "/docs", None, **page)[0] == 200, "a link that was followed"


def test_beyond_loopback_a_token_is_needed(checkpoint: Path) -> None:
    httpx = pytest.importorskip("httpx2")
    made = Served(checkpoint, "--host", "0.0.0.0")
    try:
        assert made.process.stdout is not None
        found = re.match(r"Authorization: Bearer (\S{32})  ", made.process.stdout.readline())
        assert found is not None
        with httpx.Client(
            base_url=f"http://127.0.0.1:{made.port}", timeout=deadline_s(WITHIN_S)
        ) as asks:
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": found[1][:-1]}):
                answer = asks.post("/generate", json=good(1, 2), headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert asks.get("/info", headers=headers).status_code == 401
            own = {"Authorization": f"Bearer {found[1]}"}
            assert asks.post("/generate", json=good(1, 2), headers=own).status_code == 200
            assert asks.get("/health").status_code == 200
            own["Host"] = "evil.example"
            assert asks.post("/generate", json=good(1, 2), headers=own).status_code == 421
        assert made.end()[0] == "ended\n"
    finally:
        made.process.kill()
        made.process.wait()


# -- connections -----------------------------------------------------------------------------------
