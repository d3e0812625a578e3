"""What requests gain that come together, over one at a time: tokens a second of a server.

One server, one model of ``trm-tiny``'s size and fresh weights, drawn at temperature 1. One client
and eight take turns, so that a busy machine is busy for both.
"""

from __future__ import annotations

import argparse
import http.client
import inspect
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tomllib

from bench.row import Row
from model.command import wait_asleep

if TYPE_CHECKING:
    from model.serving.app import ServedModel

CLIENTS = 8
ROUNDS = 5
_TOKENS = 96
_LEAST_TIMES = 3.0
_RECIPE = Path(__file__).parents[1] / "model" / "recipes" / "trm-tiny.toml"


def run() -> list[Row]:
    """Tokens a second of eight clients against one's."""
    wait_asleep()
    with _serving() as port:
        _ask(port, 0)
        pairs = []
        for number in range(ROUNDS):
            counts = (1, CLIENTS) if number % 2 else (CLIENTS, 1)
            rate = {count: _tokens_per_s(port, count, number) for count in counts}
            pairs.append((rate[1], rate[CLIENTS]))
    ratio = statistics.median(many / one for one, many in pairs)
    one, many = (statistics.median(each) for each in zip(*pairs, strict=True))
    detail = (
        f"{many:,.0f} against {one:,.0f} tokens/s, {ROUNDS} rounds in turns, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return [Row("8 clients of serve against one", ratio, _LEAST_TIMES, "higher", "×", detail)]


def _tokens_per_s(port: int, clients: int, number: int) -> float:
    """Each client asks once; one that is alone asks twice, so that its round is no blink."""
    asked = max(2, clients)
    begun = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        made = sum(pool.map(lambda at: _ask(port, 100 * number + at), range(asked)))
    return made / (time.perf_counter() - begun)


def _ask(port: int, seed: int) -> int:
    """Tokens of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    question = {"prompt": "def ", "max_tokens": _TOKENS, "temperature": 1.0, "seed": seed}
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/generate", json.dumps(question), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        assert answer.status == 200, told
        return int(told["tokens"])
    finally:
        connection.close()


@contextmanager
def _serving() -> Iterator[int]:
    from model.serve import server
    from trmcloud.io.web_server import listening

    with listening("127.0.0.1", 0) as sock:
        made = server(_fresh())
        thread = threading.Thread(target=made.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield int(sock.getsockname()[1])
        finally:
            made.should_exit = True
            thread.join()


def _fresh() -> ServedModel:
    """The recipe's model. It predicts every id alike; one costs what a trained model's does."""
    import torch

    from model.data.tokenizers import BpeTokenizer
    from model.families import registry
    from model.families.drawing import is_batched, make_sampler
    from model.serve import fresh
    from model.serving.active import TextSource
    from model.serving.app import ServedModel
    from model.serving.engine import Engine
    from model.serving.messages import MAX_BODY_BYTES, Info
    from trmcloud.core.spec.recipe import parse_recipe

    recipe = parse_recipe(tomllib.loads(_RECIPE.read_text("utf-8")), str(_RECIPE))
    settings = recipe.resolve("fast", hardware="local", gpus=1)
    cpu = torch.device("cpu")
    model = registry.build(settings, cpu)
    model.initialise(0)
    engine = Engine(
        make_sampler(model.eval(), CLIENTS, cpu), rows=CLIENTS, waiting=CLIENTS, report=print
    )
    info = Info(
        model=settings.recipe, created=0, family=settings.family, recipe=settings.recipe,
        run_id="", phase="fast", step=0, sha256="",
        parameters=sum(each.numel() for each in model.parameters()),
        vocab_size=settings.vocab_size, sequence=model.sequence, device="cpu",
        batched=is_batched(model), batch=CLIENTS, queue=CLIENTS, max_body_bytes=MAX_BODY_BYTES,
    )  # fmt: skip
    tokenizer = BpeTokenizer.train([inspect.getsource(argparse)], settings.vocab_size)
    source = TextSource(engine, tokenizer, model.most_given)
    return ServedModel(source, info, "0", fresh(), print)
