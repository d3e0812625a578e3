"""Twelve further public scripts, drawn by rule; rows as in ``public.py``.

The rule. A candidate is a repository that was never tried before and could be read whole (less than
500 MB), with a script that saves and states a metric; ``CANDIDATES`` were collected by hand. Within
its kind they are sorted by the sha256 of ``OWNER/NAME:PATH`` and taken in that order, one per
owner: two through transformers or Keras, one each through MLflow, wandb, Ray and Optuna, two that
only print, two whose data folder gets an awkward name and tree, one that trains several models, one
whose start fails once (the next of those that only print, with a start that fails as a stated
replacement). One is skipped only if it does not run on a CPU in 90 s with stated replacements:
``SKIPPED`` says why, and was written before any cell was played.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tests.own.public import (
    Patch,
    Public,
    Record,
    Saved,
    both,
    endings_of,
    once,
    read_numbers,
    trainer_log,
)

CANDIDATES = {
    "transformers or keras": (
        "UKPLab/sentence-transformers:examples/sentence_transformer/training/sts/training_stsbenchmark.py",
        "lm-sys/FastChat:fastchat/train/train.py",
        "philipperemy/keras-tcn:tasks/save_reload_sequential_model.py",
    ),
    "mlflow": (
        "Azure/azureml-examples:cli/jobs/single-step/pytorch/iris/src/main.py",
        "Azure/azureml-examples:sdk/python/jobs/single-step/pytorch"
        "/train-hyperparameter-tune-deploy-with-pytorch/src/pytorch_train.py",
    ),
    "wandb": (
        "corl-team/CORL:algorithms/finetune/iql.py",
        "wandb/examples:examples/keras/keras-cnn-fashion/train.py",
        "wandb/examples:examples/pytorch/pytorch-cnn-fashion/train.py",
    ),
    "ray": ("GokuMohandas/Made-With-ML:madewithml/train.py",),
    "optuna": (
        "GiovanaSantiagoLima/welding-optuna-pytorch:src/treinamento.py",
        "LukeCPadmore/optuna-lightning-cli:main.py",
        "brethvoice/optuna_demo_MNIST:study_mnist_classifier_settings.py",
        "sktime/pytorch-forecasting:examples/stallion.py",
    ),
    "prints": (
        "PetarV-/DGI:execute.py",
        "akamaster/pytorch_resnet_cifar10:trainer.py",
        "bearpaw/pytorch-classification:cifar.py",
        "cloneofsimo/minDiffusion:superminddpm.py",
        "gordicaleksa/pytorch-GAT:training_script_cora.py",
        "spro/char-rnn.pytorch:train.py",
        "tanelp/tiny-diffusion:ddpm.py",
        "yunjey/pytorch-tutorial:tutorials/02-intermediate/language_model/main.py",
    ),
    "folder": (
        "WZMIAOMIAO/deep-learning-for-image-processing:pytorch_classification/Test5_resnet/train.py",
        "facebookresearch/mae:main_finetune.py",
        "leftthomas/SRGAN:train.py",
        "spro/practical-pytorch:char-rnn-classification/train.py",
    ),
    "several models": (
        "cure-lab/LTSF-Linear:run_longExp.py",
        "yuqinie98/PatchTST:PatchTST_supervised/run_longExp.py",
        "zhouhaoyi/Informer2020:main_informer.py",
    ),
}
SKIPPED = {
    "wandb/examples:examples/keras/keras-cnn-fashion/train.py": "it needs keras.utils.np_utils and"
    " wandb.keras, which the installed Keras 3 and wandb 0.31 do not have",
    "gordicaleksa/pytorch-GAT:training_script_cora.py": "it writes TensorBoard files, too",
    "bearpaw/pytorch-classification:cifar.py": "its progress bar is a submodule without text",
}

MISSES = {
    "resnet-fails-once": "a command without --resume is not restarted (docs/contract.md), even if"
    " a new start would work; the run ends with code 24 and is launched again by hand.",
}
"""By row: why its first verdicts are none of a best checkpoint."""


def in_order(kind: str) -> list[str]:
    """The candidates of a kind in the order in which they are taken."""
    return sorted(CANDIDATES[kind], key=lambda name: sha256(name.encode()).hexdigest())


def page_of_rule() -> str:
    """The paragraphs of the page that say how the scripts were drawn, and on which code."""
    package = Path(__file__).parents[2] / "trmcloud"
    code = sha256()
    files = [path for path in package.rglob("*") if path.is_file()]
    for path in sorted(path for path in files if "__pycache__" not in path.parts):
        code.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    misses = "\n".join(f"- {name}: {why}" for name, why in MISSES.items())
    skipped = "\n".join(f"- {name}: {why}." for name, why in SKIPPED.items())
    return f"""
The sha256 of trmcloud/ (names and bytes of its sorted files) is `{code.hexdigest()}`.
How the scripts were drawn: tests/own/public_more.py. Skipped before any cell was played:

{skipped}

Plays that failed by the row's own replacements were discarded: two of srgan (a crop too small for
VGG), four of forecasting-stallion (data not replaced, a logger without a folder). Misses, and why:

{misses}
"""


def in_turn(pattern: str, *files: str, first: int = 1) -> Record:
    """The n-th value is of the n-th save of ``files``."""

    def record(log: str, work: Path) -> list[Saved]:
        values = [float(text) for text in re.findall(read_numbers(pattern), log)]
        return [
            Saved(file.format(step=step), value)
            for step, value in enumerate(values, start=first)
            for file in files
        ]

    return record


def after_first(pattern: str, file: str) -> Record:
    """As ``in_turn``, for a file that the first epoch does not save."""
    return lambda log, work: in_turn(pattern, file)(log, work)[1:]


def per_experiment(log: str, work: Path) -> list[Saved]:
    """Each training announces its folder first."""
    made, value, folder = [], 0.0, ""
    for line in log.splitlines():
        if found := re.search(r"start training : (\S+?)>+$", line):
            folder = found[1]
        elif found := re.search(read_numbers(r"Vali Loss: NUMBER"), line):
            value = float(found[1])
        elif "Saving model" in line:
            made.append(Saved(f"checkpoints/{folder}/checkpoint.pth", value))
    return made


def evaluations(key: str, folder: str) -> Record:
    """By transformers' state of the newest checkpoint; ``final`` has the last one's weights."""

    def record(log: str, work: Path) -> list[Saved]:
        values: dict[int, float] = {}
        for path in work.glob(f"{folder}/checkpoint-*/trainer_state.json"):
            history = json.loads(path.read_text())["log_history"]
            values |= {line["step"]: line[key] for line in history if key in line}
        made = [
            Saved(f"{folder}/checkpoint-{step}/model.safetensors", value)
            for step, value in sorted(values.items())
        ]
        if values and list(work.glob(f"{folder}/final")):
            made.append(Saved(f"{folder}/final/model.safetensors", values[max(values)]))
        return made

    return record


def trials_events(log: str, work: Path) -> list[Saved]:
    """Each Optuna trial has TensorBoard files; a checkpoint is named by its epoch from 0."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = []
    for folder in work.glob("lightning_logs/optuna/version_*"):
        trial = folder.name.rpartition("_")[2]
        events = EventAccumulator(str(folder))
        events.Reload()
        if "val_loss" in events.Tags()["scalars"]:
            made += [
                Saved(f"optuna_test/trial_{trial}/epoch={epoch}.ckpt", event.value)
                for epoch, event in enumerate(events.Scalars("val_loss"))
            ]
    return made


def _patches(file: str, *pairs: tuple[str, str]) -> tuple[Patch, ...]:
    return tuple(Patch(file, old, new) for old, new in pairs)


_BIRDS = "sdk/python/jobs/single-step/pytorch/train-hyperparameter-tune-deploy-with-pytorch/src"
_FAILS_ONCE = """import os
with open(os.environ["STARTS"], "a") as starts:
    starts.write(".")
if os.path.getsize(os.environ["STARTS"]) == 2:
    raise ConnectionError("the server of the data closed the connection")
"""

_ROWS = (
    Public(
        "fastchat",
        *("lm-sys/FastChat", "0e6d3e4beaab66f4d3f93db72541a4abab8af28d"),
        "python -m fastchat.train.train --model_name_or_path ./tiny-gpt2 --data_path data.json"
        " --output_dir out --num_train_epochs 3 --per_device_train_batch_size 4 --logging_steps 5"
        " --save_steps 20 --learning_rate 5e-3 --use_cpu True --model_max_length 256",
        metric="loss",
        saves=("out/checkpoint-*/model.safetensors", "out/model.safetensors"),
        record=trainer_log(20),
        opener="safetensors",
        kinds=(2, 6),
        paths=("fastchat/train/train.py", "fastchat/conversation.py"),
        patches=_patches(
            "fastchat/train/train.py",
            (
                "from fastchat.model.model_adapter import get_conversation_template",
                "from fastchat.conversation import get_conv_template as get_conversation_template",
            ),
            ('get_conversation_template("vicuna")', 'get_conversation_template("vicuna_v1.1")'),
            ("not tokenizer.legacy", "False"),
            ("if cur_len != total_len:", "if False:"),
            ("model=model, tokenizer=tokenizer,", "model=model, processing_class=tokenizer,"),
            ("if trainer.is_deepspeed_enabled:", "if True:"),
        ),
        data="conversations",
        is_api=True,
        longer=("--num_train_epochs 3", "--num_train_epochs 3000"),
    ),
    Public(
        "sentence-sts",
        *("UKPLab/sentence-transformers", "85ec64559f4414aa536eca4bf53538291e0a333f"),
        "python training_stsbenchmark.py tiny-bert",
        metric="eval_sts-dev_spearman_cosine",
        best="max",
        saves=("output/*/checkpoint-*/model.safetensors", "output/*/final/model.safetensors"),
        record=evaluations("eval_sts-dev_spearman_cosine", "output/*"),
        opener="safetensors",
        kinds=(1, 3, 6),
        paths=("examples/sentence_transformer/training/sts/training_stsbenchmark.py",),
        folder="examples/sentence_transformer/training/sts",
        patches=_patches(
            "training_stsbenchmark.py",
            *(
                (
                    f'"sentence-transformers/stsb", split="{name}"',
                    f'"csv", data_files="{name}.csv", split="train"',
                )
                for name in ("train", "validation", "test")
            ),
            ("num_epochs = 4", "num_epochs = 6"),
            ("fp16=True", "fp16=False, use_cpu=True"),
            ("evaluation_strategy", "eval_strategy"),
            ("_steps=100", "_steps=40"),
        ),
        data="similar",
        env=("HF_HUB_OFFLINE=1",),
        is_api=True,
        longer=("num_epochs = 6", "num_epochs = 6000"),
    ),
    Public(
        "azureml-birds",
        *("Azure/azureml-examples", "085cd6ea399038c1e07843acff811f34261c0887"),
        "python pytorch_train.py --num_epochs 4 --output_dir outputs",
        metric="best_val_acc",
        best="max",
        saves=("outputs/model.pt",),
        record=once("outputs/model.pt"),
        opener="torch_pickle",
        kinds=(4, 7),
        paths=(f"{_BIRDS}/pytorch_train.py",),
        folder=_BIRDS,
        patches=_patches(
            "pytorch_train.py",
            ("np.float(", "float("),
            ("pretrained=True", "weights=None"),
            ("num_workers=4", "num_workers=0"),
            ("224", "32"),
            ("256", "36"),
            ("data_dir = download_data()", 'data_dir = "fowl_data"'),
        ),
        data="birds",
        is_api=True,
        saves_once=True,
        longer=("--num_epochs 4", "--num_epochs 4000"),
    ),
    Public(
        "wandb-fashion",
        *("wandb/examples", "5cab88702fc51edfb4afc79a1de89e9acf6cb605"),
        "python train.py",
        metric="accuracy",
        best="max",
        saves=("wandb/offline-run-*/files/model.pt",),
        record=once("wandb/offline-run-*/files/model.pt"),
        opener="torch_any",
        kinds=(4, 5),
        paths=("examples/pytorch/pytorch-cnn-fashion/train.py",),
        folder="examples/pytorch/pytorch-cnn-fashion",
        patches=_patches(
            "train.py",
            (
                "from fashion_data import fashion",
                "from torchvision.datasets import FashionMNIST as fashion",
            ),
            ("epochs = 2", "epochs = 3"),
            ("iter % 100", "iter % 10"),
        ),
        data="fashion",
        env=("WANDB_MODE=offline",),
        is_api=True,
        saves_once=True,
        longer=("epochs = 3", "epochs = 3000"),
    ),
    Public(
        "made-with-ml",
        *("GokuMohandas/Made-With-ML", "66e8e437115029422db1a80ff93c308cfcd82648"),
        "python -m madewithml.train --experiment-name llm --dataset-loc dataset.csv"
        ' --train-loop-config \'{"dropout_p": 0.1, "lr": 0.002, "lr_factor": 0.8,'
        ' "lr_patience": 3}\' --num-epochs 8 --batch-size 16',
        metric="val_loss",
        saves=("efs/someone/TorchTrainer*/*/checkpoint_*/model.pt",),
        record=in_turn(
            r'"val_loss": NUMBER',
            "efs/someone/TorchTrainer*/*/checkpoint_{step:06d}/model.pt",
            first=0,
        ),
        opener="torch_any",
        kinds=(4, 5),
        paths=("madewithml",),
        patches=(
            Patch(
                "madewithml/config.py",
                'Path(f"/efs/shared_storage/madewithml/',
                'Path(f"{ROOT_DIR}/efs/',
            ),
            Patch("madewithml/train.py", ", local_dir=EFS_DIR", ""),
            *(
                Patch(f"madewithml/{name}.py", "allenai/scibert_scivocab_uncased", "./tiny-bert")
                for name in ("data", "train")
            ),
        ),
        data="projects",
        env=(
            "GITHUB_USERNAME=someone",
            "RAY_TRAIN_V2_ENABLED=0",
            "MLFLOW_ALLOW_FILE_STORE=true",
            "RAY_CHDIR_TO_TRIAL_DIR=0",
        ),
        is_api=True,
        longer=("--num-epochs 8", "--num-epochs 8000"),
    ),
    Public(
        "forecasting-stallion",
        *("sktime/pytorch-forecasting", "062aeb47b75d589dcce621c04572181e3584a301"),
        "bash -c 'PYTHONPATH=. python examples/stallion.py'",
        metric="val_loss",
        saves=("optuna_test/trial_*/*.ckpt",),
        record=trials_events,
        opener="torch_pickle",
        kinds=(3, 4, 10),
        paths=("examples/stallion.py", "pytorch_forecasting"),
        patches=(
            *_patches(
                "pytorch_forecasting/models/temporal_fusion_transformer/tuning.py",
                ("suggest_loguniform(", "suggest_float("),
                ("suggest_uniform(", "suggest_float("),
            ),
            *_patches(
                "examples/stallion.py",
                ("from pandas.errors import SettingWithCopyWarning\n", ""),
                ('warnings.simplefilter("error", category=SettingWithCopyWarning)\n', ""),
                ("get_stallion_data()", '__import__("pandas").read_parquet("stallion.parquet")'),
                ("TensorBoardLogger(log_graph=True)", 'TensorBoardLogger("lightning_logs")'),
                ("n_trials=200", "n_trials=3"),
                ("max_epochs=50", "max_epochs=4"),
                ("limit_train_batches=30)", "limit_train_batches=10)"),
            ),
        ),
        data="stallion",
        is_api=True,
        longer=("n_trials=3", "n_trials=3000"),
    ),
    Public(
        "tutorial-lm",
        *("yunjey/pytorch-tutorial", "0500d3df5a2a8080ccfccbc00aca0eacc21818db"),
        "python main.py",
        metric="Loss",
        saves=("model.ckpt",),
        record=once("model.ckpt"),
        opener="torch_any",
        kinds=(2, 7),
        paths=(
            "tutorials/02-intermediate/language_model/main.py",
            "tutorials/02-intermediate/language_model/data_utils.py",
        ),
        folder="tutorials/02-intermediate/language_model",
        patches=_patches(
            "main.py",
            ("hidden_size = 1024", "hidden_size = 128"),
            ("num_epochs = 5", "num_epochs = 20"),
            ("step % 100", "step % 10"),
        ),
        data="words",
        saves_once=True,
        longer=("num_epochs = 20", "num_epochs = 20000"),
    ),
    Public(
        "mini-ddpm",
        *("cloneofsimo/minDiffusion", "00a3c8066d25a34d3d472ef6c87c7b6b238ea444"),
        "python superminddpm.py",
        metric="loss",
        saves=("ddpm_mnist.pth",),
        record=in_turn(r"loss: NUMBER: 100%", "ddpm_mnist.pth"),
        opener="torch_any",
        kinds=(2, 3),
        paths=("superminddpm.py",),
        patches=_patches(
            "superminddpm.py",
            ("n_epoch: int = 100", "n_epoch: int = 6"),
            ("cuda:0", "cpu"),
            ("num_workers=20", "num_workers=0"),
            ("n_T=1000", "n_T=20"),
            ("512", "64"),
            ("256", "64"),
            ("128", "64"),
            ("./contents/", "./"),
        ),
        data="few_digits",
        longer=("n_epoch: int = 6", "n_epoch: int = 6000"),
    ),
    Public(
        "srgan",
        *("leftthomas/SRGAN", "7ddfdf27273c42d858ec52cab5ca1cbfca81d0be"),
        "python train.py --crop_size 32 --num_epochs 4",
        metric="PSNR",
        best="max",
        saves=("epochs/netG_epoch_4_*.pth", "epochs/netD_epoch_4_*.pth"),
        record=in_turn(
            r"PSNR: NUMBER dB SSIM: \S+ 100%(?!.*\s\[conv)",  # the last state may stand twice
            *("epochs/netG_epoch_4_{step}.pth", "epochs/netD_epoch_4_{step}.pth"),
        ),
        opener="torch_any",
        kinds=(2, 6, 8),
        patches=(
            *_patches(
                "train.py",
                ("data/DIV2K_train_HR", "data/DIV2K train (HR)"),
                ("data/DIV2K_valid_HR", "data/DIV2K valid & test"),
                ("num_workers=4", "num_workers=0"),
                ("batch_size=64", "batch_size=8"),
            ),
            Patch("loss.py", "pretrained=True", "weights=None"),
            Patch("data_utils.py", "Resize(400),\n        CenterCrop(400)", "Resize(64)"),
        ),
        data="photos",
        longer=("--num_epochs 4", "--num_epochs 4000"),
    ),
    Public(
        "rnn-names",
        *("spro/practical-pytorch", "c520c52e68e945d88fff563dba1c028b6ec0197b"),
        "python train.py",
        metric=r"s\) ([0-9.]+) ",
        saves=("char-rnn-classification.pt",),
        record=once("char-rnn-classification.pt"),
        opener="torch_pickle",
        kinds=(7, 8),
        paths=("char-rnn-classification",),
        folder="char-rnn-classification",
        patches=(
            *_patches(
                "train.py",
                ("loss.data[0]", "loss.item()"),
                ("n_epochs = 100000", "n_epochs = 8000"),
                ("print_every = 5000", "print_every = 500"),
            ),
            Patch("data.py", "../data/names/", "names of #18 länder/"),
        ),
        data="names",
        saves_once=True,
        longer=("n_epochs = 8000", "n_epochs = 8000000"),
    ),
    Public(
        "patchtst",
        *("yuqinie98/PatchTST", "204c21efe0b39603ad6e2ca640ef5896646ab1a9"),
        "python run_longExp.py --is_training 1 --model_id tiny --model PatchTST --data custom"
        " --root_path ./data/ --data_path tiny.csv --seq_len 48 --label_len 12 --pred_len 12"
        " --d_model 16 --d_ff 32 --n_heads 2 --e_layers 1 --itr 3 --train_epochs 4 --patience 4"
        " --num_workers 0 --learning_rate 0.003 --batch_size 32",
        metric="Vali Loss",
        saves=("checkpoints/*/checkpoint.pth",),
        record=per_experiment,
        opener="torch_any",
        kinds=(2, 3, 10),
        paths=("PatchTST_supervised",),
        folder="PatchTST_supervised",
        patches=(Patch("utils/tools.py", "np.Inf", "np.inf"),),
        data="table",
        longer=("--train_epochs 4 --patience 4", "--train_epochs 4000 --patience 4000"),
    ),
    Public(
        "resnet-fails-once",
        *("akamaster/pytorch_resnet_cifar10", "d5489e8995e81e91ce6b1d69dcc98ad579b0b153"),
        "python trainer.py --arch resnet20 --epochs 6 -j 0 -b 32 --lr 0.05 --save-every 1",
        metric="Prec@1",
        best="max",
        saves=("save_temp/model.th", "save_temp/checkpoint.th"),
        record=both(
            in_turn(r" \* Prec@1 NUMBER", "save_temp/model.th"),
            after_first(r" \* Prec@1 NUMBER", "save_temp/checkpoint.th"),
        ),
        opener="torch_any",
        kinds=(2, 5),
        paths=("trainer.py", "resnet.py"),
        patches=_patches(
            "trainer.py",
            ("import os\n", _FAILS_ONCE),
            (".cuda()", ""),
            ("CIFAR10(root='./data', train=True,", "FakeData(256, (3, 32, 32), 10,"),
            (", download=True)", ")"),
            ("CIFAR10(root='./data', train=False,", "FakeData(128, (3, 32, 32), 10,"),
        ),
        resume="--resume save_temp/checkpoint.th",
        env=("STARTS={folder}/starts",),
        longer=("--epochs 6", "--epochs 6000"),
    ),
)

MORE: Sequence[Public] = tuple(replace(row, env=(*row.env, "OMP_NUM_THREADS=1")) for row in _ROWS)
"""Each computes with one thread: on a busy machine, waiting threads take most of the time."""

MORE_CELLS = {
    f"{row.name}-{ending}": (row, ending)
    for index, row in enumerate(MORE)
    for ending in endings_of(index)[:2]
}
"""Finished, and the first other ending that the rule of ``public.py`` draws."""
