"""Options that several commands share, so that each means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

GUIDE_OR_PLAN = (
    "8xB200 8xH200 8xH100 8xA100 4xH100 4xA100, other NxSKU, 2x8xH100 for two machines, local, "
    "or a plan's id."
)

Hardware = Annotated[str, typer.Argument(help=GUIDE_OR_PLAN, metavar="HARDWARE")]
Recipe = Annotated[str, typer.Option(help="Recipe: a name or a TOML file.")]
Phase = Annotated[str, typer.Option(help="fast, extreme or both.")]
Budget = Annotated[str | None, typer.Option(help="Most that may be spent, in USD.", metavar="USD")]
Rate = Annotated[
    str | None, typer.Option(help="This machine's USD per hour (local).", metavar="USD")
]
Data = Annotated[str, typer.Option(help="Text to train on: a file, a folder, or python-stdlib.")]
Steps = Annotated[int | None, typer.Option(help="Optimizer steps of each phase.")]
Hours = Annotated[float | None, typer.Option(help="Hours of training.")]
Tokens = Annotated[int | None, typer.Option(help="Tokens of each phase.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any recipe key, repeatable.", metavar="KEY=VALUE"),
]
Precision = Annotated[
    str,
    typer.Option(
        help="auto, fp8, bf16, fp16 or fp32; auto: the best that the machine has, fp8 where it is "
        "timed to be faster.",
        metavar="FORMAT",
    ),
]
ScaleLr = Annotated[
    str,
    typer.Option(
        help="Bring the learning rates to the whole batch: sqrt, or table, the recipe's own.",
        metavar="RULE",
    ),
]
NewSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A recipe key that changes from here on, repeatable.", metavar="KEY=VALUE"
    ),
]
Processes = Annotated[int, typer.Option(help="torchrun processes (local).")]
InitialFrom = Annotated[
    str, typer.Option("--from", help="Start from the weights of a run or checkpoint folder.")
]
StrictGuide = Annotated[
    bool, typer.Option("--strict-guide", help="The guide's bands block the gate, too.")
]
StopAtGain = Annotated[
    str,
    typer.Option(
        help="End a phase, through its cooldown, once the next dollar is expected to buy fewer "
        "bits per byte than this: 0.001/usd.",
        metavar="BPB/usd",
    ),
]
LastRungs = Annotated[
    str,
    typer.Option(
        help="Where memory runs out before anything is saved, and nothing else helps: two thirds "
        "of the depth, half the sequence. Another model then.",
        metavar="depth,sequence",
    ),
]
Patience = Annotated[
    int,
    typer.Option(
        help="End it after so many evaluations in a row without a better one.",
        metavar="N",
    ),
]
Bucket = Annotated[
    str,
    typer.Option(
        help="s3://BUCKET/PREFIX where checkpoints survive pod and machine.",
        envvar="TRMCLOUD_BUCKET",
        metavar="S3_URL",
    ),
]
Detach = Annotated[bool, typer.Option("-d", "--detach", help="Leave once training has begun.")]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="With -d: accept losing checkpoints not in --bucket or --volume."
    ),
]
Volume = Annotated[
    bool, typer.Option("--volume", help="Keep checkpoints on a network volume, not pulled here.")
]
VolumeDays = Annotated[
    float,
    typer.Option(help="Days after the run for which the volume's rent is reserved."),
]
VolumeThen = Annotated[
    str,
    typer.Option(
        help="What becomes of the volume then: keep; delete-fetched, once best and latest are "
        "here; delete, with whatever is on it.",
        metavar="WHAT",
    ),
]
RentFrom = Annotated[
    list[str] | None,
    typer.Option("--provider", help="Whom to rent from, repeatable (default: runpod)."),
]
Via = Annotated[str, typer.Option(help="skypilot: through it, from any cloud it has access to.")]
AllowAccountKey = Annotated[
    bool,
    typer.Option(
        "--allow-account-key-on-pod",
        help="RunPod and vast.ai through SkyPilot put the account's key on the pod.",
    ),
]
Region = Annotated[list[str] | None, typer.Option(help="Data centre to rent in, repeatable.")]
Community = Annotated[bool, typer.Option("--community", help="Hosts of private sellers, too.")]
Spot = Annotated[
    bool,
    typer.Option("--spot", help="Machines that may be taken away, too (through SkyPilot)."),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Defaults and details, too.")]
