"""An agent's part of a conversation, scripted: python agent.py begin, python agent.py then"""

import json
import os
import sys

import anyio
from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(
    command="trmcloud", args=["mcp", "--grant", "agent"], env=dict(os.environ)
)
COMMAND = {
    "command": ["python", "train.py"], "hardware": "local", "rate": "3.60", "budget": "0.10",
    "checkpoints": "out", "checkpoint_gb": 0.001, "metric": "val_loss", "grace": 2.0,
}  # fmt: skip
TRIED = {"command": ["python", "train.py"], "metric": "val_loss", "for_s": 5}
SHOWN = ("passed", "quote", "reserves_usd", "run", "outcome", "request", "best", "folder", "error")


async def converse(part: str) -> None:
    async with Client(SERVER) as client:

        async def call(tool: str, **given: object) -> dict:
            answer = (await client.call_tool(tool, given)).structured_content
            print(f"→ {tool} {json.dumps(given)}")
            shown = {key: answer[key] for key in SHOWN if key in answer}
            left = answer["money"]["left_usd"]
            print(f"← {json.dumps(shown, ensure_ascii=False)}; left: ${left}")
            return answer

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
                asked = {"run": run}
                while "outcome" not in (await client.call_tool("status", asked)).structured_content:
                    await anyio.sleep(1)
            await call("fetch", run="seed-1", into="best")


anyio.run(converse, sys.argv[1])
