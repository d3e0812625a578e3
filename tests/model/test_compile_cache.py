"""The compilers' folders: local while they are used, in the run's folder afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from model.machine import compile_cache
from model.machine.compile_cache import CompileCache
from model.training.stepping import compiled_graphs, lift_graph_limit

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fetched(cache: CompileCache, attempt: int = 1, local_rank: int = 0) -> float:
    time = Time()
    cache.fetch(attempt, local_rank, time.sleep, time.monotonic)
    return time.now


def test_what_one_machine_compiled_is_found_by_the_next(tmp_path: Path, temporary: Path) -> None:
    out, environment = tmp_path / "out", dict[str, str]()
    cache = CompileCache(out, environment)
    assert fetched(cache) == 0.0
    for name in NAMES:
        folder = Path(environment[name])
        assert temporary in folder.parents
        (folder / "ab").mkdir(parents=True)
        (folder / "ab" / "kernel.so").write_bytes(name.encode())
        (folder / "ab" / "kernel.lock").touch()
    cache.keep()
    cache.drop()
    assert not list(temporary.iterdir())

    again = dict[str, str]()
    fetched(CompileCache(out, again), attempt=2)
    assert again == environment
    for name in NAMES:
        folder = Path(again[name]) / "ab"
        assert (folder / "kernel.so").read_bytes() == name.encode()
    kept = {path.name for path in (out / "compiled").rglob("*") if path.is_file()}
    assert kept == {"kernel.so"}


def test_the_other_ranks_of_a_machine_wait_until_it_is_there(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path / "out", {})
    assert 60.0 <= fetched(cache, local_rank=1) < 61.0, "and not for ever"
    fetched(cache)
    assert fetched(cache, local_rank=1) == 0.0
    assert fetched(cache, attempt=2, local_rank=1) > 0.0, "an earlier attempt's is not this one's"


def test_what_the_user_placed_stays_there(tmp_path: Path, temporary: Path) -> None:
    environment = dict.fromkeys(NAMES, "/elsewhere")
    cache = CompileCache(tmp_path / "out", environment)
    fetched(cache)
    cache.keep()
    assert environment == dict.fromkeys(NAMES, "/elsewhere")
    assert not list(temporary.iterdir())
    assert not (tmp_path / "out").exists()


def test_without_room_for_it_the_runs_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_cache, "_LEAST_FREE_BYTES", 1 << 80)
    environment = dict[str, str]()
    cache = CompileCache(tmp_path / "out", environment)
    fetched(cache)
    assert environment[NAMES[0]] == str(tmp_path / "out" / "compiled" / "inductor")


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, temporary: Path) -> None:
    environment = dict[str, str]()
    fetched(CompileCache(tmp_path / "out", environment))
    Path(environment[NAMES[0]]).parent.chmod(0o777)
    again = dict[str, str]()
    assert not CompileCache(tmp_path / "out", again).is_local
    assert temporary not in Path(again[NAMES[0]]).parents


def test_a_store_that_cannot_be_written_costs_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = dict[str, str]()
    (tmp_path / "out").write_text("a file where the folder belongs")
    cache = CompileCache(tmp_path / "out", environment)
    fetched(cache)
    Path(environment[NAMES[0]]).mkdir(parents=True)
    cache.keep()
    assert "were not copied" in capsys.readouterr().err


def test_more_graphs_than_torchs_eight_are_compiled() -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8):
        lift_graph_limit()
        before = compiled_graphs()
        function = torch.compile(lambda h: h * 2, backend="eager", dynamic=False)
        for size in range(1, 13):
            function(torch.ones(size))
    assert compiled_graphs() - before == 12
