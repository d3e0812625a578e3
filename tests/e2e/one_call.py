"""One call of a tool over HTTP: python -m tests.e2e.one_call URL TOKEN TOOL ARGUMENTS"""

from __future__ import annotations

import json
import sys

from tests.e2e.agents import http


def main() -> None:
    url, token, tool, given = sys.argv[1:]
    with http(url, token) as agent:
        print("calling", flush=True)
        print(agent.raw(tool, json.loads(given)).content[0].text, flush=True)


if __name__ == "__main__":
    main()
