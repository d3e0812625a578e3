"""How well fine-tunings of Hugging Face models are predicted: time and memory, row by row."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.row import Row
from trmcloud.core.catalog.hardware import GPUS
from trmcloud.core.planner.finetuning import (
    FACTORS,
    SIGMAS,
    Finetuning,
    Need,
    need_of,
    seconds_per_token,
)
from trmcloud.core.planner.roofline import P90_SIGMAS
from trmcloud.core.spec.hf_models import HfModel, read_config

TABLE = Path(__file__).with_name("finetune.csv")


def _config(layers: int, width: int, heads: int, kv: int, hidden: int, vocab: int) -> HfModel:
    data = {
        "num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": hidden, "vocab_size": vocab,
    }  # fmt: skip
    return read_config(data, "bench")


def _vit(layers: int, width: int, heads: int, hidden: int) -> HfModel:
    return _config(layers, width, heads, heads, hidden, 1000)._replace(mlp_matrices=2, tied=True)


MODELS = {
    "qwen-1.8b": _config(24, 2048, 16, 16, 5504, 151936),
    "qwen-7b": _config(32, 4096, 32, 32, 11008, 151936),
    "qwen-14b": _config(40, 5120, 40, 40, 13696, 152064),
    "qwen-72b": _config(80, 8192, 64, 64, 24576, 152064),
    "llama2-7b": _config(32, 4096, 32, 32, 11008, 32000),
    "llama3-8b": _config(32, 4096, 32, 8, 14336, 128256),
    "llama2-70b": _config(80, 8192, 64, 8, 28672, 32000),
    "llama3.2-3b": _config(28, 3072, 24, 8, 8192, 128256)._replace(tied=True),
    "yi-34b": _config(60, 7168, 56, 8, 20480, 64000),
    "qwen2.5-3b": _config(36, 2048, 16, 2, 11008, 151936),
    "qwen2.5-7b": _config(28, 3584, 28, 4, 18944, 152064),
    "qwen2.5-32b": _config(64, 5120, 40, 8, 27648, 152064),
    "vit-tiny-16": _vit(12, 192, 3, 768),
    "vit-small-16": _vit(12, 384, 6, 1536),
    "vit-base-16": _vit(12, 768, 12, 3072),
    "vit-large-16": _vit(24, 1024, 16, 4096),
    "vit-huge-14": _vit(32, 1280, 16, 5120),
    "vit-g-14": _vit(40, 1408, 16, 6144),
}


_HEAD = """# Fine-tunings of Hugging Face models: how far off `plan --hf` is

`PAGE=docs/bench/finetune.md python -m bench finetune` writes this page from `bench/finetune.csv`,
which names each row's source. The model is the one that plans: forward, backward and checkpointing
of an eager trainer on the GPU's roofline and what its host adds, times one factor for each method,
which each source is judged without; torchtune's compiled training of all weights is one row, which
is judged without any. `transformers` trains all weights with Transformers or DeepSpeed, eagerly.
`vision` trains all weights of a vision transformer; the tokens are those of its images. GRPO has
one source alone, and its lengths are taken: that factor is its own. Of memory nothing was fitted.

```
"""


class Judged(NamedTuple):
    """A published row beside what is predicted: logarithms of predicted ÷ observed."""

    name: str
    source: str
    kind: str
    modelled: float
    """Of time, without the method's factor."""
    need: Need
    peak_gb: float | None

    @property
    def memory(self) -> float:
        assert self.peak_gb is not None
        return math.log(self.need.expected / self.peak_gb)

    @property
    def holds(self) -> bool:
        assert self.peak_gb is not None
        return self.need.least <= self.peak_gb <= self.need.most


def judged() -> list[Judged]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = []
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        how = Finetuning(
            row["method"], int(row["sequence"]), int(row["batch"]), int(row["rank"]),
            int(row["bits"]), completion=int(row["sequence"]) // 2,
            passes=int(row["passes"]), is_checkpointed=row["checkpointing"] == "yes",
            is_compiled=row["compiled"] == "yes",
        )  # fmt: skip
        model, sku, gpus = MODELS[row["model"]], row["gpu"], int(row["gpus"])
        seconds = seconds_per_token(model, how, sku, gpus)
        need = need_of(model, how, gpus, GPUS[sku].memory_gb)
        name = f"{row['model']} {how.kind} {how.sequence} {gpus}x{sku}"
        logarithm = math.log(seconds * float(row["tok_s_per_gpu"]))
        found.append(
            Judged(
                name, row["source"], how.kind, logarithm, need, float(row["peak_gb"] or 0) or None
            )
        )
    return found


def factors(rows: list[Judged]) -> dict[str, float]:
    """By kind: observed ÷ modelled time, each source counted once."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault(row.kind, {}).setdefault(row.source, []).append(row.modelled)
    return {
        kind: math.exp(-float(np.mean([np.mean(some) for some in sources.values()])))
        for kind, sources in found.items()
    }


def run() -> list[Row | str]:
    rows = judged()
    lines: list[Row | str] = [
        "each source left out of its method's factor (+ is too slow, too much)"
    ]
    errors: dict[str, list[float]] = {}
    for row in rows:
        others = factors([each for each in rows if each.source != row.source])
        # GRPO has one source, and is judged by the factor that it gave itself.
        own = FACTORS[row.kind] if row.kind == "grpo" else 1.0
        error = row.modelled + math.log(others.get(row.kind, own))
        errors.setdefault(row.kind, []).append(error)
        told = f"  {row.name:<38}time {math.expm1(error):+6.0%}   "
        if row.peak_gb is not None:
            span = f"({row.need.least:.0f}–{row.need.most:.0f} GB, {row.peak_gb:g})"
            told += f"memory {math.expm1(row.memory):+5.0%} {span}"
        lines.append(f"{told}  {row.source}")
    lines += [f"  {kind}: factor {factor:.3f}" for kind, factor in factors(rows).items()]
    kinds = [("all but grpo", [kind for kind in errors if kind != "grpo"], 0.15)]
    kinds += [(kind, [kind], 0.35) for kind in errors]
    for name, some, limit in kinds:
        size = [abs(math.expm1(error)) for kind in some for error in errors[kind]]
        inside = [abs(e) <= P90_SIGMAS * SIGMAS[kind] for kind in some for e in errors[kind]]
        sources = len({r.source for r in rows if r.kind in some})
        what = f"{len(size)} rows of {sources} sources, P90 {np.quantile(size, 0.9):.2f}"
        median, held = float(np.median(size)), sum(inside) / len(inside)
        lines.append(Row(f"{name}: time, median error", median, limit, "lower", "", what))
        lines.append(Row(f"{name}: time in range", held, 0.75, "higher", "", ""))
    measured = [row for row in rows if row.peak_gb is not None]
    size = [abs(math.expm1(row.memory)) for row in measured]
    what = f"{len(measured)} rows, P90 {np.quantile(size, 0.9):.2f}"
    lines.append(Row("memory, median error", float(np.median(size)), 0.2, "lower", "", what))
    held = sum(row.holds for row in measured) / len(measured)
    lines.append(Row("memory in range", held, 0.8, "higher", "", ""))
    stale = max(abs(math.log(FACTORS[k] / f)) for k, f in factors(rows).items())
    lines.append(Row("factors, shipped against fitted", stale, 0.02, "lower", "", ""))
    if page := os.environ.get("PAGE"):
        Path(page).write_text(_HEAD + "\n".join(map(str, lines)) + "\n```\n", encoding="utf-8")
    return lines
