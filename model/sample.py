"""Text from a checkpoint: ``python -m model.sample --checkpoint DIR --prompt TEXT``.

Decodes with a cache of keys and values, and with as many passes as in training.
"""

from __future__ import annotations

import argparse
import sys
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from model.command import run_command
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.settings import CHAT
from trmcloud.core.text import strip_control

if TYPE_CHECKING:
    from model.training.load import LoadedModel

MAX_TOKENS = 100_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.sample",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.sample --checkpoint step-00000120 "
        "--prompt 'def ' --max-tokens 100",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--prompt", default="", help="beginning of the text")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: always the most likely token"
    )
    parser.add_argument("--top-k", type=int, default=50, help="0: all tokens")
    parser.add_argument("--top-p", type=float, default=1.0, help="1: all tokens")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)

    def command() -> None:
        _check(chosen)
        from model.families.one_token import settle_threads
        from model.training.load import load_model

        loaded = load_model(Path(chosen.checkpoint))
        settle_threads(loaded.model)
        text = sample(
            loaded,
            chosen.prompt,
            max_tokens=chosen.max_tokens,
            temperature=chosen.temperature,
            top_k=chosen.top_k,
            top_p=chosen.top_p,
            seed=chosen.seed,
        )
        print(strip_control(text))

    return run_command(command)


def sample(
    loaded: LoadedModel,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float = 1.0,
    seed: int,
) -> str:
    """The prompt and what the model makes of it; it ends early where the model ends a document. Of
    a model trained on conversations: its answer to the prompt.

    Raises:
        DataError: the prompt holds a character that the tokenizer lacks, or is a question that is
            longer than the model has room for.
    """
    from model.data.chat import USER, ChatTokens, render_for_completion
    from model.families.protocol import Sampling
    from model.serving.text import PARTED, TextStream

    tokenizer = loaded.tokenizer
    stop = tokenizer.bos
    is_chat = loaded.manifest.phase == CHAT
    if is_chat:
        start = render_for_completion(tokenizer, [{"role": USER, "content": prompt}], "--prompt")
        stop = ChatTokens.of(tokenizer).assistant_end
    else:
        [ids] = tokenizer.encode([prompt], ["--prompt"])
        start = [tokenizer.bos, *(int(each) for each in ids)]
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        known_ids=tokenizer.vocab_size,
        stop=stop,
    )
    if is_chat:
        answer = TextStream(tokenizer)
        drawn = takewhile(
            lambda token: token != tokenizer.bos, loaded.model.generate(start, sampling)
        )
        return "".join(map(answer.add, drawn)) + answer.end()
    stream = TextStream(tokenizer, tokenizer.bos)
    parted = PARTED if loaded.model.parts else ""
    said = "".join(map(stream.add, loaded.model.generate(start, sampling)))
    return tokenizer.decode(start) + parted + said + stream.end()


def _check(chosen: argparse.Namespace) -> None:
    if not 1 <= chosen.max_tokens <= MAX_TOKENS:
        raise UsageError(f"--max-tokens must be from 1 to {MAX_TOKENS}")
    if not 0 <= chosen.temperature <= 10:
        raise UsageError("--temperature must be from 0 to 10")
    if chosen.top_k < 0:
        raise UsageError("--top-k cannot be negative")
    if not 0 < chosen.top_p <= 1:
        raise UsageError("--top-p must be above 0 and at most 1")


if __name__ == "__main__":
    sys.exit(main())
