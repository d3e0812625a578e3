"""The quick unit tests on every supported Python that is found here, and what a pod gets on 3.10.

    make pythons

Each Python has an environment of its own below build/pythons, with the packages of constraints.txt
but torch; tests that need it are skipped there, and say so. What of us runs on a machine with
Python 3.10, boot and agent and the core they take, is unpacked, compiled and imported by it, with
no package beside it. A Python that is not found is named, and is no failure.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.pythons import OLDEST_ON_A_POD, found  # noqa: E402
from trmcloud.operations.sending.packing import own_sources, pack  # noqa: E402

SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))
ENTRIES = ("trmcloud.pod.boot", "trmcloud.export.standalone")
AGENT = "trmcloud.pod.agent.process"
PLACES = ROOT / "build" / "pythons"
UV = Path(sys.executable).with_name("uv")
ROOMS = ("core", "planner", "operations", "cli", "pod")
TESTS = ("-m", "not slow", *(f"tests/unit/{room}" for room in ROOMS))


def main() -> None:
    told: dict[str, str] = {}
    for version in (OLDEST_ON_A_POD, *SUPPORTED):
        name = ".".join(map(str, version))
        python = found().get(version)
        if python is None:
            told[name] = "not found (PATH, /usr, pyenv, uv): left out"
            continue
        print(f"\n== {name}: {python}", flush=True)
        passed = on_a_pod(python) if version == OLDEST_ON_A_POD else tests(name, python)
        told[name] = "passed" if passed else "FAILED"
    print()
    for name, outcome in told.items():
        print(f"{name:<5} {outcome}")
    sys.exit("FAILED" in told.values())


def on_a_pod(python: Path) -> bool:
    """Whether what a pod is sent compiles, and every module of it can be imported, warnings being
    errors."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    for entry in ENTRIES:
        files = own_sources(entry)
        names = [name[:-3].replace("/", ".") for name in files if name.endswith(".py")]
        modules = [name.removesuffix(".__init__") for name in names]
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(pack(files))) as tar:
                tar.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
                tar.extractall(folder)
            for words in (
                ["-m", "compileall", "-q", "."],
                ["-W", "error", "-S", "-c", code, *modules],
                ["-m", AGENT if entry == ENTRIES[0] else entry, "--help"],
            ):
                done = subprocess.run(
                    [python, *words], cwd=folder, env={}, capture_output=True, text=True
                )
                if done.returncode:
                    print(done.stdout[-2000:], done.stderr[-2000:], sep="")
                    return False
        print(f"{entry}: {len(modules)} modules compiled and imported")
    return True


def tests(name: str, python: Path) -> bool:
    """Whether the quick tests pass in an environment of ``python``'s."""
    environment = PLACES / name
    its = environment / "bin" / "python"
    if not its.exists():
        call(UV, "venv", "-q", "--seed", "--python", python, environment)
    lock = ("--no-deps", "--require-hashes", "-r", ROOT / "constraints.txt")
    call(UV, "pip", "install", "-q", "--python", its, *lock)
    call(
        UV, "pip", "install", "-q", "--python", its, "--no-deps", "--no-build-isolation", "-e", ROOT
    )
    workers = str(os.cpu_count() or 1)
    words = ["-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", *TESTS]
    return subprocess.run([its, *words], cwd=ROOT).returncode == 0


def call(*words: str | os.PathLike[str]) -> None:
    subprocess.run([os.fspath(word) for word in words], check=True)


if __name__ == "__main__":
    main()
