"""Open checkpoints with their own framework, in a process of the environment that has it.

``python -m tests.own.openers NAME STEPS FOLDER...`` prints one JSON object per folder: the step in
the script's own counting, null where the checkpoint does not hold it, or why it does not open.
STEPS is the length that the script was given. What one folder holds has to be one checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class NotFoundError(Exception):
    """The folder holds no checkpoint of this framework, or more than one."""


def only(folder: Path, *patterns: str) -> Path:
    found = sorted(path for pattern in patterns for path in folder.rglob(pattern))
    if len(found) != 1:
        raise NotFoundError(f"{[str(path.relative_to(folder)) for path in found]} for {patterns}")
    return found[0]


def number_in(name: str) -> int | None:
    found = re.findall(r"[0-9]+", name)
    return int(found[-1]) if found else None


def require(shapes: Iterable[Any], *wanted: tuple[int, ...]) -> None:
    found = [tuple(shape) for shape in shapes]
    missing = [shape for shape in wanted if shape not in found]
    assert not missing, f"no tensor of {missing}, only {found}"


def global_step(folder: Path) -> int | None:
    """Of transformers' state where it is of this checkpoint."""
    path = folder / "trainer_state.json"
    return int(json.loads(path.read_text())["global_step"]) if path.exists() else None


def open_transformers(folder: Path, steps: int) -> int | None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = only(folder, "model.safetensors").parent
    model, about = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not about["missing_keys"], about
    assert not about["unexpected_keys"], about
    tokenizer = AutoTokenizer.from_pretrained(path)
    inputs = tokenizer("the cat sees question", return_tensors="pt")
    logits = model(input_ids=inputs["input_ids"]).logits
    require([logits.shape], (1, inputs["input_ids"].shape[1], model.config.vocab_size))
    return global_step(path)


def open_peft(folder: Path, steps: int) -> int | None:
    import torch
    from peft import PeftModel

    from tests.own.scripts.peft_lora import VOCABULARY, make_base

    path = only(folder, "adapter_model.safetensors").parent
    model = PeftModel.from_pretrained(make_base(), path)
    shapes = [value.shape for name, value in model.named_parameters() if "lora_" in name]
    assert len(shapes) == 4, shapes
    require(shapes, (4, 32), (96, 4))
    lora_b = [value for name, value in model.named_parameters() if "lora_B" in name]
    assert all(value.abs().sum() > 0 for value in lora_b), "the adapter is untrained"
    require([model(input_ids=torch.zeros(1, 5, dtype=torch.long)).logits.shape], (1, 5, VOCABULARY))
    return global_step(path)


def open_accelerate(folder: Path, steps: int) -> int | None:
    import torch
    from accelerate import Accelerator, load_checkpoint_in_model

    from tests.own.scripts.accelerate_state import make_model

    path = only(folder, "model.safetensors").parent
    model = make_model()
    if not (path / "optimizer.bin").exists():
        load_checkpoint_in_model(model, path)
        return None
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    accelerator.prepare(model, optimizer, schedule)
    accelerator.load_state(str(path))
    require([value.shape for value in optimizer.state_dict()["state"][0].values()], (32, 8))
    return int(schedule.last_epoch)


def open_lightning(folder: Path, steps: int) -> int | None:
    import torch

    from tests.own.scripts.lightning_defaults import Regression

    path = only(folder, "*.ckpt")
    model = Regression.load_from_checkpoint(path)
    require([model.network(torch.zeros(5, 8)).shape], (5, 1))
    return int(torch.load(path, weights_only=True)["global_step"])


def open_orbax(folder: Path, steps: int) -> int | None:
    import orbax.checkpoint as ocp

    from tests.own.scripts.orbax_flax import make_state

    path = only(folder, "_CHECKPOINT_METADATA").parent
    with tempfile.TemporaryDirectory() as made:
        step = number_in(path.name) or 1  # its folder is the step: the manager needs that name
        shutil.copytree(path, Path(made, str(step)))
        with ocp.CheckpointManager(Path(made).resolve()) as manager:
            state = manager.restore(step, args=ocp.args.StandardRestore(make_state()))
    require([state.params["params"]["Dense_0"]["kernel"].shape], (8, 32))
    return int(state.step)


def open_keras(folder: Path, steps: int) -> int | None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras
    import numpy as np

    model = keras.models.load_model(only(folder, "*.keras"))
    require([model(np.zeros((5, 8), "float32")).shape], (5, 1))
    return int(model.optimizer.iterations) // 8


def open_xgboost(folder: Path, steps: int) -> int | None:
    import numpy as np
    import xgboost as xgb

    booster = xgb.Booster()
    booster.load_model(only(folder, "*.ubj"))
    require([booster.predict(xgb.DMatrix(np.zeros((5, 8)))).shape], (5,))
    return int(booster.num_boosted_rounds())


def open_lightgbm(folder: Path, steps: int) -> int | None:
    import lightgbm as lgb
    import numpy as np

    booster = lgb.Booster(model_file=only(folder, "*.txt"))
    require([booster.predict(np.zeros((5, 8))).shape], (5,))
    return int(booster.current_iteration())


def open_sklearn(folder: Path, steps: int) -> int | None:
    import joblib
    import numpy as np

    model = joblib.load(only(folder, "*.joblib"))
    require([model.predict_proba(np.zeros((5, 8))).shape], (5, 2))
    return int(model.t_) // 800


def open_dcp(folder: Path, steps: int) -> int | None:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load

    from tests.own.scripts.dcp_torchrun import make_model

    path = only(folder, ".metadata").parent
    model = make_model()
    assert len(list(path.glob("*.distcp"))) == 2, "the parts of two ranks"
    for value in model.state_dict().values():
        value.zero_()
    state = {"model": model.state_dict(), "step": 0}
    load(state, checkpoint_id=path, no_dist=True)
    assert all(torch.count_nonzero(value) for value in model.state_dict().values())
    return int(state["step"])


def open_torch(folder: Path, steps: int) -> int | None:
    import torch

    from tests.own.scripts.torch_evaluate_save import make_model

    path = only(folder, "*.pt", "*.pth", "*.ckpt")
    state = torch.load(path, weights_only=True)
    make_model().load_state_dict(state["state_dict" if path.suffix == ".ckpt" else "model"])
    return int(state["epoch"])


def open_catboost(folder: Path, steps: int) -> int | None:
    from catboost import CatBoostClassifier

    from tests.own.scripts.catboost_snapshot import make_data, make_model

    path = only(folder, "*.cbm", "*.cbsnapshot")
    x, y = make_data()
    if path.suffix == ".cbm":
        model = CatBoostClassifier().load_model(str(path))
        require([model.predict_proba(x[:5]).shape], (5, 2))
        return int(model.tree_count_)
    begun = []

    class Stop:
        def after_iteration(self, info: Any) -> bool:
            begun.append(int(info.iteration))
            return False

    with tempfile.TemporaryDirectory() as made:
        copy = shutil.copy(path, made)
        model = make_model(steps).set_params(train_dir=made)
        model.fit(
            *(x[:800], y[:800]),
            eval_set=(x[800:], y[800:]),
            save_snapshot=True,
            snapshot_file=copy,
            callbacks=[Stop()],
        )
    if not begun:
        return steps  # all trees were there
    assert begun[0] > 1, "it began anew"
    return begun[0] - 1


def open_deepspeed(folder: Path, steps: int) -> int | None:
    import torch

    from tests.own.scripts.deepspeed_layout import make_model

    path = only(folder, "mp_rank_00_model_states.pt")
    state = torch.load(path, weights_only=True)
    model = make_model()
    model.load_state_dict(state["module"])
    moments = torch.load(
        only(folder, "zero_pp_rank_0_mp_rank_00_optim_states.pt"), weights_only=True
    )
    torch.optim.AdamW(model.parameters()).load_state_dict(moments["optimizer_state_dict"])
    return int(state["global_steps"])


def open_plain(folder: Path, steps: int) -> int | None:
    import torch

    from tests.own.scripts.plain_names import make_model

    path = only(folder, "step_*")
    make_model().load_state_dict(torch.load(path, weights_only=True))
    return number_in(path.name)


def open_torch_any(folder: Path, steps: int) -> int | None:
    return _finite(folder, weights_only=True)


def open_torch_pickle(folder: Path, steps: int) -> int | None:
    """It holds more than tensors: the script's own code is imported."""
    return _finite(folder, weights_only=False)


def _finite(folder: Path, *, weights_only: bool) -> int | None:
    """Load what ``torch.save`` wrote: it holds tensors, and their numbers are finite."""
    import torch

    for path in (path for path in sorted(folder.rglob("*")) if path.is_file()):
        with open(path, "rb") as content:
            if content.read(2) != b"PK":
                continue
        state = torch.load(path, weights_only=weights_only, map_location="cpu")
        if isinstance(state, torch.nn.Module):
            state = state.state_dict()
        if isinstance(state, dict) and "state_dict" in state:
            state = state["state_dict"]  # what stands beside it may be infinite, as a worst value
        tensors = list(_tensors(state))
        assert tensors, f"{path.name} holds no tensor"
        assert all(bool(torch.isfinite(each.float()).all()) for each in tensors), path.name
        return None
    raise NotFoundError(f"no file of torch in {folder}")


def _tensors(state: Any) -> Iterable[Any]:
    import torch

    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for each in state.values() if isinstance(state, dict) else state:
            yield from _tensors(each)


def open_safetensors(folder: Path, steps: int) -> int | None:
    from safetensors.torch import load_file

    assert load_file(only(folder, "model.safetensors")), "it holds no tensor"
    return None


def open_keras_any(folder: Path, steps: int) -> int | None:
    import keras

    assert keras.models.load_model(only(folder, "*.keras", "*.h5")).count_params()
    return None


def open_lightgbm_any(folder: Path, steps: int) -> int | None:
    import lightgbm as lgb

    return int(lgb.Booster(model_file=only(folder, "model.txt")).current_iteration())


OPENERS: dict[str, Callable[[Path, int], int | None]] = {
    name.removeprefix("open_"): opener
    for name, opener in list(globals().items())
    if name.startswith("open_")
}


def main() -> None:
    name, steps, *folders = sys.argv[1:]
    for folder in folders:
        told: dict[str, object]
        try:
            told = {"step": OPENERS[name](Path(folder), int(steps))}
        except NotFoundError as error:
            told = {"not_found": str(error)}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
