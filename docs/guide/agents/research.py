"""A research loop under one grant: edit a file, run it for the same dollars, keep the better."""

import os
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(
    command="trmcloud", args=["mcp", "--grant", "agent"], env=dict(os.environ)
)
RUN = {
    "command": ["python", "train.py"], "hardware": "local", "rate": "3.60", "budget": "0.04",
    "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss", "grace": 2.0,
}  # fmt: skip
EDITS = (
    ("LEARNING_RATE = 0.02", "LEARNING_RATE = 0.02"),
    ("LEARNING_RATE = 0.02", "LEARNING_RATE = 0.2"),
    ("LEARNING_RATE = 0.2", "LEARNING_RATE = 2.0"),
    ("CONTEXT = 1", "CONTEXT = 3"),
    ("DECAY = 0.0", "DECAY = 0.01"),
)


async def search() -> None:
    script, best = Path("train.py"), float("inf")
    async with Client(SERVER) as client:

        async def call(tool: str, **given: object) -> dict:
            return (await client.call_tool(tool, given)).structured_content

        for number, (before, after) in enumerate(EDITS):
            kept = script.read_text()
            script.write_text(kept.replace(before, after))
            await call("try", command=RUN["command"], metric="val_loss", for_s=4)
            quote = await call("plan", **RUN)
            run = await call("launch", quote=quote["quote"], idempotency_key=f"edit-{number}")
            if "error" in run:
                print(f"{after:22} refused: {run['error']['message']}")
                script.write_text(kept)
                break
            while "outcome" not in (run := await call("status", run=run["run"])):
                await anyio.sleep(1)
            loss = run["training"]["best"]
            verdict = "kept" if loss < best else "reverted"
            best = min(loss, best)
            if verdict == "reverted":
                script.write_text(kept)
            left = run["money"]["left_usd"]
            print(f"{after:22} val_loss {loss:.4f}  ${run['spent_usd']}  {verdict}; left ${left}")


anyio.run(search)
