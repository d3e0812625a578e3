"""An agent's part of a conversation, scripted: python agent.py begin, python agent.py then"""

import os
import sys

import anyio
from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(
    command="trmcloud", args=["mcp", "--grant", "agent"], env=dict(os.environ)
)
COMMAND = {
    "command": ["python3", "train.py"], "hardware": "1xA100", "budget": "0.50",
    "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss", "grace": 5.0,
}  # fmt: skip
TRIED = {"command": ["python3", "train.py"], "metric": "val_loss", "for_s": 5}
SHOWN = ("passed", "quote", "reserves_usd", "run", "outcome", "request", "folder", "at_most_usd")


async def converse(part: str) -> None:
    async with Client(SERVER) as client:

        async def ask(tool: str, **given: object) -> dict:
            return (await client.call_tool(tool, given)).structured_content

        async def call(tool: str, **given: object) -> dict:
            answer = await ask(tool, **given)
            print("→", tool, *(given.values() if len(given) < 4 else ["python3 train.py"]))
            shown = " ".join(f"{key}={answer[key]}" for key in SHOWN if key in answer)
            print("←", answer.get("error", {}).get("message", shown), end="; ")
            print(f"left ${answer['money']['left_usd']}")
            return answer

        async def until(run: str, holds) -> None:
            while not holds(await ask("status", run=run)):
                await anyio.sleep(1)

        if part == "begin":
            await call("try", **TRIED)
            quote = (await call("plan", **COMMAND))["quote"]
            await call("launch", quote=quote, idempotency_key="seed-1", name="seed-1")
            await call("launch", quote=quote, idempotency_key="seed-2", name="seed-2")
            await call("ask_approval", why="a second seed at the same time", runs_at_once=2)
        else:
            quote = (await call("plan", **COMMAND))["quote"]
            await call("launch", quote=quote, idempotency_key="seed-2", name="seed-2")
            for run in ("seed-1", "seed-2"):
                await until(run, lambda told: told.get("training", {}).get("saved_step"))
                await call("land", run=run)
            for run in ("seed-1", "seed-2"):
                await until(run, lambda told: "outcome" in told)
            await call("fetch", run="seed-1", into="best")
            await call("report", run="seed-1")


anyio.run(converse, sys.argv[1])
