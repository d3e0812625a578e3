"""Hostile checkpoints in a run of the user's home, as another party's machine would report them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.world import World

MANIFEST, TREE = "manifest.json", "tree.json"
Kind = Callable[[World, Path, random.Random], None]
KINDS: dict[str, Kind] = {}
_NAMES = (
    "../escape", "/escape", "../../../../escape", "a/../../escape", "..", ".", "", "own", "/",
    "a//b",
    "manifest.json", "tree.json", "a\nb", "\x1b[31m", "-rf", "a" * 300, "a/" * 200 + "b", "~/x",
    "a\\b",
    "CON", "\udcff", "a\u0000b", ".git/hooks/post-checkout", ".ssh/authorized_keys", "train.py",
    "sitecustomize.py", "%s", "{x}", "..\u2215x", "link/x", "\u202egpj.exe",
)  # fmt: skip


def kind(name: str) -> Callable[[Kind], Kind]:
    def keep(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return keep


def _checkpoints(world: World) -> list[Path]:
    return sorted(world.product_home.glob("runs/*/*/checkpoints/step-*"))


def _rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest; then let sizes and hashes of its files be what is there."""
    made = json.loads((folder / MANIFEST).read_text())
    change(made)
    for file in made.get("files", ()) if isinstance(made.get("files"), list) else ():
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            data = (folder / str(file["name"])).read_bytes()
            file["sha256"], file["size_bytes"] = hashlib.sha256(data).hexdigest(), len(data)
    (folder / MANIFEST).write_text(json.dumps(made))


def _same(made: dict[str, Any]) -> None:
    """No change."""


@kind("checkpoint: names in its list of files")
def _tree_names(world: World, folder: Path, rng: random.Random) -> None:
    tree = json.loads((folder / TREE).read_text())
    tree["files"][0]["path"] = rng.choice(_NAMES)
    if rng.random() < 0.5:
        tree["files"] += [dict(tree["files"][0], path=rng.choice(_NAMES)) for _ in range(3)]
    for name in ("source", "place"):
        if rng.random() < 0.5:
            tree[name] = rng.choice((*_NAMES, str(world.outside), "~/.ssh"))
    tree["is_file"] = rng.random() < 0.5
    if rng.random() < 0.3:
        tree["files"][0]["opens"] = rng.choice(("data", "\x1b[0m", 3))
    (folder / TREE).write_text(json.dumps(tree))
    _rewrite(folder, _same)


@kind("checkpoint: names in its manifest")
def _manifest_names(world: World, folder: Path, rng: random.Random) -> None:
    name = rng.choice(
        (*_NAMES, "weights.json", f"{world.outside}/secret.txt", "../../../secret.bin")
    )

    def change(made: dict[str, Any]) -> None:
        made["files"].append(dict(made["files"][0], name=name, kind="state"))
        if rng.random() < 0.5:
            made["files"][0]["name"] = name

    _rewrite(folder, change)


@kind("checkpoint: odd values in its manifest")
def _odd_values(world: World, folder: Path, rng: random.Random) -> None:
    changes: tuple[dict[str, Any], ...] = (
        {"phase": "../../x"}, {"phase": "a\n\x1b[31m"}, {"step": 10**30}, {"step": -1},
        {"run_id": "../x"},
        {"extra": {"layout": "\x1b]0;x\x07", "metric": {"name": "a\nb" * 500}}}, {"val_bpb": "NaN"},
        {"recipe": "../../etc"}, {"settings": {"a": "x" * 100_000}}, {"version": 99}, {"files": []},
        {"files": [{"name": "a.bin"}] * 5000}, {"extra": {"named_best": "../../x\x1b[31m"}},
        {"extra": {"final_at": 1, "provenance": {"command": ["\x1b[31m"] * 50}}},
        {"created_at": 1e300},
    )  # fmt: skip
    _rewrite(folder, lambda made: made.update(rng.choice(changes)))


@kind("checkpoint: files that are links or FIFOs")
def _not_files(world: World, folder: Path, rng: random.Random) -> None:
    name = rng.choice(("file-0001.bin", TREE, MANIFEST))
    text = (folder / name).read_bytes()
    target = rng.choice(
        (world.outside / "secret.txt", world.home / ".ssh/id_rsa", Path("/dev/zero"), None)
    )
    if name == "file-0001.bin" and target is not None and target.is_file():
        # Its size and hash are those of the file that the link leads to.
        def change(made: dict[str, Any]) -> None:
            data = target.read_bytes()
            made["files"][0] |= {
                "sha256": hashlib.sha256(data).hexdigest(),
                "size_bytes": len(data),
            }

        made = json.loads((folder / MANIFEST).read_text())
        change(made)
        (folder / MANIFEST).write_text(json.dumps(made))
    (folder / name).unlink()
    if target is None:
        os.mkfifo(folder / name)
    elif rng.random() < 0.3:
        (folder / "real").write_bytes(text)
        (folder / name).symlink_to("real")
    else:
        (folder / name).symlink_to(target)


@kind("checkpoint: bytes of a known format")
def _formats(world: World, folder: Path, rng: random.Random) -> None:
    path, how = folder / "file-0001.bin", rng.randrange(7)
    if how == 0:
        path.write_bytes(f"cposix\nsystem\n(S': < {world.trap('checkpoint-pickle')}'\ntR.".encode())
    elif how == 1:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("../../escape", b"\0" * rng.choice((10, 5_000_000)))
            made.writestr("archive/data.pkl", b"\x80\x02cposix\nsystem\n.")
    elif how == 2:
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("../escape")
            member.pax_headers = {"comment": "x" * rng.choice((10, 3_000_000))}
            tar.addfile(member)
            member = tarfile.TarInfo("link")
            member.type, member.linkname = tarfile.SYMTYPE, str(world.outside)
            tar.addfile(member)
    elif how == 3:
        path.write_bytes(rng.choice((2**63, 2**26)).to_bytes(8, "little") + b'{"a":' + b"[" * 5000)
    elif how == 4:
        path.write_bytes(b"GGUF" + rng.randbytes(300))
    elif how == 5:
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + rng.randbytes(300))
    else:
        path.write_bytes(b"[" * rng.choice((100, 2_000_000)))
    _rewrite(folder, _same)


@kind("checkpoint: JSON that is too deep or too large")
def _deep(world: World, folder: Path, rng: random.Random) -> None:
    texts = ("[" * 100_000, '{"files": ' * 50_000, "9" * 100_000, '"' + "a" * 3_000_000, "\x00", "")
    (folder / rng.choice((MANIFEST, TREE))).write_text(rng.choice(texts))
    if rng.random() < 0.5:
        _rewrite_quietly(folder)


def _rewrite_quietly(folder: Path) -> None:
    with contextlib.suppress(ValueError, KeyError, RecursionError, AttributeError):
        _rewrite(folder, _same)


@kind("checkpoint: other files of the run's folder")
def _run_files(world: World, folder: Path, rng: random.Random) -> None:
    phase = folder.parent.parent
    choices = (
        "metrics.jsonl",
        "heartbeat.json",
        "train.log",
        "job.json",
        "../launch.json",
        "sent.json",
    )
    for name in rng.sample(choices, 2):
        path = phase / name
        with contextlib.suppress(OSError):
            path.unlink()
        if rng.random() < 0.3:
            os.mkfifo(path)
        elif rng.random() < 0.5:
            path.symlink_to(world.outside / "secret.txt")
        else:
            path.write_text("[" * 20_000 + "\x1b[31m\n" * 20)
    odd = rng.choice(("step-99999999", "step-../x", "step-00000009"))
    with contextlib.suppress(OSError):
        shutil.copytree(folder, folder.parent / odd.replace("/", "-"))


@kind("checkpoint: names beside the target")
def _beside(world: World, folder: Path, rng: random.Random) -> None:
    target = world.tree / "outputs"
    with contextlib.suppress(OSError):
        if rng.random() < 0.5:
            target.symlink_to(rng.choice((world.outside, world.outside / "folder")))
        elif rng.random() < 0.5:
            world.tree.joinpath("outputs.partial").symlink_to(world.outside)
        else:
            target.mkdir()
            (target / "own").symlink_to(world.outside)
            (target / "manifest.json").symlink_to(world.outside / "secret.txt")


def write_checkpoints(world: World, number: int) -> tuple[str, ...]:
    """Write one to three kinds into the home's run; return their names."""
    rng = random.Random(f"checkpoints {number}")
    kinds = tuple(rng.sample(list(KINDS), rng.choice((1, 1, 2, 3))))
    for name in kinds:
        write_kind(world, name, rng)
    return kinds


def write_kind(world: World, name: str, rng: random.Random) -> None:
    every = _checkpoints(world)
    for folder in every if rng.random() < 0.3 else every[-1:]:  # the last is the best one
        if not all(_is_file(folder / each) for each in (MANIFEST, TREE, "file-0001.bin")):
            continue  # a kind before has put a link or a FIFO there
        with contextlib.suppress(
            OSError, ValueError, KeyError, IndexError, RecursionError, TypeError
        ):
            KINDS[name](world, folder, rng)


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode)
