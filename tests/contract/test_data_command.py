"""``trmcloud data``: sets by name, listed, brought and checked, from a data host on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_data import LAUNCH, SETS, SETTINGS, corpus, host
from tests.e2e.user import real_trainer
from tests.standins.data_host import DataHost, Fault
from tests.typist import InProcess, typist
from trmcloud.adapters.files import load_data_set

__all__ = ["corpus", "host", "typist"]


@pytest.fixture
def reader(typist: InProcess, host: DataHost) -> InProcess:
    settings = typist.folder / "small.toml"
    settings.write_text(SETTINGS)
    typist.trainer = real_trainer(typist.folder / "trainer")
    typist.environment |= {
        "OMP_NUM_THREADS": "1", "TRMCLOUD_TEST_SETTINGS": str(settings), **host.environment,
    }  # fmt: skip
    return typist


def test_an_unknown_name_is_refused_before_anything_is_done(
    reader: InProcess, host: DataHost
) -> None:
    words = [*LAUNCH[:5], "fineweb-ed", *LAUNCH[6:]]
    assert "did you mean fineweb-edu?" in reader.refused(*words, code=9)
    assert "did you mean climbmix?" in reader.fails("data", "show", "climbmx", code=3)
    assert host.requests == []


def test_list_and_show(reader: InProcess) -> None:
    shown = reader.run("data", "list")
    (line,) = [line for line in shown.splitlines() if line.startswith("fineweb-edu ")]
    assert "ODC-By 1.0" in line
    assert line.endswith("trm")
    names = {row["name"] for row in reader.json("data", "list", "--json")["data_sets"]}
    assert {"climbmix", "openwebtext", "gsm8k", "generated"} <= names
    about = reader.run("data", "show", "climbmix")
    assert "CC BY-NC 4.0" in about
    assert "6,542: shard_00000.parquet" in about


def test_get_goes_on_where_it_stopped(reader: InProcess, host: DataHost) -> None:
    get = ("data", "get", "fineweb-edu", "--recipe", "trm-tiny", "--tokens")
    host.faults[f"{SETS}/shard_00002.parquet"] = Fault(status=403)
    assert "403" in reader.fails(*get, "20000", code=9)
    del host.faults[f"{SETS}/shard_00002.parquet"]
    first = reader.run(*get, "20000")
    assert "tokens to train on" in first
    asked = len(host.requests)
    assert reader.run(*get, "20000") == first
    again = [each.path for each in host.requests[asked:]]
    assert all("/api/" in path for path in again), "what is there is not asked for again"
    more = reader.run(*get, "150000")
    assert more.splitlines()[1] == first.splitlines()[1], "shards are added to the same folder"
    assert more != first


def test_check_says_what_is_wrong_with_which_file(reader: InProcess, host: DataHost) -> None:
    found = load_data_set("fineweb-edu")
    first, last = [f"{SETS}/{name}" for name in (next(found.shard_names()), "shard_01821.parquet")]
    host.files[last] = host.files[first]
    checked = reader.json("data", "check", "fineweb-edu", "--json")
    assert (checked["passed"], len(checked["checks"])) == (True, 3)
    good = reader.run("data", "check", "fineweb-edu")
    assert good.count("✔") == 3
    assert "column 'text'" in good
    host.faults[last] = Fault(html=True)
    code, out, err = reader.ended("data", "check", "fineweb-edu")
    assert code == 9
    assert "✘ shard_01821.parquet" in out
    assert "a web page" in out
    assert "1 of its files" in err
    assert "--all" not in err


def test_a_damaged_folder_is_told(reader: InProcess) -> None:
    get = ("data", "get", "fineweb-edu", "--recipe", "trm-tiny", "--tokens", "20000", "--json")
    folder = Path(reader.json(*get)["folder"])
    assert "✘" not in reader.run("data", "check", str(folder))
    shard = folder / "shard-00000.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    code, out, _ = reader.ended("data", "check", str(folder))
    assert code == 9
    assert "✘ shard-00000.bin" in out
    assert "damaged" in out
