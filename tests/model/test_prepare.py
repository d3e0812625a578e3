"""From a source of any kind to token files; and what a source that will not do is told."""

from __future__ import annotations

import errno
import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.data.folder import open_data
from model.prepare import main
from model.preparing import sources, whole
from model.preparing.entropy import ByteCounts
from model.preparing.sources import open_source, read_pieces
from model.preparing.whole import Span, prepare, sample_text, split
from trmcloud.core.errors import ConflictError, DataError
from trmcloud.core.spec.settings import PhaseRecipe


@pytest.fixture
def folder(tmp_path: Path, text: str) -> Path:
    """Twelve text files in two folders, and things that are none."""
    root = tmp_path / "texts"
    (root / "deeper").mkdir(parents=True)
    lines = text.splitlines(keepends=True)
    for number in range(12):
        place = root / ("deeper" if number % 2 else ".") / f"part{number:02}.txt"
        place.write_text("".join(lines[number * 40 : number * 40 + 40]), encoding="utf-8")
    (root / "picture.png").write_bytes(b"\x89PNG")
    (root / "binary.txt").write_bytes(b"text\0text")
    (root / "latin.txt").write_bytes("é".encode("latin-1"))
    (root / "empty.md").write_text("")
    return root


def test_every_token_is_of_the_text_and_none_is_lost(
    folder: Path, settings: PhaseRecipe, tmp_path: Path
) -> None:
    meta = prepare(str(folder), settings, tmp_path / "data")
    data = open_data(tmp_path / "data")
    parts = split(open_source(str(folder)), settings.validation_fraction)
    train = np.fromfile(tmp_path / "data" / "train.bin", data.dtype)
    for tokens, spans in ((train, parts.train), (data.validation, parts.validation)):
        starts = np.flatnonzero(tokens == data.tokenizer.bos)
        assert len(starts) == len(spans)
        for span, ids in zip(spans, np.split(tokens, starts)[1:], strict=True):
            assert data.tokenizer.decode(ids) == span.document.path.read_text(encoding="utf-8")
    assert (meta["documents"], meta["skipped_files"]) == (12, 4)
    assert meta["train_tokens"] == len(train)
    assert meta["validation_tokens"] == len(data.validation)
    assert meta["validation_bytes"] == sum(s.document.size_bytes for s in parts.validation)


def test_preparing_twice_gives_the_same_bytes(
    folder: Path, settings: PhaseRecipe, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        prepare(str(folder), settings, tmp_path / name)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {"train.bin", "validation.bin", "tokenizer.json", "meta.json"}
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_folders_validation_files_are_a_fair_share_and_keep_their_side(
    folder: Path, settings: PhaseRecipe
) -> None:
    source = open_source(str(folder))
    chosen = {span.document.name for span in split(source, 0.25).validation}
    size = sum(d.size_bytes for d in source.documents if d.name in chosen)
    assert 0.15 < size / source.size_bytes < 0.4
    gone = next(d for d in source.documents if d.name not in chosen)
    gone.path.unlink()
    after = {span.document.name for span in split(open_source(str(folder)), 0.25).validation}
    assert len(after & chosen) >= len(chosen) - 1


def test_a_single_file_gives_its_end_cut_at_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    parts = split(open_source(str(path)), 0.1)
    train = "".join(parts.train[0].pieces())
    validation = "".join(parts.validation[0].pieces())
    assert train + validation == text
    assert train.endswith("\n")
    assert len(validation) == pytest.approx(0.1 * len(text), rel=0.1)


def test_a_text_without_lines_is_cut_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    path.write_text("word " * 1000)
    parts = split(open_source(str(path)), 0.2)
    assert len("".join(parts.train[0].pieces())) == 4000
    assert len("".join(parts.validation[0].pieces())) == 1000


def test_pieces_are_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 7)
    text = "ab\ncdé漢字🙂x" * 9 + "\n\r\n tail"
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8", newline="")
    [document] = open_source(str(path)).documents
    pieces = list(read_pieces(document))
    assert "".join(pieces) == text
    assert len(pieces) > 3
    assert "".join(Span(document, 5, 30).pieces()) == text[5:30]


def test_a_large_text_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 10)
    path = tmp_path / "t.txt"
    path.write_text("".join(f"{number:08}\n\n" for number in range(100)))
    source = open_source(str(path))
    sample = list(sample_text([Span(source.documents[0])], 1000, 250))
    assert [int(piece) for piece in sample] == list(range(0, 100, 4))


def test_the_python_library_is_a_source_without_tests_and_packages() -> None:
    source = open_source("python-stdlib")
    names = [document.name for document in source.documents]
    assert len(names) == len(set(names))
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not any("site-packages" in n or "/test" in n or n.startswith("test/") for n in names)
    assert source.size_bytes > 5_000_000


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.txt", None, "does not exist"),
        ("empty.txt", b"", "empty"),
        ("binary.bin", b"\0\1\2" * 100, "not UTF-8"),
        ("latin.txt", "é".encode("latin-1") * 50, "not UTF-8"),
        ("short.txt", b"a few words\n", "smaller than one batch"),
    ],
)
def test_bad_sources_are_told_so_in_one_line_and_json(
    name: str,
    content: bytes | None,
    words: str,
    settings: PhaseRecipe,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    settings_path = tmp_path / "settings.json"
    settings_path.write_text(json.dumps(settings.to_json()))
    out = tmp_path / "data"
    arguments = ["--source", str(path), "--settings", str(settings_path), "--out", str(out)]
    assert main(arguments) == 9
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert words in told["what"]
    assert told["where"] == str(path)
    assert not out.exists()
    assert not list(tmp_path.glob(".data*")), "nothing half-made is left"


def test_too_little_validation_text(settings: PhaseRecipe, tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="validation text is smaller than one sequence") as caught:
        prepare(str(path), replace(settings, validation_fraction=0.0005), tmp_path / "data")
    assert "validation_fraction" in caught.value.next_step


def test_folders_without_text(tmp_path: Path, settings: PhaseRecipe) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(DataError, match="holds no text"):
        prepare(str(tmp_path), settings, tmp_path / "data")


def test_an_unreadable_file(
    tmp_path: Path, settings: PhaseRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("text " * 100)

    def refuse(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Root, as which tests may run, reads whatever its permissions say.
    monkeypatch.setattr(sources, "open", refuse, raising=False)
    with pytest.raises(DataError, match="cannot be read: Permission denied") as caught:
        prepare(str(path), settings, tmp_path / "data")
    assert caught.value.where == str(path)


def test_a_given_tokenizer_refuses_what_it_does_not_know(
    settings: PhaseRecipe, tmp_path: Path
) -> None:
    plain, odd = tmp_path / "plain.txt", tmp_path / "odd.txt"
    plain.write_text("abc def\n" * 200)
    odd.write_text("abc def\n" * 199 + "abQ\n")
    chars = replace(settings, tokenizer="char")
    prepare(str(plain), chars, tmp_path / "data")
    with pytest.raises(DataError, match=r"no character 'Q'"):
        prepare(
            str(odd),
            chars,
            tmp_path / "other",
            tokenizer_json=(tmp_path / "data" / "tokenizer.json").read_text(),
        )
    assert not (tmp_path / "other").exists()


def test_a_folder_of_something_else_is_not_overwritten(
    folder: Path, settings: PhaseRecipe, tmp_path: Path
) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(ConflictError):
        prepare(str(folder), settings, out)
    assert (out / "thesis.txt").read_text() == "years of work"
    prepare(str(folder), settings, tmp_path / "data")
    prepare(str(folder), settings, tmp_path / "data")  # its own may be replaced


def test_meta_comes_last(
    folder: Path, settings: PhaseRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    real = whole._write

    def watch(path: Path, content: str) -> None:
        assert (path.parent / "train.bin").exists()
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(whole, "_write", watch)
    prepare(str(folder), settings, tmp_path / "data")
    assert written == ["tokenizer.json", "meta.json"]


def test_progress_is_json_lines_that_end_in_done(
    folder: Path, settings: PhaseRecipe, tmp_path: Path
) -> None:
    settings_path = tmp_path / "settings.json"
    settings_path.write_text(json.dumps(settings.to_json()))
    command = [sys.executable, "-m", "model.prepare", "--source", str(folder)]
    command += ["--settings", str(settings_path), "--out", str(tmp_path / "data")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["stage"] for line in lines][-1] == "done"
    assert {"scan", "tokenizer", "encode"} <= {line["stage"] for line in lines}
    encoded = [line for line in lines if line["stage"] == "encode"]
    assert encoded[-1]["done"] == encoded[-1]["total"]


def test_byte_entropies_by_hand() -> None:
    counts = ByteCounts()
    for piece in (b"aab", b"b"):
        counts.add(piece)
    counts.end_document()
    counts.add(b"a")
    # bytes: 3 a, 2 b; neighbours within documents: aa, ab, bb
    assert counts.unigram_bits() == pytest.approx(-(0.6 * math.log2(0.6) + 0.4 * math.log2(0.4)))
    firsts = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    assert counts.bigram_bits() == pytest.approx(math.log2(3) - firsts)


def test_byte_entropies_of_the_validation_text(
    data_dir: Path, settings: PhaseRecipe, text: str
) -> None:
    meta = json.loads((data_dir / "meta.json").read_text())
    validation = text.encode()[-meta["validation_bytes"] :]
    counts = Counter(validation)
    pairs = Counter(itertools.pairwise(validation))
    firsts = Counter(validation[:-1])

    def bits(counter: Counter[Any]) -> float:
        total = sum(counter.values())
        return -sum(n / total * math.log2(n / total) for n in counter.values())

    assert meta["byte_unigram_bits"] == pytest.approx(bits(counts))
    assert meta["byte_bigram_bits"] == pytest.approx(bits(pairs) - bits(firsts))


def test_no_text_has_no_entropy() -> None:
    with pytest.raises(DataError):
        ByteCounts().unigram_bits()
