"""Models that were trained by trmcloud, for inference: a dense transformer, and TRM.

Needs torch and transformers alone. The tensors have the names that the trainer gives them, and
``config.json`` says which of the known parts a model is made of. Nothing is cached from one token
to the next: a text of T tokens is computed whole for each one that is added.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

EPS = 1e-6


class TrmcloudConfig(PretrainedConfig):
    model_type = "trmcloud"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "max_position_embeddings": "sequence",
    }


def rms(h):
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS)


def layer(h):
    return F.layer_norm(h, (h.shape[-1],), eps=EPS)


def turned(h, base):
    """Rotary positions of h (B, heads, T, head_dim): (a, b) → (a·cos + b·sin, b·cos − a·sin)."""
    half = h.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=h.device, dtype=torch.float32) / half)
    places = torch.arange(h.shape[-2], device=h.device, dtype=torch.float32)
    angles = places[:, None] * rates
    cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
    a, b = h.split(half, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


def linear(inputs, rows):
    return nn.Linear(inputs, rows, bias=False)


class DenseBlock(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.config, self.window = config, config.windows[number]
        width, head_dim = config.width, config.head_dim
        self.qkv = linear(width, (config.heads + 2 * config.kv_heads) * head_dim)
        self.mix = linear(width, width)
        self.up = linear(width, config.hidden * (2 if config.mlp == "swiglu" else 1))
        self.down = linear(config.hidden, width)
        self.value_gate = None
        if number in config.value_layers:
            self.value_gate = linear(config.gate_inputs, config.kv_heads)

    def forward(self, h, norm, values):
        h = h + self.attend(norm(h), norm, values)
        return h + self.down(self.activated(self.up(norm(h))))

    def attend(self, h, norm, values):
        config = self.config
        heads, served = config.heads, config.kv_heads
        qkv = self.qkv(h).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)
        q, k, v = qkv.split((heads, served, served), dim=1)
        if config.positions == "rope":
            q, k = turned(q, config.rope_base), turned(k, config.rope_base)
        if config.qk_norm:
            q, k = norm(q) * config.qk_scale, norm(k) * config.qk_scale
        if self.value_gate is not None:
            gate = config.gate_most * torch.sigmoid(self.value_gate(h[..., : config.gate_inputs]))
            more = values.unflatten(-1, (served, -1)).transpose(1, 2)
            v = v + gate.transpose(1, 2).unsqueeze(-1) * more
        k, v = (each.repeat_interleave(heads // served, dim=1) for each in (k, v))
        mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).tril()
        if self.window:
            mask = mask.triu(1 - self.window)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.mix(mixed.transpose(1, 2).flatten(2))

    def activated(self, inner):
        if self.config.mlp == "swiglu":
            gate, value = inner.chunk(2, dim=-1)
            return F.silu(gate) * value
        if self.config.mlp == "relu2":
            return F.relu(inner).square()
        return F.gelu(inner, approximate="tanh" if self.config.mlp == "gelu-tanh" else "none")


class TrmBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.head_dim = config.width, config.head_dim
        self.query, self.key, self.value, self.mix = (linear(width, width) for _ in range(4))
        self.gate, self.up = linear(width, 4 * width), linear(width, 4 * width)
        self.down = linear(4 * width, width)

    def forward(self, h):
        h = rms(h)
        parts = (each(h).unflatten(-1, (-1, self.head_dim)) for each in self.parts())
        q, k, v = (each.transpose(1, 2) for each in parts)
        q, k = rms(turned(q, 1e4)), rms(turned(k, 1e4))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.mix(mixed.transpose(1, 2).flatten(2))
        inner = rms(h)
        return h + self.down(F.silu(self.gate(inner)) * self.up(inner))

    def parts(self):
        return self.query, self.key, self.value


class TrmcloudForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = TrmcloudConfig
    _supports_sdpa = True
    _no_split_modules = ("DenseBlock", "TrmBlock")

    def __init__(self, config):
        super().__init__(config)
        self.norm = layer if config.norm == "layer" else rms
        width, ids = config.width, config.vocab_size
        self.embedding = nn.Embedding(ids, width)
        self.positions = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.sequence, width)
        if config.kind == "trm":
            self.blocks = nn.ModuleList(TrmBlock(config) for _ in range(config.blocks))
        else:
            self.blocks = nn.ModuleList(DenseBlock(config, each) for each in range(config.depth))
            served = config.kv_heads * config.head_dim
            self.values = nn.ModuleDict(
                {str(each): nn.Embedding(ids, served) for each in config.value_layers}
            )
        if config.smear_inputs:
            self.keeps = nn.Parameter(torch.ones(config.depth))
            self.mixes = nn.Parameter(torch.zeros(config.depth))
            self.smear_gate = linear(config.smear_inputs, 1)
            self.smear = nn.Parameter(torch.zeros(1))
            self.backout = nn.Parameter(torch.zeros(1))
        self.head = None if config.tied else linear(width, ids)
        self.post_init()

    def _init_weights(self, module):
        """Every weight is in the folder."""

    def get_input_embeddings(self):
        return self.embedding

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **given):
        return {"input_ids": input_ids}

    def forward(self, input_ids, attention_mask=None, labels=None, **given):
        """Logits (B, T, V). Rows are to be of one length: ``attention_mask`` is not looked at."""
        state = self.trm(input_ids) if self.config.kind == "trm" else self.dense(input_ids)
        rows = self.embedding.weight if self.head is None else self.head.weight
        logits = F.linear(self.norm(state), rows).float()
        cap = self.config.logit_cap
        if cap:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def dense(self, ids):
        config, h = self.config, self.embedding(ids)
        if self.positions is not None:
            h = h + self.positions.weight[: ids.shape[1]]
        if config.norm_embedding:
            h = self.norm(h)
        if config.smear_inputs:
            gate = torch.sigmoid(self.smear_gate(h[:, 1:, : config.smear_inputs]))
            h = torch.cat((h[:, :1], h[:, 1:] + self.smear * gate * h[:, :-1]), dim=1)
        start = middle = h
        for number, block in enumerate(self.blocks):
            if config.smear_inputs:
                h = self.keeps[number] * h + self.mixes[number] * start
            key = str(number)
            h = block(h, self.norm, self.values[key](ids) if key in self.values else None)
            if number == config.depth // 2:
                middle = h
        return h - self.backout * middle if config.smear_inputs else h

    def trm(self, ids):
        config = self.config
        x = y = rms(self.embedding(ids))
        z = torch.zeros_like(x)
        blocks = iter(self.blocks)
        for _ in range(config.supervision_steps):
            for number in range(config.depth):
                for loop in range(config.loops + 1):
                    block = next(blocks) if config.control else self.blocks[number]
                    if config.control:
                        y = y + block(y)
                    elif loop < config.loops:
                        z = z + block(x + y + z)
                    else:
                        y = y + block(y + z)
        return y
