"""A manifest is hostile text until proven otherwise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.manifests import WEIGHTS, manifest
from trmcloud.core.contract.manifest import (
    KINDS,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    from_json,
    parse_step_dir,
    step_dir_name,
    to_json,
)
from trmcloud.core.errors import CheckpointError

WHERE = "r1/fast/checkpoints/step-00000120"


def raw() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(to_json(manifest()))
    return data


def test_a_manifest_survives_json() -> None:
    for made in (manifest(), manifest(bpb=None, extra={"note": "é"}), manifest(step_losses=())):
        assert from_json(to_json(made), WHERE) == made
        assert from_json(to_json(made).encode(), WHERE) == made
    assert manifest().sha256 == WEIGHTS.sha256
    assert manifest().size_bytes == 1010
    assert manifest().label == "fast/step-00000120"


def a_file(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["files"][1].update(changes)

    return change


def a_field(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(changes)


HOSTILE_NAMES = [
    "../weights.safetensors",
    "/etc/passwd",
    "a/b.json",
    "..",
    ".",
    "",
    ".hidden.json",
    "a\\b.json",
    "C:a.json",
    "state.json\n",
    "state.json\0.safetensors",
    "st\u202eate.json",
    "stäte.json",
    "STATE.json",
    "state.pkl",
    "state.pt",
    "state.bin",
    "state.json.pkl",
    "state",
    "manifest.json",
    "-rf.json",
    "x" * 200 + ".json",
    5,
    None,
    ["state.json"],
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_a_file_name_is_flat_and_of_a_kind_that_cannot_run(name: Any) -> None:
    data = raw()
    a_file(name=name)(data)
    with pytest.raises(CheckpointError) as caught:
        from_json(json.dumps(data), WHERE)
    assert caught.value.where == WHERE


@pytest.mark.parametrize(
    "change",
    [
        a_file(kind="pickle"),
        a_file(kind=None),
        a_file(kind=["state"]),
        a_file(sha256="ab"),
        a_file(sha256="AB" * 32),
        a_file(sha256="zz" * 32),
        a_file(sha256=None),
        a_file(sha256="ab" * 32 + "\n"),
        a_file(size_bytes=-1),
        a_file(size_bytes=1.5),
        a_file(size_bytes=True),
        a_file(size_bytes="10"),
        a_file(size_bytes=MAX_FILE_BYTES + 1),
        a_file(name="weights.safetensors"),
        a_file(kind="weights"),
        a_field(files=[]),
        a_field(files=None),
        a_field(files={"weights.safetensors": 1}),
        a_field(files="weights"),
        a_field(files=[None]),
        a_field(version=2),
        a_field(version=None),
        a_field(version="1"),
        a_field(run_id="../../x"),
        a_field(run_id=""),
        a_field(run_id=7),
        a_field(phase="a/b"),
        a_field(phase=".hidden"),
        a_field(phase="fast\n"),
        a_field(recipe="\x1b[31m"),
        a_field(recipe="x" * 81),
        a_field(step=-1),
        a_field(step=10**8),
        a_field(step=10**400),
        a_field(step=1.0),
        a_field(step=None),
        a_field(tokens=10**30),
        a_field(world_size=True),
        a_field(created_at="today"),
        a_field(created_at=None),
        a_field(created_at=10**400),
        a_field(val_bpb="1.5"),
        a_field(val_bpb=[1.5]),
        a_field(val_bpb=True),
        a_field(step_losses=None),
        a_field(step_losses="12"),
        a_field(step_losses=[None]),
        a_field(step_losses=["5.0"]),
        a_field(settings=None),
        a_field(settings=[["depth", 2]]),
        a_field(settings="ab"),
        a_field(extra=5),
    ],
)
def test_what_is_not_exactly_a_manifest_is_refused(
    change: Callable[[dict[str, Any]], None],
) -> None:
    data = raw()
    change(data)
    with pytest.raises(CheckpointError) as caught:
        from_json(json.dumps(data), WHERE)
    assert caught.value.where == WHERE
    assert len(str(caught.value)) < 500, "hostile text is not repeated at length"


@pytest.mark.parametrize("key", [k for k in raw() if k not in ("extra", "cooldown_from")])
def test_no_field_may_be_missing(key: str) -> None:
    data = raw()
    del data[key]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data), WHERE)


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    data = raw()
    data["colour"] = "red"
    assert from_json(json.dumps(data), WHERE) == manifest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "5",
        '"text"',
        "[" * 100_000,
        '{"a":' * 50_000,
        "\ufeff{}",
        b"\xff\xfe",
        b"\x80",
        " " * (MAX_MANIFEST_BYTES + 1),
        "9" * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_text_that_is_no_manifest_at_all(text: str | bytes) -> None:
    with pytest.raises(CheckpointError):
        from_json(text, WHERE)


def test_more_files_than_any_checkpoint_has() -> None:
    data = raw()
    data["files"] += [
        {"name": f"f{n}.json", "kind": "state", "size_bytes": 1, "sha256": "ab" * 32}
        for n in range(MAX_FILES)
    ]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data, separators=(",", ":")), WHERE)


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ["val_bpb", "created_at", "step_losses", "settings", "extra"])
def test_a_number_that_is_none_is_refused_wherever_it_stands(bad: str, place: str) -> None:
    data = raw()
    data[place] = {"x": "HERE"} if place in ("settings", "extra") else "HERE"
    if place == "step_losses":
        data[place] = [5.0, "HERE"]
    with pytest.raises(CheckpointError):
        from_json(json.dumps(data).replace('"HERE"', bad), WHERE)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**400, "ab" * 32, "weights.safetensors", *KINDS]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=120)
@given(st.dictionaries(st.sampled_from(sorted(raw())), anything, min_size=1, max_size=4))
def test_a_manifest_with_anything_in_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = {**raw(), **changes}
    read_or_refuse(json.dumps(data))


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(["name", "kind", "sha256", "size_bytes"]), anything))
def test_a_file_entry_with_anything_in_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = raw()
    data["files"][1].update(changes)
    read_or_refuse(json.dumps(data))


@given(anything)
def test_any_json_is_read_or_refused(data: Any) -> None:
    read_or_refuse(json.dumps(data))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_read_or_refused(text: str | bytes) -> None:
    read_or_refuse(text)


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_is_read_or_refused(place: int, bit: int) -> None:
    text = bytearray(to_json(manifest()).encode())
    text[place % len(text)] ^= 1 << bit
    read_or_refuse(bytes(text))


def read_or_refuse(text: str | bytes) -> None:
    try:
        made = from_json(text, WHERE)
    except CheckpointError:
        return
    assert from_json(to_json(made), WHERE) == made, "what is accepted can be written again"
    assert all("/" not in file.name and ".." not in file.name for file in made.files)
    assert made.val_bpb is None or math.isfinite(made.val_bpb)
    assert parse_step_dir(step_dir_name(made.step)) == made.step


@pytest.mark.parametrize("step", [0, 1, 120, 99_999_999])
def test_a_folders_name_brings_its_step_back(step: int) -> None:
    assert parse_step_dir(step_dir_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-120",
        "step-000000120",
        "step--0000120",
        "step-0000012a",
        ".step-00000120",
        "step-١٢٣٤٥٦٧٨",
        "step-00000120\n",
        "step-00000120.tmp",
        "",
        "STEP-00000120",
    ],
)
def test_a_folder_of_another_name_is_no_checkpoint(name: str) -> None:
    assert parse_step_dir(name) is None
