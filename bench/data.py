"""Making data and reading it: each figure against its own baseline within one run.

``python -m bench data``; ``TRMCLOUD_BENCH_SHORT=1`` takes less text. CPU-seconds are those of all
processes, and marginal: what more text costs more, so that starting up does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.row import Row
from trmcloud.core.spec.settings import PhaseRecipe

ROOT = Path(__file__).parents[1]
SHORT = os.environ.get("TRMCLOUD_BENCH_SHORT") == "1"
SHARDS = 4 if SHORT else 6
SHARD_BYTES = 6 << 20
ROUNDS = 1 if SHORT else 2
VOCABULARY = 65_536
DOCUMENT_CHARACTERS = 3000

_ENCODE = """
import json, resource, sys, time
from tokenizers import Tokenizer
import pyarrow.parquet as pq
inner = Tokenizer.from_file(sys.argv[1])
texts = [t for path in sys.argv[2:] for t in pq.read_table(path)["text"].to_pylist()]
inner.encode_batch(texts[:20])
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
began = cpu()
tokens = 0
for at in range(0, len(texts), 1000):
    tokens += sum(len(each.ids) for each in inner.encode_batch(texts[at : at + 1000]))
print(json.dumps([tokens + len(texts), cpu() - began]))
"""


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder))
        yield bench.per_cpu_second()
        yield bench.two_cores()
        yield from bench.memory()
    yield download_share()
    with tempfile.TemporaryDirectory() as folder:
        yield data_wait(Path(folder))


class _Bench:
    """Parquet shards of the standard library's own sources, and a tokenizer for them."""

    def __init__(self, root: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from model.data.tokenizers import BpeTokenizer
        from model.preparing.sources import open_source, read_pieces

        self.root = root
        self.files = []
        text = "".join(
            piece
            for document in open_source("python-stdlib").documents
            for piece in read_pieces(document)
        )
        text = text * (1 + (SHARDS + 1) * SHARD_BYTES // len(text))
        for number in range(SHARDS + 1):
            part = text[number * SHARD_BYTES : (number + 1) * SHARD_BYTES]
            documents = [
                part[at : at + DOCUMENT_CHARACTERS]
                for at in range(0, len(part), DOCUMENT_CHARACTERS)
            ]
            path = root / "all" / f"shard_{number:05d}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"text": documents}), path, row_group_size=512)
            self.files.append(path)
        for name, count in (("few", 2), ("all", SHARDS)):
            (root / name).mkdir(exist_ok=True)
            for path in (*self.files[:count], self.files[-1]):
                if not (root / name / path.name).exists():
                    os.link(path, root / name / path.name)
        self.tokenizer = root / "tokenizer.json"
        self.tokenizer.write_text(BpeTokenizer.train([text[: 4 << 20]], VOCABULARY).to_json())

    def prepare(
        self, name: str, workers: int, cores: int = 0, tokenizer: bool = True
    ) -> tuple[dict[str, Any], float, float]:
        """(``progress.json``, CPU-seconds of all its processes, wall seconds)."""
        number = time.monotonic_ns()
        settings = PhaseRecipe("bench", "trm", "fast", vocab_size=VOCABULARY, batch=1, sequence=64)
        (self.root / "settings.json").write_text(json.dumps(settings.to_json()))
        out = self.root / f"out-{number}"
        command = [
            *(sys.executable, "-m", "model.prepare", "--source", str(self.root / name)),
            *("--settings", str(self.root / "settings.json"), "--out", str(out)),
            *("--cache", str(self.root / f"cache-{number}"), "--tokens", str(10**9)),
            *("--workers", str(workers)),
            *(("--tokenizer", str(self.tokenizer)) if tokenizer else ()),
        ]
        if cores:
            command = ["taskset", "-c", ",".join(map(str, range(cores))), *command]
        before, began = _children_cpu_s(), time.perf_counter()
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        wall_s = time.perf_counter() - began
        return json.loads((out / "progress.json").read_text()), _children_cpu_s() - before, wall_s

    def per_cpu_second(self) -> Row:
        ratios, ours_all, theirs_all = [], [], []
        for _ in range(ROUNDS):
            few, few_s, _ = self.prepare("few", 1)
            whole, whole_s, _ = self.prepare("all", 1)
            ours = (whole["tokens"] - few["tokens"]) / (whole_s - few_s)
            files = [str(path) for path in self.files[2:SHARDS]]
            said = subprocess.run(
                [sys.executable, "-c", _ENCODE, str(self.tokenizer), *files],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            tokens, cpu_s = json.loads(said)
            assert tokens == whole["tokens"] - few["tokens"], "the very same text"
            ratios.append(ours / (tokens / cpu_s))
            ours_all.append(ours)
            theirs_all.append(tokens / cpu_s)
        return Row(
            "data: tokens per CPU-second ÷ encode_batch", statistics.median(ratios), 0.9, "higher",
            "×", f"ours {statistics.median(ours_all):,.0f}, the library's "
            f"{statistics.median(theirs_all):,.0f}; parquet, cache and hashes included",
        )  # fmt: skip

    def two_cores(self) -> Row:
        """Marginal wall time of two processes against one's, each the shortest of the rounds.

        CPU-seconds ÷ (wall × cores) says whether the machine gave both the cores they were to have:
        far below the 1 of an idle one, the row is of the other load and not of this code.
        """
        speeds, shares = [], []
        for cores in (1, 2):
            rounds: dict[str, list[tuple[float, float, int]]] = {"few": [], "all": []}
            for _ in range(ROUNDS):
                for name, made in rounds.items():
                    said, cpu_s, wall_s = self.prepare(name, cores, cores)
                    made.append((wall_s, cpu_s, int(said["tokens"])))
            few, whole = min(rounds["few"]), min(rounds["all"])
            extra_s = whole[0] - few[0]
            speeds.append((whole[2] - few[2]) / extra_s if extra_s > 0 else 0.0)
            shares.append((whole[1] - few[1]) / (extra_s * cores) if extra_s > 0 else 0.0)
        ratio = speeds[1] / speeds[0] if speeds[0] else 0.0
        return Row(
            "data: tokens per second, 2 cores ÷ 1", ratio, 1.8, "higher", "×",
            f"shortest of {ROUNDS} rounds; one core was given {100 * shares[0]:,.0f} % of, two "
            f"{100 * shares[1]:,.0f} %: below about 90 % the machine was not idle",
        )  # fmt: skip

    def memory(self) -> Iterator[Row]:
        few, _, _ = self.prepare("few", 2, tokenizer=False)
        whole, _, _ = self.prepare("all", 2, tokenizer=False)
        small, large = few["peaks"]["worker"] / 1e6, whole["peaks"]["worker"] / 1e6
        taught = whole["peaks"]["tokenizer"] / 1e6
        yield Row(
            "data: memory of a worker", large, 150, "lower", "MB",
            f"the tokenizer's training took {taught:,.0f} MB for "
            f"{SHARDS * SHARD_BYTES / 1e6:,.0f} MB of text and a vocabulary of {VOCABULARY:,}; "
            "725 MB for 268, measured apart",
        )  # fmt: skip
        yield Row(
            "data: memory of a worker, all text ÷ a part", large / small, 1.1, "lower", "×",
            f"{SHARDS} shards against 2: {large:,.0f} and {small:,.0f} MB",
        )  # fmt: skip


def download_share() -> Row:
    """Bytes per second of eight downloads, hashed, against what the host lets through."""
    from model.preparing.fetch import Fetcher, RetryClock

    rate, size = 60e6, (8 << 20) if SHORT else (32 << 20)
    body = os.urandom(size)
    pauses = RetryClock(time.sleep, time.monotonic, time.time, lambda: 0.5)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        served = Path(folder, "served/datasets/me/x/resolve/main")
        served.mkdir(parents=True)
        for number in range(8):
            (served / f"f{number}").write_bytes(body)
        host = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.standins.data_host"),
                *(str(Path(folder, "served")), str(rate)),
            ],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert host.stdout is not None
        hosts = host.stdout.readline().partition("=")[2].strip().strip('"')
        fetcher = Fetcher({"TRMCLOUD_DATA_HOSTS": hosts}, pauses)
        fetcher.fetch(  # the host counts its hashes at the first request
            "https://huggingface.co/datasets/me/x/resolve/main/f0", Path(folder, "first")
        )
        began = time.perf_counter()
        made = list(
            pool.map(
                lambda n: fetcher.fetch(
                    f"https://huggingface.co/datasets/me/x/resolve/main/f{n}", Path(folder, f"f{n}")
                ),
                range(8),
            )
        )
        seconds = time.perf_counter() - began
        host.kill()
        host.wait()
    assert {each.sha256 for each in made} == {hashlib.sha256(body).hexdigest()}
    return Row(
        "data: download ÷ the host's rate", 8 * size / seconds / rate, 0.95, "higher", "×",
        f"{8 * size / seconds / 1e6:,.1f} of {rate / 1e6:,.0f} MB/s, SHA-256 of all of it",
    )  # fmt: skip


def data_wait(root: Path) -> Row:
    """The share of a step in which the loop stood still for want of a batch, training for real."""
    settings = PhaseRecipe.from_json(
        {
            **{"recipe": "bench", "family": "trm", "phase": "fast", "depth": 2, "width": 128},
            **{"head_dim": 32, "supervision_steps": 2, "loops": 1, "vocab_size": 2048},
            **{"sequence": 256, "batch": 8, "steps": 30, "dtype": "float32", "compile": False},
            **{"log_every": 1, "eval_every": 1000, "eval_tokens": 4096, "save_every": 1000},
            "warmup_steps": 2,
        }
    )
    (root / "settings.json").write_text(json.dumps(settings.to_json()))
    subprocess.run(
        [
            *(sys.executable, "-m", "model.prepare", "--source", "python-stdlib"),
            *("--settings", str(root / "settings.json"), "--out", str(root / "data")),
        ],
        cwd=ROOT, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    job = {
        "run_id": "bench", "phase": "fast", "settings": settings.to_json(), "version": 1,
        "data_dir": str(root / "data"), "out_dir": str(root / "run"), "processes": 1,
    }  # fmt: skip
    (root / "job.json").write_text(json.dumps(job))
    subprocess.run(
        [sys.executable, "-m", "model.train"],
        cwd=ROOT, env={**os.environ, "TRMCLOUD_JOB": str(root / "job.json")},
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in (root / "run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"][2:]
    share = sum(s["data_wait_s"] for s in steps) / sum(s["step_seconds"] for s in steps)
    each = statistics.median(s["data_wait_s"] for s in steps)
    return Row(
        "data: wait for a batch ÷ step", 100 * share, 1.0, "lower", "%",
        f"{each * 1e6:,.0f} µs a step, once started",
    )  # fmt: skip


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
