"""An exported folder, opened by transformers itself and compared with the trainer's model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.data.tokenizers import TextTokenizer
from model.training.load import LoadedModel
from trmcloud.core.errors import CheckpointError

MOST_DIFFERENCE = 1e-4
"""Between two logits in float32."""
_ROWS, _MOST_LOGITS = 2, 1 << 25
TEXTS = ("", "First Citizen:\nSpeak.", "def f(x):\n    return x  # é 漢字 🙂\n", "a  b\t\tc\n\n\n")


@dataclass(frozen=True)
class Verified:
    """The outcome of a comparison of logits."""

    by: str
    """The software that opened the export, and its version."""
    difference: float
    """The largest one between two logits."""
    tokens: int
    """Of how many tokens."""


def test_tokens(loaded: LoadedModel) -> Tensor:
    """(rows, T) ids, of a whole sequence where the logits of one fit in memory."""
    settings = loaded.settings
    length = max(1, min(settings.sequence, _MOST_LOGITS // (_ROWS * settings.vocab_size)))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(loaded.tokenizer.vocab_size, (_ROWS, length), generator=generator)
    ids[:, 0] = loaded.tokenizer.bos
    return ids


def trainer_logits(loaded: LoadedModel, ids: Tensor) -> Tensor:
    """The logits (B, T, V) of the trainer's own model, on the CPU."""
    model: Any = loaded.model
    with torch.inference_mode():
        logits: Tensor = model.logits(ids.to(loaded.device)).float().cpu()
    return logits


def verify(folder: Path, loaded: LoadedModel, *, custom_code: bool = False) -> Verified | None:
    """Compare the logits and ids of an exported folder with the trainer's; None: transformers is
    not installed.

    Raises:
        CheckpointError: they differ, or transformers cannot open the folder.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # every file is in the folder
    with tempfile.TemporaryDirectory() as modules:
        os.environ.setdefault("HF_MODULES_CACHE", modules)
        try:
            import transformers
        except ImportError:
            return None
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            model, missing = _open(transformers, folder, custom_code=custom_code)
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=custom_code
            )
        except Exception as error:
            raise _not_verified(f"transformers cannot open it: {_first_line(error)}") from None
    if missing:
        raise _not_verified(f"transformers finds no tensor for {missing[0]}")
    _compare_ids(tokenizer, loaded.tokenizer)
    ids = test_tokens(loaded)
    with torch.inference_mode():
        theirs = model(input_ids=ids, use_cache=False).logits.float()
    difference = float((theirs - trainer_logits(loaded, ids)).abs().max())
    if not difference <= MOST_DIFFERENCE:
        raise _not_verified(
            f"its logits differ from the trainer's by up to {difference:.2g}, and "
            f"{MOST_DIFFERENCE:g} is allowed"
        )
    return Verified(f"transformers {transformers.__version__}", difference, ids.numel())


def _open(transformers: Any, folder: Path, *, custom_code: bool) -> tuple[Any, Sequence[str]]:
    """The model in float32, and the names of tensors that it has and the folder has not."""
    major, minor = map(int, transformers.__version__.split(".")[:2])
    dtype = "dtype" if (major, minor) >= (4, 56) else "torch_dtype"
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        trust_remote_code=custom_code,
        output_loading_info=True,
        **{dtype: torch.float32},
    )
    names = (*told["missing_keys"], *told["unexpected_keys"], *told["mismatched_keys"])
    return model.eval(), [str(each) for each in names]


def _compare_ids(theirs: Any, ours: TextTokenizer) -> None:
    if ours.kind == "char":
        texts = [ours.decode(range(ours.vocab_size)), ours.decode([0, 0, ours.vocab_size - 2])]
    else:
        texts = list(TEXTS)
    for text in texts:
        [wanted] = ours.encode([text], ["the test text"])
        ids = [int(each) for each in theirs(text)["input_ids"]]
        if ids != [ours.bos, *map(int, wanted)]:
            raise _not_verified(f"its tokenizer gives other ids for {text[:40]!r}")
        if (back := theirs.decode(ids, skip_special_tokens=True)) != text:
            raise _not_verified(f"its tokenizer makes {back[:40]!r} of the ids of {text[:40]!r}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _not_verified(why: str) -> CheckpointError:
    return CheckpointError(
        f"the export does not compute what the checkpoint does: {why}",
        next_step="nothing was written; please report this with the settings in manifest.json",
    )
