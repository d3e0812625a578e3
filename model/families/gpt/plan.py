"""What a plan needs to know of GPT-2-like transformers: their settings, and a guide's claims."""

from __future__ import annotations

from typing import ClassVar, Mapping

from trmcloud.core.spec.dense import DenseSettings
from trmcloud.core.spec.guides import Guide, Target
from trmcloud.core.values import dataclass

_GPT350M = Guide(
    said=(
        ("700,000 tokens/s on one H100", "172 % of its dense bf16 peak; 188,000 were measured"),
        ("3.78B tokens in 1.5 h", "about 1.0B at the measured throughput"),
    ),
    target=Target(
        3.0781,
        1.5,
        "openwebtext",
        "gpt2",
        (
            "700,000 to 900,000 tokens/s could not be: 2.43 GFLOP a token make 172 to 221 % of an "
            "H100's dense bf16 peak, and 110 % of its FP8 peak at 900,000",
            "188,000 tokens/s were measured elsewhere: 1.5 h hold about 1.0B tokens, not 3.78B",
        ),
    ),
)


@dataclass(frozen=True)
class Settings(DenseSettings):
    norm_embedding: bool = True
    """The embedding is normalised before the first block; false: it is not, as in GPT-2."""

    shape_keys: ClassVar[tuple[str, ...]] = (*DenseSettings.shape_keys, "norm_embedding")
    decisive: ClassVar[tuple[str, ...]] = (*DenseSettings.decisive, "norm_embedding")
    guides: ClassVar[Mapping[str, Guide]] = {"gpt350m": _GPT350M}
    reached: ClassVar[Mapping[str, str]] = {"shakespeare": "1.57 nats a character (ours)"}
