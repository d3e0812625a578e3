"""The effect of opening a file, by its bytes; files as torch, NumPy and pickle write them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import random
import resource
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_safetensors
from safetensors.torch import save_file

from trmcloud.operations.checkpoints.opening import Effect, opening_of


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch opened",)


def pickled(protocol: int = 4) -> bytes:
    return pickle.dumps({"model": Runs(), "step": 3}, protocol)


def zipped(**members: bytes) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return into.getvalue()


def tarred(content: bytes) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        member = tarfile.TarInfo("weights")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return into.getvalue()


def tensors(tmp_path: Path) -> bytes:
    path = tmp_path / "made"
    whole = {
        "a": torch.zeros(3, 4),
        "b": torch.zeros(2, dtype=torch.bfloat16),
        "c": torch.zeros(2, dtype=torch.float8_e4m3fn),
        "one": torch.tensor(1.0),
        "none": torch.zeros(0, 5),
    }
    save_file(whole, path, metadata={"format": "pt"})
    return path.read_bytes()


def array(value: Any) -> bytes:
    into = io.BytesIO()
    np.save(into, value, allow_pickle=True)
    return into.getvalue()


def arrays(*, packed: bool = False, **values: Any) -> bytes:
    into = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(into, **values)
    return into.getvalue()


def judged(tmp_path: Path, content: bytes, name: str = "model") -> Effect:
    path = tmp_path / name
    path.write_bytes(content)
    found = opening_of(path).effect
    path.unlink()
    return found


def saved(value: Any, *, as_zip: bool) -> bytes:
    into = io.BytesIO()
    torch.save(value, into, _use_new_zipfile_serialization=as_zip)
    return into.getvalue()


RUN_CODE = {
    **{f"protocol {number}": pickled(number) for number in range(6)},
    "torch": saved({"w": torch.zeros(2)}, as_zip=True),
    "torch of old": saved({"w": torch.zeros(2)}, as_zip=False),
    "a whole module": saved(torch.nn.Linear(2, 2), as_zip=True),
    "gzip": gzip.compress(pickled()),
    "bz2": bz2.compress(pickled()),
    "xz": lzma.compress(pickled()),
    "lzma": lzma.compress(pickled(), format=lzma.FORMAT_ALONE),
    "zlib": zlib.compress(pickled()),
    "joblib of old": b"ZF" + hex(len(pickled())).ljust(19).encode() + zlib.compress(pickled()),
    "tar": tarred(pickled()),
    "a zip without names that tell": zipped(weights=pickled()),
    "a zip behind other bytes": b"x" * 5000 + zipped(weights=pickled()),
    "objects": array(np.array([{}, 1], dtype=object)),
    "objects in an npz": arrays(a=np.zeros(3), b=np.array([{}], dtype=object)),
    "plain data first": b"I1\n." + pickled(0),
    "plain data in an old protocol": b"(" + pickled(0),
    "a program": b"\x7fELF" + bytes(500),
    "a script": b"#!/bin/sh\ntouch opened\n",
    "a web page": b"<!-- a --> <!DOCTYPE html><p onload=x>",
    "a drawing": b'\xef\xbb\xbf\n<svg xmlns="http://www.w3.org/2000/svg" onload="x()"/>',
    "XML": b'<?xml version="1.0"?><?xml-stylesheet href="x.xsl"?>',
    "Hydra's YAML": b"model:\n  _target_: os.system\n  command: touch opened\n",
    "Hydra's YAML with escapes": b'"\\x5ftarget\\u005f": os.system\n',
    "Hydra's YAML on two lines": b'"_tar\\\n  get_": os.system\n',
    "Hydra's JSON far inside": json.dumps({"a": "x" * 2_000_000, "b": {"_target_": "x"}}).encode(),
    "Lightning's YAML": b"model:\n  class_path: os.system\n",
    "JSON that names code": json.dumps({"auto_map": {"AutoModel": "evil.Model"}}).encode(),
}
HOLD_DATA = {
    "array": array(np.zeros((3, 2))),
    "words": array(np.array(["ab", "c"])),
    "records": array(np.zeros(4, dtype=[("a", "<f4", (2,)), ("b", "<i8")])),
    "days": array(np.array(["2020-01-01"], dtype="M8[D]")),
    "one number": array(np.float32(1)),
    "npz": arrays(a=np.zeros(3), b=np.zeros(4)),
    "packed npz": arrays(packed=True, a=np.zeros(3)),
    "JSON": b'{"depth": 4, "of": [1, 2]}',
    "JSON with a template for chats": b'{"chat_template": "{% for m in messages %}{{ m }}"}',
    "a card of a model": b'<div align="center">\n\n# M\ntitle={{LLaMA: Open}}, x_target_y\n',
    "words of a tokenizer": b"<pad>\n<s>\n<script\n{%\n_target\n",
    "text": "Very good model\nby me\nImport it\né\n".encode(),
    "empty": b"",
}
ARE_UNKNOWN = {
    "random": b"\xff" + bytes(random.Random(1).randbytes(5000)),
    "a zip in a zip": zipped(inner=zipped(weights=pickled())),
    "packed text": gzip.compress(b"hello"),
    "a template": b"Hello {% if x %}{{ x.__class__ }}{% endif %}",
    "an expression of a template": b"{{ ''.__class__.__mro__ }}",
    "control characters": b"a\x1b[31m",
    "YAML that makes objects": b"!!python/object/apply:os.system [touch opened]\n",
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(600),
    "HDF5 behind a user block": bytes(1024) + b"\x89HDF\r\n\x1a\n" + bytes(600),
    "GGUF": b"GGUF\x03\0\0\0" + bytes(16),
    "LZ4": b"\x04\x22M\x18" + bytes(50),
    "array and more": array(np.zeros(3)) + b"x",
    "half an array": array(np.zeros(3))[:-1],
}


@pytest.mark.parametrize("name", RUN_CODE)
def test_what_may_run_is_code_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    for called in ("model", "model.safetensors", "config.json", "a.npy"):
        assert judged(tmp_path, RUN_CODE[name], called) is Effect.CODE


@pytest.mark.parametrize("name", HOLD_DATA)
def test_data_is_safe_but_for_the_name_of_a_program(tmp_path: Path, name: str) -> None:
    for called in ("model", "model.safetensors", "model.bin"):
        assert judged(tmp_path, HOLD_DATA[name], called) is Effect.DATA
    for called in ("model.py", "model.pkl", "hooks.SO", "model.html", "plot.SVG"):
        assert judged(tmp_path, HOLD_DATA[name], called) is Effect.CODE
    assert judged(tmp_path, HOLD_DATA[name], "chat_template.jinja") is Effect.UNKNOWN


@pytest.mark.parametrize("name", ARE_UNKNOWN)
def test_what_is_not_proven_is_not_known(tmp_path: Path, name: str) -> None:
    for called in ("model", "model.safetensors", "config.json"):
        assert judged(tmp_path, ARE_UNKNOWN[name], called) is Effect.UNKNOWN


def test_safetensors_are_data_only_where_every_byte_is_theirs(tmp_path: Path) -> None:
    sound = tensors(tmp_path)
    assert judged(tmp_path, sound, "model.bin") is Effect.DATA
    for more in (b"\0", pickled(), zipped(weights=b"hello")):
        assert judged(tmp_path, sound + more) is not Effect.DATA
    assert judged(tmp_path, sound[:-1]) is Effect.UNKNOWN
    assert judged(tmp_path, sound + zipped(data=pickled())) is Effect.CODE
    length = int.from_bytes(sound[:8], "little")
    twice = sound[8 : 8 + length].replace(b'"b":', b'"a":')
    assert judged(tmp_path, sound[:8] + twice + sound[8 + length :]) is Effect.UNKNOWN
    overlapping = sound[8 : 8 + length].replace(b"[0,", b"[1,")
    assert judged(tmp_path, sound[:8] + overlapping + sound[8 + length :]) is Effect.UNKNOWN


def test_safetensors_that_are_a_pickle_too_are_code(tmp_path: Path) -> None:
    """Both programs read the file as theirs: ``X`` skips the header's begin, ``V`` the rest."""
    length = 0x58 + (0x10 << 8)
    lands = 5 + 0x10
    name = "n" * (lands - 8 - 2) + "V"
    entry = {name: {"dtype": "U8", "shape": [600], "data_offsets": [0, 600]}}
    body = b"\ncbuiltins\nlen\n(S'true'\ntR.".ljust(600, b"x")
    whole = length.to_bytes(8, "little") + json.dumps(entry).encode().ljust(length) + body
    assert pickle.loads(whole) == 4
    assert load_safetensors(whole)[name].shape == (600,)
    assert judged(tmp_path, whole, "model.safetensors") is Effect.CODE


def test_every_pickle_that_imports_is_found_wherever_it_does(tmp_path: Path) -> None:
    """Random values of every kind before the one that runs, against pickletools' own reading."""
    draw = random.Random(7)
    for _ in range(150):
        before = [draw.choice(_VALUES)(draw) for _ in range(draw.randrange(8))]
        text = pickle.dumps([*before, Runs()], draw.randrange(6))
        assert any("GLOBAL" in op.name for op, _, _ in pickletools.genops(text))
        assert judged(tmp_path, text) is Effect.CODE


_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: draw.random(),
    lambda draw: draw.randrange(1 << 90) - (1 << 89),
    lambda draw: "é\n'" * draw.randrange(300),
    lambda draw: draw.randbytes(draw.randrange(70_000)),
    lambda draw: bytearray(draw.randbytes(9)),
    lambda draw: {"a": (1, None, True), "b": [{}, set()]},
    lambda draw: frozenset({1, 2}),
)


def test_what_it_costs_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "model"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content in (
        b"N" * (8 << 20),
        gzip.compress(bytes(150 << 20), 1),
        lzma.compress(b"N" * (40 << 20), preset=0),
        b"V" + b"a" * (100 << 20),
        (1 << 40).to_bytes(8, "little") + b"{" * 5000,
        (4 << 20).to_bytes(8, "little") + b'{"a":' + b"[" * (4 << 20),
        zipped(**{f"m{number}": b"N" * 3_000_000 for number in range(3)}),
    ):
        path.write_bytes(content)
        del content
        assert opening_of(path).effect in (Effect.UNKNOWN, Effect.DATA)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 << 10, f"{grown >> 10} MiB, of which 150 hold what the test itself made"


def test_links_and_what_is_no_file_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"hello")
    (tmp_path / "link").symlink_to("data")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "nothing"):
        assert opening_of(tmp_path / name).effect is Effect.UNKNOWN
    assert opening_of(tmp_path).effect is Effect.UNKNOWN


def test_weights_of_torch_are_no_program_by_their_name(tmp_path: Path) -> None:
    state = tmp_path / "state.msgpack"
    state.write_bytes(b"\x83\xa4step\xc7\x0e\x01\x93\x90\xa5int32\xc4\x04\xa0\x0f\0\0")
    assert opening_of(state).effect is Effect.UNKNOWN, "Flax's: its first byte is a pickle's EXT2"
    path = tmp_path / "netG_epoch_0.pth"
    for content, means in (
        (b"\x80\x04K\x01.", "a pickle"),
        (b"import os; os.abort()\n", "a program, as its name shows"),
        (b'{"depth": 4}', "a program, as its name shows"),
    ):
        path.write_bytes(content)
        assert (opening_of(path).effect, opening_of(path).format) == (Effect.CODE, means)
