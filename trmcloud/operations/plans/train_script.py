"""``plan --hf NAME --write FILE``: a training script of TRL that does what was planned."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from string import Template
from typing import NamedTuple

from trmcloud.core.catalog.providers import direct
from trmcloud.core.errors import UsageError
from trmcloud.core.planner.finetuning import SAVES, is_sharded
from trmcloud.core.text import one_line
from trmcloud.io.files import write_atomic
from trmcloud.operations.plans.finetune_plans import FinetunePlan

_TEMPLATES = Path(__file__).with_name("data")
_PACKAGES = ("trl>=1.16,<2", "transformers>=5.24", "peft>=0.21", "datasets>=4")
_QUANTIZING = "bitsandbytes>=0.46"
_RATES = {"full": "2e-5", "lora": "2e-4", "dpo": "1e-5"}
"""Of the optimizer: TRL's defaults, ten times as large for adapters, as is usual."""
_ROOM = 1.2
"""Of P90's dollars, what is reserved: storage and the end come on top."""
_LOGS = 200
"""Of one training."""
DATA, _OUT = "train.jsonl", "out"
_ADAPTERS = (
    "    peft_config=LoraConfig(\n        r={rank}, lora_alpha={alpha}, "
    'target_modules="all-linear", task_type="CAUSAL_LM"\n    ),\n'
)
_QUANTIZED = (
    "    quantization_config=BitsAndBytesConfig(\n        load_in_4bit=True, "
    'bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16\n    ),\n'
)
_IN_BFLOAT16 = '    model_init_kwargs={"dtype": "bfloat16"},  # the weights that do not change\n'
_SHARDED = "    fsdp=True,  # the weights and their states, shared out over the GPUs\n"
_GATED = ("meta-llama/", "google/gemma")
"""Their weights are downloaded with the token of somebody who has accepted the license."""


class Script(NamedTuple):
    """The files of a training, by path, and the command that launches it."""

    files: dict[Path, str]
    launch: str


def has_script(plan: FinetunePlan) -> bool:
    """Whether there is one: for causal language models, by the methods of ``_RATES``."""
    return plan.how.method in _RATES and not plan.model.is_encoder


def train_script(plan: FinetunePlan, path: Path, typed: str) -> Script:
    """The script at ``path`` for the recommended hardware of ``plan``; ``typed``: the command that
    planned it.

    Raises:
        UsageError: there is no such script for the method.
    """
    how, chosen = plan.how, plan.recommended
    if not has_script(plan) or path.suffix != ".py":
        raise UsageError(
            f"--write does not write {how.method} of {plan.model.kind} to {path.name}",
            next_step=f"--method {', '.join(_RATES)} or qlora, and a name that ends in .py",
        )
    gpus = chosen.offer.gpus
    rows = chosen.batch if how.method != "dpo" else chosen.batch // 2  # pairs
    steps = math.ceil(plan.tokens / (chosen.batch * how.sequence * gpus))
    imports = ["from peft import LoraConfig"] * how.is_frozen
    imports += ["from transformers import BitsAndBytesConfig"] * (how.bits == 4)
    adapters = _ADAPTERS.format(rank=how.rank, alpha=2 * how.rank) if how.is_frozen else ""
    text = Template(
        (_TEMPLATES / f"train_{'dpo' if how.method == 'dpo' else 'sft'}.py.txt").read_text("utf-8")
    ).substitute(
        method=how.title,
        model=json.dumps(plan.name),
        plan=one_line(typed),
        data=DATA,
        out=_OUT,
        imports="".join(f"{line}\n" for line in imports),
        steps=steps,
        tokens=f"{plan.tokens:,}",
        sequence=how.sequence,
        batch=rows,
        rate=_RATES[how.method],
        warmup=max(1, steps // 33),
        log=max(1, steps // _LOGS),
        save=max(1, steps // SAVES),
        more=_IN_BFLOAT16 * how.is_frozen
        + _SHARDED * is_sharded(plan.model, how, gpus, chosen.memory_gb),
        adapters=adapters + _QUANTIZED * (how.bits == 4),
    )
    needs = path.with_name(f"{path.stem}-requirements.txt")
    packages = (*_PACKAGES, *[_QUANTIZING] * (how.bits == 4))
    starts = ["torchrun", "--nproc-per-node", str(gpus)] if gpus > 1 else ["python"]
    budget = float(plan.spec.budget or math.ceil(float(chosen.cost_p90) * _ROOM))
    words = ["trmcloud", "run", chosen.hardware, "--budget", f"{budget:g}"]
    if chosen.offer.provider != direct()[0]:
        words += ["--provider", chosen.offer.provider]
    words += ["--env", "HF_TOKEN"] * plan.name.startswith(_GATED)
    if chosen.offer.spot:
        words += ["--spot", "--bucket", plan.spec.bucket or "s3://BUCKET/PREFIX"]
    words += ["--pip", needs.name, "--checkpoints", _OUT]
    words += ["--resume", shlex.join([*starts, path.name])]  # it finds its last checkpoint itself
    return Script(
        {path: text, needs: "\n".join(packages) + "\n"},
        shlex.join([*words, "--", *starts, path.name]),
    )


def write_script(script: Script) -> None:
    """Write its files, also over those that are there."""
    for path, text in script.files.items():
        write_atomic(path, text)
