"""Write the requests that vast.ai's own client makes, as ``tests/contract/vast_requests.json``:

    python -m scripts.vast_requests PYTHON

``PYTHON`` is the interpreter of an environment that has the official ``vastai`` (``make
.venv-vast/.ready``). The client is run against the stand-in; what it sends and what it prints are
written down. ``tests/contract/test_vast_client.py`` holds the adapter's requests against the table,
and makes it anew where that environment is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.standins.vast.routes import Logged  # noqa: E402
from tests.standins.vast.standin import StandIn, running  # noqa: E402
from tests.standins.web import GivenClock  # noqa: E402

TABLE = ROOT / "tests" / "contract" / "vast_requests.json"
LABEL = "a-label"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGp1c3QgYSBrZXkgdGhhdCBvcGVucyBub3RoaW5n me"
SEARCH = (
    "gpu_name in [L4,L40S] num_gpus in [1,2] reliability>=0.98 cuda_vers>=12.8 disk_space>=50 "
    "direct_port_count>=1 inet_down>=200 storage_cost<=0.2 inet_up_cost<=0.005 "
    "inet_down_cost<=0.005 datacenter=true geolocation in [US] duration>=1"
)
"""The adapter's search, in the client's language; ``duration`` is in days there."""

_CLIENT = "import sys; from vastai.cli.main import main; sys.exit(main())"


def record(python: str, folder: Path) -> dict[str, Any]:
    """The requests that the client sent for each command, and the end of its output."""
    with running(folder, clock=GivenClock(), real_pods=False) as standin:
        table: dict[str, Any] = {"client": version(python)}

        def run(name: str, *words: str) -> str:
            before = len(standin.requests)
            out = client(python, standin, *words)
            # The client asks who it speaks for before each command.
            made = [_asked(each) for each in standin.requests[before:]]
            table[name] = made[1:] if len(made) > 1 else made
            return out

        run("search", "search", "offers", SEARCH, "--storage", "50", "-o", "dph", "--limit", "20",
            "--raw")  # fmt: skip
        host = next(h for h in standin.world.hosts if (h.gpu_name, h.num_gpus) == ("L4", 1))
        made = run(
            "create", "create", "instance", str(host.id), "--image", "an/image:1", "--disk", "50",
            "--label", LABEL, "--env", "-p 22:22 -e TRMCLOUD_P0=abc", "--cancel-unavail",
            "--entrypoint", "/bin/sh", "--raw", "--args", "-c", "echo hello; sleep infinity",
        )  # fmt: skip
        number = str(json.loads(made)["new_contract"])
        run("list", "show", "instances", "--raw")
        run("show", "show", "instance", number, "--raw")
        run("attach", "attach", "ssh", number, KEY, "--raw")
        run("logs", "logs", number, "--tail", "200", "--raw")
        run("stop", "stop", "instance", number)
        run("charges", "show", "invoices-v1", "--charges", "--start-date", "2026-09-01",
            "--end-date", "2026-09-30", "--raw")  # fmt: skip
        run("user", "show", "user", "--raw")
        run("destroy", "destroy", "instance", number, "-y", "--raw")
        gone = run("show-ended", "show", "instance", number, "--raw")
        assert json.loads(gone) == {"instances": None}, gone
        return table


def version(python: str) -> str:
    text = "import importlib.metadata as m; print('vastai', m.version('vastai'))"
    done = subprocess.run([python, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def client(python: str, standin: StandIn, *words: str) -> str:
    """The standard output of ``vastai``.

    Raises:
        SystemExit: it failed.
    """
    # ``--args`` takes all that follows.
    split = words.index("--args") if "--args" in words else len(words)
    account = ("--url", standin.url, "--api-key", standin.api_key)
    asked = [python, "-c", _CLIENT, *words[:split], *account, *words[split:]]
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}
        done = subprocess.run(
            asked, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise SystemExit(f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _asked(logged: Logged) -> dict[str, Any]:
    return {
        "method": logged.method,
        "path": logged.path,
        "query": dict(logged.query),
        "body": logged.body,
        "status": logged.status,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        found = record(sys.argv[1], Path(scratch))
    TABLE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(f"{TABLE}: {sum(len(v) for v in found.values() if isinstance(v, list))} requests")
