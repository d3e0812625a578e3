import json
import os
import re
import sys
import urllib.error
import urllib.request
from typing import Any

FACTS = json.loads(globals()["FACTS"])
OLD, NEW = ("remove", "pod"), ("pod", "delete")


def key() -> str:
    if os.environ.get("RUNPOD_API_KEY"):
        return os.environ["RUNPOD_API_KEY"]
    try:
        with open(os.path.expanduser("~/.runpod/config.toml")) as config:
            return str(re.findall("apikey = '([^']*)'", config.read())[0])
    except (OSError, IndexError):
        sys.exit("Error: API key not found")


def ask(method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        FACTS["api"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {key()}",
            "Content-Type": "application/json",
            "User-Agent": "RunPod-CLI",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        sys.exit(f"Error: {error.code} {error.read().decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"Error: {error}")


def old(pod: str) -> None:
    query = f'mutation {{ podTerminate(input: {{podId: "{pod}"}}) }}'
    answer = ask("POST", "/graphql", {"query": query})
    if "errors" in answer:
        sys.exit(f"Error: {answer['errors'][0]['message']}")
    print(f'pod "{pod}" removed')


def new(pod: str) -> None:
    ask("DELETE", f"/v2/pods/{pod}")
    print(json.dumps({"id": pod, "deleted": True}))


words = sys.argv[1:]
verb, pod = tuple(words[:2]), words[2] if len(words) == 3 else ""
if words == ["version"] or words == ["--version"]:
    print("runpodctl 2.3.0")
elif pod and verb in (OLD, NEW):
    (old if verb == OLD else new)(pod)
else:
    sys.exit(f'Error: unknown command "{" ".join(words)}" for "runpodctl"')
