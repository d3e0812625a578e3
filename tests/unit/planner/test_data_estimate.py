"""What data takes: the wait before the first step and after it, downloads, disk and dollars."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.settings import settings_of
from trmcloud.adapters.files.data_sets import load_data_set, source_of
from trmcloud.core.catalog.hardware import LocalMachine
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.money import Usd
from trmcloud.core.planner.candidates import kept_micros_per_hour
from trmcloud.core.planner.data_estimate import (
    CPU_SHARE,
    IMPORT_S,
    RENTED_LINE_BYTES_PER_S,
    TOKENIZE_BYTES_PER_CPU_S,
    TRAIN_BYTES_PER_S,
    UPLOAD_BYTES_PER_S,
    VCPUS_PER_GPU,
    DataEstimate,
    estimate_data,
)
from trmcloud.core.planner.estimates import outlook_on
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.planner.speed import rented_machine, this_machine
from trmcloud.core.spec.data_source import DataSource
from trmcloud.core.spec.plan import Interval
from trmcloud.core.spec.recipe import PhaseRecipe, Recipe
from trmcloud.core.spec.spec import RunSpec

NOW = 1_795_000_000.0
SETTINGS = settings_of("trm", recipe="trm", vocab_size=65_536)
EIGHT = rented_machine("H100-SXM", 8)
LAPTOP = this_machine(LocalMachine("a laptop", 4, 16.0), 2)
MIB = 1 << 20


def phases(tokens: int, training_s: float = 1e9) -> list[tuple[PhaseRecipe, int, float]]:
    return [(SETTINGS, tokens, training_s)]


def test_the_first_batch_waits_for_a_tokenizer_and_a_shard() -> None:
    """By hand: nine files at the line, 256 MiB learnt from, two files tokenized."""
    found = estimate_data(source_of("fineweb-edu"), phases(500_000_000), EIGHT)
    cores = 8 * VCPUS_PER_GPU * CPU_SHARE
    text = 250e6 + 32 * MIB
    expected = (
        9 * 100e6 / RENTED_LINE_BYTES_PER_S.p50
        + 256 * MIB / TRAIN_BYTES_PER_S
        + text / (cores * TOKENIZE_BYTES_PER_CPU_S)
        - IMPORT_S
    )
    assert found.begins_after_s == pytest.approx(expected)
    assert found.wait.p50 == pytest.approx(expected)
    assert found.wait.p10 < found.wait.p50 < found.wait.p90
    assert found.download_bytes == (10 + 1) * 100_000_000
    assert found.disk_bytes > 10 * 55_000_000 * 2
    assert found.tokens_bytes == found.disk_bytes - found.download_bytes


@pytest.mark.parametrize("name", ["fineweb10B-gpt2", "generated"])
def test_a_bucket_keeps_no_tokens_that_are_as_near_elsewhere(name: str) -> None:
    assert estimate_data(source_of(name), phases(500_000_000), EIGHT).tokens_bytes == 0


def test_what_a_bucket_keeps_of_tokens_is_paid_for(trm: Recipe) -> None:
    spec = RunSpec("trm", ("fast",), "8xH100", bucket="s3://b/p")
    found = outlook_on(trm, spec, EIGHT, source=source_of("fineweb-edu"))
    assert found.tokens_gb > 0.1
    assert kept_micros_per_hour(found, "runpod") > kept_micros_per_hour(
        found._replace(data=None), "runpod"
    )


def test_a_tokenizer_that_is_given_is_not_waited_for() -> None:
    source = source_of("fineweb-edu")
    new = estimate_data(source, phases(10**9), EIGHT)
    given = estimate_data(source, phases(10**9), EIGHT, has_tokenizer=True)
    assert given.begins_after_s < new.begins_after_s - 100
    tokens = estimate_data(source_of("fineweb10B-gpt2"), phases(10**9), EIGHT)
    assert (tokens.begins_after_s, tokens.text_bytes) == (0.0, 0)


def test_tokenizing_that_cannot_keep_up_is_waited_for() -> None:
    one = rented_machine("RTX4090", 1)
    quick = estimate_data(source_of("openwebtext"), phases(4 * 10**9, 600.0), one)
    assert quick.late_s == pytest.approx(
        quick.make_s - quick.begins_after_s - IMPORT_S - 600.0, rel=1e-9
    )
    assert quick.wait.p50 == pytest.approx(quick.begins_after_s + quick.late_s)
    assert quick.wait.p50 > 600
    slow = estimate_data(source_of("openwebtext"), phases(4 * 10**9, 1e6), one)
    assert slow.late_s == 0.0
    words = quick.words(Usd("0.69"))
    assert "training waits" in words[1]
    assert "of waiting" in words[1]
    assert "it keeps up" in slow.words(Usd("0.69"))[1]


def test_a_text_of_ones_own_costs_its_way_there() -> None:
    own = DataSource("/home/me/text.txt")
    sent = estimate_data(own, phases(1), EIGHT, tokens_here=50_000_000)
    assert sent.wait.p50 == pytest.approx(100e6 / UPLOAD_BYTES_PER_S.p50)
    assert "made ready here and sent" in sent.where
    here = estimate_data(own, phases(1), LAPTOP, tokens_here=50_000_000)
    assert here.wait.p90 == 0
    assert "made ready here first" in here.where


def test_a_wait_of_no_length_is_not_told() -> None:
    wait = Interval(0.02, 0.03, 0.05)
    brief = DataEstimate("notes.txt: sent from here", wait, begins_after_s=0.03)
    assert brief.words(Usd(1)) == ("data: notes.txt: sent from here",)
    told = brief._replace(begins_after_s=0.6, wait=Interval(0.5, 0.6, 1.0)).words(Usd(6))
    assert told[1] == "data: first batch about 1 s late, $0.0010 of waiting"


def test_an_address_of_unknown_size_says_so() -> None:
    found = estimate_data(source_of("https://host.example/a.parquet"), phases(1), EIGHT)
    assert not found.known
    assert "not known before it is fetched" in found.words(Usd(1))[1]


@pytest.mark.parametrize(
    ("name", "rented", "there"),
    [
        ("fineweb-edu", True, True),
        ("fineweb10B-gpt2", True, True),
        ("generated", True, True),
        ("gsm8k", False, True),
        ("https://host.example/a.jsonl", True, True),
        ("tinyshakespeare", True, False),
        ("python-stdlib", True, False),
        ("/a/text", True, False),
    ],
)
def test_where_data_is_made(name: str, rented: bool, there: bool) -> None:
    source = source_of(name)
    assert source.made_there is there
    assert source.where_and_why(rented=rented).startswith(f"{name}: made")


def test_a_plan_counts_it(trm: Recipe, offers: list[Offer]) -> None:
    spec = RunSpec("trm", ("fast", "extreme"), "8xH100", budget=Usd(1000))
    bare = make_plan(spec, trm, offers, NOW, "p-0").candidates[0]
    with_data = make_plan(spec, trm, offers, NOW, "p-0", source=source_of("fineweb-edu"))
    made = with_data.candidates[0]
    wait_s = made.phases[0].parts_s["data"]
    assert wait_s > 60
    assert "data" not in made.phases[1].parts_s
    assert made.phases[0].seconds.p50 == pytest.approx(sum(made.phases[0].parts_s.values()))
    assert made.hours.p50 * 3600 == pytest.approx(bare.hours.p50 * 3600 + wait_s)
    rent = float(made.rate) * wait_s / 3600
    assert float(made.cost_p50 - bare.cost_p50) == pytest.approx(rent, rel=0.1)
    assert made.storage > bare.storage
    told = [reason for _, reason in made.reasons if reason.startswith("data: ")]
    assert len(told) == 2
    assert "made on the rented machine" in told[0]


def test_a_small_set_read_often_is_warned_of(trm: Recipe, offers: list[Offer]) -> None:
    spec = RunSpec("trm", ("fast",), "8xH100")
    plan = make_plan(spec, trm, offers, NOW, "p-0", source=source_of("gsm8k"))
    assert any("warning: beyond" in reason for _, reason in plan.candidates[0].reasons)


def test_more_tokens_than_there_are_shards_for() -> None:
    small = replace(load_data_set("openwebtext"), last=3, tokenizer_shards=1)
    found = estimate_data(DataSource("openwebtext", small), phases(10**12), EIGHT)
    assert found.download_bytes == 5 * small.shard_bytes
