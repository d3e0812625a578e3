"""Exports by the formulas of other software, and by transformers itself where it is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from model import export
from model.data.tokenizers import BpeTokenizer, load_tokenizer, train_tokenizer
from model.exporting import gguf_file, hf
from model.exporting import tokenizer_files as tf
from model.exporting.folder import write_weights
from model.exporting.layouts import layout_of
from model.exporting.verifying import trainer_logits
from model.families import registry
from model.training.load import load_model
from tests.model.exports import (
    ARCHITECTURES,
    CUSTOM,
    GENERATED,
    GGUF,
    SHAPES,
    TEXT,
    make_checkpoint,
    settings_of_shape,
)
from tests.settings import changed
from trmcloud.core.errors import NotSupported
from trmcloud.io.hashing import file_sha256

ROOT = Path(__file__).parents[2]
OWN = ROOT / ".venv-own"
IDS = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A factory: the exported folder of a shape, and the checkpoint that it was made of."""

    def make(name: str, **changes: Any) -> tuple[Path, Path]:
        folder = make_checkpoint(tmp_path / "made", changed(settings_of_shape(name), **changes))
        into = tmp_path / "exported"
        assert export.main(["--checkpoint", str(folder), "--into", str(into)]) == 0
        capsys.readouterr()
        return into, folder

    return make


# -- by the formulas of the architectures --------------------------------------------------------


def _rms(h: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * h / (h.square().mean(-1, keepdim=True) + eps).sqrt()


def _heads(h: Tensor, matrix: Tensor, count: int) -> Tensor:
    return (h @ matrix.T).unflatten(-1, (count, -1)).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, with as many heads of keys as of queries."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def _turned(h: Tensor, base: float) -> Tensor:
    """Llama's rotation: (a, b) → (a·cos − b·sin, b·cos + a·sin)."""
    half = h.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(h.shape[-2], dtype=torch.float64)[:, None] * rates
    a, b = h.split(half, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def llama(config: dict[str, Any], held: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Llama's logits, or Qwen3's where queries and keys have norms."""
    eps, base = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
    heads, served = config["num_attention_heads"], config["num_key_value_heads"]
    h = held["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): each
            for name, each in held.items()
        }
        x = _rms(h, at["input_layernorm"], eps)
        q = _heads(x, at["self_attn.q_proj"], heads)
        k, v = (_heads(x, at[f"self_attn.{name}_proj"], served) for name in "kv")
        if "self_attn.q_norm" in at:
            q, k = _rms(q, at["self_attn.q_norm"], eps), _rms(k, at["self_attn.k_norm"], eps)
        k, v = (each.repeat_interleave(heads // served, 1) for each in (_turned(k, base), v))
        h = h + _attend(_turned(q, base), k, v) @ at["self_attn.o_proj"].T
        x = _rms(h, at["post_attention_layernorm"], eps)
        inner = F.silu(x @ at["mlp.gate_proj"].T) * (x @ at["mlp.up_proj"].T)
        h = h + inner @ at["mlp.down_proj"].T
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return _rms(h, held["model.norm.weight"], eps) @ held[f"{head}.weight"].T


def gpt2(config: dict[str, Any], held: dict[str, Tensor], ids: Tensor) -> Tensor:
    """GPT-2's logits."""
    width, heads = config["n_embd"], config["n_head"]
    approximate = {"gelu_new": "tanh", "gelu": "none"}[config["activation_function"]]

    def norm(name: str, h: Tensor) -> Tensor:
        return F.layer_norm(
            h, (width,), held[f"{name}.weight"], held[f"{name}.bias"], config["layer_norm_epsilon"]
        )

    def product(name: str, h: Tensor) -> Tensor:
        return h @ held[f"{name}.weight"] + held[f"{name}.bias"]

    h = held["transformer.wte.weight"][ids] + held["transformer.wpe.weight"][: ids.shape[1]]
    for layer in range(config["n_layer"]):
        at = f"transformer.h.{layer}"
        qkv = product(f"{at}.attn.c_attn", norm(f"{at}.ln_1", h)).split(width, -1)
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in qkv)
        h = h + product(f"{at}.attn.c_proj", _attend(q, k, v))
        inner = product(f"{at}.mlp.c_fc", norm(f"{at}.ln_2", h))
        h = h + product(f"{at}.mlp.c_proj", F.gelu(inner, approximate=approximate))
    head = "transformer.wte" if config["tie_word_embeddings"] else "lm_head"
    return norm("transformer.ln_f", h) @ held[f"{head}.weight"].T


FORMULAS = {
    "llama": llama, "llama-tied": llama, "llama-grouped": llama, "llama-plain": llama,
    "qwen3": llama, "gpt2": gpt2, "gpt2-untied": gpt2,
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_the_written_tensors_give_the_trainers_logits(
    name: str, exported: Callable[..., tuple[Path, Path]]
) -> None:
    into, checkpoint = exported(name)
    config = json.loads((into / "config.json").read_text())
    held = {key: each.double() for key, each in load_file(into / "model.safetensors").items()}
    theirs = FORMULAS[name](config, held, IDS)
    ours = trainer_logits(load_model(checkpoint), IDS)
    assert config["architectures"] == [ARCHITECTURES[name.partition("-")[0]]]
    assert (theirs - ours.double()).abs().max() < 1e-4
    assert ours.abs().max() > 1.0  # they say something


def test_a_tied_head_stays_tied_unless_the_embedding_is_normalised() -> None:
    assert layout_of(settings_of_shape("llama-tied")).config["tie_word_embeddings"] is False
    assert layout_of(settings_of_shape("llama-plain")).config["tie_word_embeddings"] is True


def test_the_folder_has_all_that_transformers_reads(
    exported: Callable[..., tuple[Path, Path]],
) -> None:
    into, checkpoint = exported("llama")
    assert {path.name for path in into.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors", "README.md"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    }
    assert list(into.parent.glob(".exported*")) == []
    card = (into / "README.md").read_text()
    assert file_sha256(checkpoint / "weights.safetensors") in card
    assert "1.2500" in card


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nanochat-2026": ({"family": "nanochat", "architecture": "nanochat-2026"}, "nanochat-2026"),
    "values": ({"family": "nanochat", "value_embeddings": True}, "value embeddings"),
    "windows": ({"family": "gpt", "windows": "SL"}, "windows"),
    "cap": ({"family": "gpt", "logit_cap": 15.0}, "logit_cap=15"),
    "gpt2-norm": ({"family": "gpt", "norm": "layer", "positions": "learned"}, "norm_embedding"),
    "layer-rope": ({"family": "gpt", "norm": "layer"}, "norm=layer"),
    "trm": ({"family": "trm"}, "trm"),
    "bd3lm": ({"family": "bd3lm"}, "bd3lm"),
    "hdp": ({"family": "hdp"}, "hdp"),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_a_shape_that_transformers_does_not_know_is_refused_with_the_reason(
    changes: dict[str, Any], said: str
) -> None:
    settings = changed(settings_of_shape("llama"), **changes)
    with pytest.raises(NotSupported, match=said) as refused:
        layout_of(settings)
    assert "--custom-code" in refused.value.next_step


def test_code_of_its_own_is_for_those_that_draw_token_by_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llama", "nanochat-2026", "trm"):
        folder, into = make_checkpoint(tmp_path / name, settings_of_shape(name)), tmp_path / "into"
        words = ["--checkpoint", str(folder), "--into", str(into), "--custom-code"]
        assert export.main(words) == 0
        config = json.loads((into / "config.json").read_text())
        has_code = name != "llama"
        assert ("auto_map" in config) is (into / "modeling_trmcloud.py").exists() is has_code
        shutil.rmtree(into)
    settings = changed(settings_of_shape("llama"), family="bd3lm")
    folder = make_checkpoint(tmp_path / "bd3lm", settings)
    assert export.main(["--checkpoint", str(folder), "--into", str(into), "--custom-code"]) == 12
    assert "token by token" in capsys.readouterr().err
    assert not into.exists()


def test_weights_beyond_the_most_bytes_are_shared_out_with_an_index(tmp_path: Path) -> None:
    tensors = {f"t{number}": torch.full((10,), float(number)) for number in range(5)}
    write_weights(tmp_path, tensors, most_bytes=80)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 200
    assert sorted(set(index["weight_map"].values())) == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


# -- tokenizers -----------------------------------------------------------------------------------


def _chat_tokenizer() -> BpeTokenizer:
    from tokenizers import AddedToken, Tokenizer

    inner = Tokenizer.from_str(train_tokenizer("bpe", [TEXT], 300).to_json())
    parts = ("<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>")
    inner.add_special_tokens([AddedToken(each, special=True) for each in (*tf.CHAT_TOKENS, *parts)])
    return BpeTokenizer(inner)


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "3 × 4?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I compute. "},
            {"type": "python", "text": "3 * 4"},
            {"type": "python_output", "text": "12"},
            {"type": "text", "text": "It is 12."},
        ],
    },
    {"role": "user", "content": "Thanks"},
]
RENDERED = (
    "<|bos|><|user_start|>Be brief.\n\n3 × 4?<|user_end|><|assistant_start|>I compute. "
    "<|python_start|>3 * 4<|python_end|><|output_start|>12<|output_end|>It is 12."
    "<|assistant_end|><|user_start|>Thanks<|user_end|><|assistant_start|>"
)


def test_a_model_of_conversations_brings_its_template() -> None:
    tokenizer = _chat_tokenizer()
    config = tf.tokenizer_config(tokenizer, 128, chats=True)
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        config["chat_template"]
    )
    text = template.render(messages=MESSAGES, add_generation_prompt=True, bos_token="<|bos|>")
    assert text == RENDERED
    assert config["eos_token"] == "<|assistant_end|>"
    generation = tf.generation_config(tokenizer, 320, 128, chats=True)
    assert generation["eos_token_id"] == [0, tf.special_ids(tokenizer)[tf.ASSISTANT_END]]
    assert generation["suppress_tokens"] == list(range(tokenizer.vocab_size, 320))


@pytest.mark.parametrize("has_tokens", [False, True])
def test_before_a_chat_phase_there_is_none(has_tokens: bool) -> None:
    tokenizer = _chat_tokenizer() if has_tokens else train_tokenizer("bpe", [TEXT], 300)
    config = tf.tokenizer_config(tokenizer, 128, chats=False)
    assert "chat_template" not in config
    assert config["eos_token"] == "<|bos|>"


@pytest.mark.parametrize("kind", ["bpe", "char"])
def test_the_written_tokenizer_gives_the_same_ids_behind_the_special_one(kind: str) -> None:
    from tokenizers import Tokenizer

    ours = train_tokenizer(kind, [TEXT], 320)
    theirs = Tokenizer.from_str(tf.tokenizer_json(ours))
    [ids] = ours.encode([TEXT], ["here"])
    assert theirs.encode(TEXT).ids == [ours.bos, *map(int, ids)]
    assert theirs.decode([int(each) for each in ids]) == TEXT
    assert theirs.get_vocab_size() == ours.vocab_size


def test_a_character_that_the_vocabulary_lacks_is_an_error_there_too() -> None:
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(tf.tokenizer_json(train_tokenizer("char", ["abc"], 10)))
    with pytest.raises(Exception, match="UNK"):
        theirs.encode("abz")


# -- wrong input ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), settings_of_shape("llama"))


@pytest.fixture
def refused(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The error of an export to ``into`` that ends with a code, of which nothing was written."""

    def export_fails(code: int, *more: str, folder: Path = plain) -> dict[str, Any]:
        into = tmp_path / "into"
        before = sorted(tmp_path.iterdir())
        assert export.main(["--checkpoint", str(folder), "--into", str(into), *more]) == code
        assert sorted(tmp_path.iterdir()) == before
        line, said = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        made: dict[str, Any] = json.loads(said)
        return made

    return export_fails


def _rewritten(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change a checkpoint's tensors, and the hash in its manifest with them."""
    path = folder / "weights.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["files"]:
        if file["name"] == path.name:
            file |= {"size_bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held.pop("blocks.1.mix.weight"), "blocks.1.mix.weight is missing"),
        (lambda held: held.update(extra=torch.zeros(2)), "extra is 2, not missing"),
        (
            lambda held: held.update({"head.weight": torch.zeros(3, 64)}),
            "head.weight is 3 × 64, not 320 × 64",
        ),
    ],
    ids=["missing", "extra", "shape"],
)
def test_a_checkpoint_of_other_tensors_is_refused_by_name(
    change: Any, said: str, tmp_path: Path, plain: Path, refused: Callable[..., Any]
) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "changed"))
    _rewritten(folder, change)
    assert said in refused(10, folder=folder)["what"]


def test_a_tokenizer_larger_than_the_model_is_refused(
    tmp_path: Path, refused: Callable[..., Any]
) -> None:
    large = train_tokenizer("char", [], 500, "".join(map(chr, range(0x4E00, 0x4E00 + 400))))
    folder = make_checkpoint(tmp_path / "made", settings_of_shape("llama"), large)
    assert "401 ids, but its model 320" in refused(10, folder=folder)["what"]


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_stands_at_the_target_stays(
    there: str, tmp_path: Path, plain: Path, refused: Callable[..., Any]
) -> None:
    into = tmp_path / "into"
    if there == "folder":
        into.mkdir()
        (into / "mine.txt").write_text("mine")
    elif there == "file":
        into.write_text("mine")
    else:
        into.symlink_to(plain)
    assert "not empty" in refused(8)["what"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "0.0 MB are free" in refused(5)["what"]


def test_a_disk_that_fills_meanwhile_is_one_line_and_leaves_nothing(
    refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    def write_tokenizer(making: Path, loaded: Any) -> None:
        (making / "README.md").symlink_to("/dev/full")

    monkeypatch.setattr(hf, "write_tokenizer", write_tokenizer)
    assert "the disk is full" in refused(5)["what"]


def test_an_about_file_that_is_none_is_refused(tmp_path: Path, refused: Callable[..., Any]) -> None:
    (tmp_path / "about.json").write_text("[]")
    assert "--about" in refused(2, "--about", str(tmp_path / "about.json"))["what"]


# -- by transformers itself -----------------------------------------------------------------------

with_transformers = pytest.mark.skipif(
    not list(OWN.glob("lib/*/site-packages/transformers")),
    reason="transformers is not here: make own",
)


@with_transformers
@pytest.mark.slow
def test_transformers_computes_the_trainers_logits(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(OWN / "bin" / "python"), "-m", "tests.model.exports", str(tmp_path)], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    *said, several, files, mistaken = [json.loads(line) for line in done.stdout.splitlines()]
    assert several["verified_by"].startswith("transformers ")
    assert files["files"] > 3
    rows = [row for row in said if "folder" in row]
    assert [row["generated"] for row in said if "folder" not in row] == [True] * len(GENERATED)
    assert [Path(row["folder"]).parent.name for row in rows] == [*SHAPES, *CUSTOM]
    for name, row in zip((*SHAPES, *CUSTOM), rows, strict=True):
        known = ARCHITECTURES[name.partition("-")[0]] if name in SHAPES else "TrmcloudForCausalLM"
        assert row["architecture"] == known
        assert row["verified_by"].startswith("transformers ")
        assert row["largest_difference"] <= 1e-4
    assert mistaken == {"code": 10, "written": False}
    assert "its logits differ from the trainer's by up to" in done.stderr


# -- GGUF -----------------------------------------------------------------------------------------


def test_llama_cpp_gets_neighbours_where_transformers_has_halves() -> None:
    rows = torch.arange(16.0)[:, None]
    made = gguf_file._neighbours(rows, 8)[:, 0].tolist()
    assert made == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


@pytest.mark.parametrize("name", GGUF)
def test_each_tensor_has_a_name_of_llama_cpp(name: str) -> None:
    settings = settings_of_shape(name)
    model = registry.build(settings, torch.device("cpu"))
    layout = layout_of(settings)
    theirs = layout.convert({key: each.detach() for key, each in model.state_dict().items()})
    made = gguf_file.named_tensors(layout, theirs)
    assert len(made) == len(theirs)
    assert made["blk.2.ffn_down.weight"].shape == (64, 96)
    assert made["blk.0.ffn_up.weight"].shape == (96, 64)
    assert made["token_embd.weight"].shape == (320, 64)


REFUSED_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "nanochat": ({"mlp": "relu2", "qk_norm": True}, "NanoChatForCausalLM with relu2"),
    "gelu": ({"norm": "layer", "positions": "learned", "norm_embedding": False, "mlp": "gelu"},
             "GPT2LMHeadModel with gelu"),
    "char": ({"tokenizer": "char"}, "no tokenizer of one token a character"),
    "trm": ({"family": "trm"}, "what trm does"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "said"), REFUSED_GGUF.values(), ids=REFUSED_GGUF)
def test_what_llama_cpp_does_not_know_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path, refused: Callable[..., Any]
) -> None:
    folder = make_checkpoint(tmp_path / "made", changed(settings_of_shape("llama"), **changes))
    told = refused(12, "--to", "gguf", folder=folder)
    assert said in told["what"]
    assert told["next_step"].startswith("--to hf")


def test_a_tokenizer_of_another_split_is_refused(
    tmp_path: Path, refused: Callable[..., Any]
) -> None:
    content = json.loads(train_tokenizer("bpe", [TEXT], 300).to_json())
    content["pre_tokenizer"]["use_regex"] = False
    own = load_tokenizer(json.dumps(content), "here")
    folder = make_checkpoint(tmp_path / "made", settings_of_shape("llama"), own)
    assert "split text" in refused(12, "--to", "gguf", folder=folder)["what"]


@pytest.mark.skipif(find_spec("gguf") is not None, reason="gguf is installed here")
def test_without_its_package_the_extra_is_named(refused: Callable[..., Any]) -> None:
    assert "'gguf' extra" in refused(6, "--to", "gguf")["what"]


@pytest.mark.more
@pytest.mark.skipif(
    not list((ROOT / ".venv-gguf").glob("lib/*/site-packages/beside.pth")),
    reason="llama.cpp is not here: make gguf",
)
def test_llama_cpp_computes_the_trainers_logits(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / ".venv-gguf/bin/python"), "-m", "tests.model.exports", "--gguf", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *rows, mistaken = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 2 * len(GGUF)
    for row in rows:
        file = Path(row["folder"])
        most = gguf_file.most_difference(file.parent.parent.name, file.parent.name)
        print(f"{row['architecture']}, {file.parent.name}: {row['largest_difference']:.2g}")
        assert row["verified_by"].startswith("llama-cpp-python ")
        assert row["largest_difference"] <= most
    assert mistaken == {"code": 10, "written": False}
    assert "llama.cpp's logits differ" in done.stderr
