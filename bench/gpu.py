"""Steps on a real GPU: the trainer's recipes, and nanochat's speed run beside ours, in turn.

``python -m bench.gpu --out FOLDER --seconds S [CASE…]`` on a machine with a GPU; ``PEER_PATH``
names a checkout of nanochat. Each case is a process of its own, whose result is one line of
``FOLDER/steps.jsonl``; no case begins after S seconds. Ratios are of cases of one call.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.hardware import gpu_of
from trmcloud.core.planner.memory import predict_memory
from trmcloud.core.planner.speed import rented_machine, step_seconds
from trmcloud.core.spec.settings import PhaseRecipe, parse_setting

D24 = ("speedrun", "--set", "batch=16", "--set", "accumulation=4", "--set", "dtype=bfloat16")
SELECTIVE = ("--set", "activation_checkpointing=true", "--set", "selective_checkpointing=true")
CASES: dict[str, tuple[str, ...]] = {
    "speedrun": D24,
    "nanochat": ("nanochat", "16", "bfloat16"),
    "speedrun, cuDNN": ("cudnn", *D24),
    "speedrun, float8": (*D24[:5], "--set", "dtype=float8"),
    "nanochat, float8": ("nanochat", "16", "float8"),
    "speedrun, selective": (*D24, *SELECTIVE),
    "speedrun, full": (*D24, "--set", "activation_checkpointing=true"),
    "trm": ("trm", "--phase", "extreme"),
    "bd3lm": ("bd3lm",),
    "hdp": ("hdp",),
    "gpt350m": ("gpt350m",),
    "d24": ("d24", "--set", "dtype=bfloat16"),
    "d32": ("d32", "--set", "dtype=bfloat16"),
    "d32, selective": ("d32", "--set", "dtype=bfloat16", *SELECTIVE),
    "gpt350m, 32 rows": ("gpt350m", "--set", "batch=32", "--set", "accumulation=4"),
    "speedrun, 32 rows": ("speedrun", "--set", "batch=32", "--set", "dtype=bfloat16"),
}
PROFILED = ("speedrun", "nanochat", "trm", "bd3lm")
_STEPS = 6
_ROWS = 25
_SHORTEST_S = 20.0
"""A case is not begun with less."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--one", help="runs this case in this process")
    parser.add_argument("--device", default="cuda", help="default: cuda")
    chosen = parser.parse_args()
    if chosen.one:
        with (chosen.out / "gpu.lock").open("w") as lock:
            print(
                json.dumps(
                    run(
                        *(chosen.one, chosen.out, chosen.device),
                        wait=lambda: fcntl.flock(lock, fcntl.LOCK_EX),
                    )
                ),
                flush=True,
            )
        return
    import torch

    if chosen.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU is to be seen")
    chosen.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + chosen.seconds
    names = chosen.cases or list(CASES)
    peers = [name for name in names if CASES[name][0] == "nanochat"]
    ours = [name for name in names if name not in peers]
    writing = threading.Lock()

    def take(these: Sequence[str]) -> None:
        for name in these:
            left = until - time.monotonic()
            if left < _SHORTEST_S:
                print(f"{name}: no time left", flush=True)
                continue
            made = _in_process(name, chosen.out, chosen.device, left)
            with writing, (chosen.out / "steps.jsonl").open("a") as lines:
                lines.write(json.dumps(made) + "\n")
            print(_text(made), flush=True)

    # A peer compiles for minutes, on processor cores: so it does beside our cases. Timed steps are
    # taken by one process at a time.
    beside = threading.Thread(target=take, args=(peers,))
    beside.start()
    take(ours)
    beside.join()


def _in_process(name: str, out: Path, device: str, left: float) -> dict[str, Any]:
    begun = time.monotonic()
    argv = [sys.executable, "-m", "bench.gpu", "--out", str(out), "--one", name]
    argv += ["--device", device]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return {"case": name, "failed": "no time left"}
    wall_s = round(time.monotonic() - begun, 1)
    (out / f"{name.replace(', ', '-').replace(' ', '-')}.err").write_text(done.stderr[-20_000:])
    if done.returncode:
        told = [each for each in done.stderr.splitlines() if each.strip()]
        return {"case": name, "failed": " | ".join(told[-3:])[-600:], "wall_s": wall_s}
    return {"case": name, **json.loads(done.stdout.splitlines()[-1]), "wall_s": wall_s}


def run(name: str, out: Path, device: str, wait: Callable[[], None]) -> dict[str, Any]:
    """The case's figures, and where it is one of ``PROFILED`` its kernels in a file beside them.

    Args:
        wait: is called before the first timed step.
    """
    import torch

    kind, *rest = CASES[name]
    if kind == "cudnn":
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(True)
        kind, *rest = rest
    profile = out / f"kernels-{name}.txt" if name in PROFILED else None
    if kind == "nanochat":
        return _nanochat(int(rest[0]), rest[1], profile, wait)
    from model.check import measure
    from model.families.registry import provide_families

    provide_families()

    settings = _settings([kind, *rest])
    watch = None if profile is None else (lambda step: _profiled(step, profile))
    made = measure(settings, torch.device(device), steps=_STEPS, compiled=wait, watch=watch)
    return {**asdict(made), **_predicted(settings, made.device)}


def _settings(words: Sequence[str]) -> PhaseRecipe:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--phase", default="", help="default: the recipe's last")
    parser.add_argument("--set", action="append", default=[], dest="chosen")
    chosen = parser.parse_args(words)
    recipe = load_recipe(chosen.recipe)
    return recipe.resolve(
        chosen.phase or list(recipe.phases)[-1],
        hardware=recipe.reference_hardware,
        gpus=1,
        overrides=dict(parse_setting(each) for each in chosen.chosen),
    )


def _predicted(settings: PhaseRecipe, device: str) -> dict[str, float]:
    """The planner's figures; none for a GPU that it does not know."""
    gpu = gpu_of(device)
    if gpu is None:
        return {}
    tokens = settings.accumulation * settings.batch * settings.sequence
    step_s = step_seconds(settings, rented_machine(gpu.sku, 1))
    return {
        "predicted_tokens_per_s": tokens / step_s,
        "predicted_gb": predict_memory(settings, 1).total,
    }


def _profiled(step: Callable[[], object], path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as taken:
        step()
        torch.cuda.synchronize()
    table = taken.key_averages().table(sort_by="self_cuda_time_total", row_limit=_ROWS)
    path.write_text(table)


def _nanochat(
    batch: int, dtype: str, path: Path | None, wait: Callable[[], None]
) -> dict[str, Any]:
    """Its d24 as its script trains it, without windows where FlashAttention 3 is not installed."""
    import torch

    sys.path.insert(0, os.environ["PEER_PATH"])
    from nanochat.flash_attention import USE_FA3  # type: ignore[import-not-found]
    from nanochat.gpt import GPT, GPTConfig  # type: ignore[import-not-found]

    begun = time.monotonic()
    sequence, vocabulary, micros = 2048, 32768, 4
    with torch.device("meta"):
        model: Any = GPT(GPTConfig(sequence, vocabulary, 24, 12, 12, 1536, "L"))
    model.to_empty(device="cuda")
    model.init_weights()
    if dtype == "float8":
        from nanochat.fp8 import (  # type: ignore[import-not-found]
            Float8LinearConfig,
            convert_to_float8_training,
        )

        def fits(module: Any, name: str) -> bool:
            sides = (module.in_features, module.out_features)
            return not any(side % 16 for side in sides) and min(sides) >= 128

        config = Float8LinearConfig.from_recipe_name("tensorwise")
        convert_to_float8_training(
            model,
            config=config,
            module_filter_fn=lambda m, n: isinstance(m, torch.nn.Linear) and fits(m, n),
        )
    optimizer = model.setup_optimizer()
    compiled: Any = torch.compile(model, dynamic=False)
    rows = torch.randint(0, vocabulary, (batch, sequence + 1), device="cuda")
    x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    losses: list[float] = []

    def step(count: int) -> None:
        for _ in range(count):
            loss = compiled(x, y)
            (loss / count).backward()
        optimizer.step()
        compiled.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))

    def timed(count: int) -> float:
        times = []
        for at in range(3 + _STEPS):
            torch.cuda.synchronize()
            start = time.monotonic()
            step(count)
            torch.cuda.synchronize()
            if at >= 3:
                times.append(time.monotonic() - start)
        return statistics.median(times)

    step(1)
    compile_s = time.monotonic() - begun
    wait()
    first, several = timed(1), timed(micros)
    if path is not None:
        _profiled(lambda: step(1), path)
    micro_s = (several - first) / (micros - 1)
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": dtype,
        "fa3": USE_FA3,
        "batch": batch,
        "compile_s": compile_s,
        "micro_s": micro_s,
        "once_s": first - micro_s,
        "tokens_per_s": micros * batch * sequence / several,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def _text(made: dict[str, Any]) -> str:
    if "failed" in made:
        return f"{made['case']:22} FAILED after {made.get('wall_s')} s: {made['failed']}"
    figures = {
        "micro ms": 1e3 * made["micro_s"],
        "once ms": 1e3 * made["once_s"],
        "tokens/s": made["tokens_per_s"],
        "MFU %": 100 * (made.get("mfu") or 0.0),
        "peak GB": made["peak_gb"] or 0.0,
        "reserved": made["reserved_gb"] or 0.0,
        "planned GB": made.get("predicted_gb") or 0.0,
        "planned tokens/s": made.get("predicted_tokens_per_s") or 0.0,
        "compile s": made["compile_s"],
        "loss": made["first_loss"],
        "to": made["last_loss"],
    }
    words = "  ".join(f"{name} {value:,.1f}" for name, value in figures.items())
    return f"{made['case']:20} {made['dtype']}  {words}"


if __name__ == "__main__":
    main()
