"""Text from a checkpoint: ``python -m model.sample --checkpoint DIR --prompt TEXT``.

Decodes with a cache of keys and values, and with as many supervision steps as in training.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Sequence

from model.command import run_command
from trmcloud.core.errors import UsageError
from trmcloud.core.pod_contract import strip_control

if TYPE_CHECKING:
    import torch

    from model.load import Loaded

MAX_TOKENS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.sample",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.sample --checkpoint step-00000120 "
        "--prompt 'def ' --max-tokens 100",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--prompt", default="", help="what the text begins with")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest")
    parser.add_argument("--top-k", type=int, default=50, help="0: all tokens")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)

    def command() -> None:
        _check(chosen)
        from model.load import load_model

        loaded = load_model(Path(chosen.checkpoint))
        text = sample(
            loaded,
            chosen.prompt,
            max_tokens=chosen.max_tokens,
            temperature=chosen.temperature,
            top_k=chosen.top_k,
            seed=chosen.seed,
        )
        print(strip_control(text))

    return run_command(command)


def sample(
    loaded: Loaded,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
    seed: int,
) -> str:
    """The prompt and what the model makes of it; it ends early where the model ends a document.

    Raises:
        DataError: the prompt holds a character that the tokenizer lacks.
    """
    tokenizer = loaded.tokenizer
    [ids] = tokenizer.encode([prompt], ["--prompt"])
    start = [tokenizer.bos, *(int(each) for each in ids)]
    generated = list(
        _generate(loaded, start, max_tokens, temperature=temperature, top_k=top_k, seed=seed)
    )
    return tokenizer.decode([*start, *generated])


def _generate(
    loaded: Loaded,
    start: list[int],
    max_tokens: int,
    *,
    temperature: float,
    top_k: int,
    seed: int,
) -> Iterator[int]:
    import torch

    from model.trm import Cache

    sequence = loaded.settings.sequence
    generator = torch.Generator(loaded.device).manual_seed(seed)
    context = start[-sequence:]
    fresh = context
    cache = Cache(sequence)
    for _ in range(max_tokens):
        logits = loaded.model.decode(torch.tensor([fresh], device=loaded.device), cache)[0]
        logits[loaded.tokenizer.vocab_size :] = -torch.inf
        token = _choose(logits, temperature, top_k, generator)
        if token == loaded.tokenizer.bos:
            return
        yield token
        context.append(token)
        fresh = [token]
        if len(context) > sequence:
            # Positions beyond the trained sequence mean nothing to the model: go on from the
            # later half of what there is.
            context = context[-max(1, sequence // 2) :]
            fresh, cache = context, Cache(sequence)


def _choose(
    logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator
) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    weights = (logits / temperature).softmax(dim=-1)
    return int(weights.multinomial(1, generator=generator))


def _check(chosen: argparse.Namespace) -> None:
    if not 1 <= chosen.max_tokens <= MAX_TOKENS:
        raise UsageError(f"--max-tokens lies between 1 and {MAX_TOKENS}")
    if not 0 <= chosen.temperature <= 10:
        raise UsageError("--temperature lies between 0 and 10")
    if chosen.top_k < 0:
        raise UsageError("--top-k cannot be negative")


if __name__ == "__main__":
    sys.exit(main())
