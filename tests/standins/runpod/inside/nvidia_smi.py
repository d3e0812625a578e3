import json
import sys
from typing import Any

FACTS = json.loads(globals()["FACTS"])
UNITS = {"memory": "MiB", "utilization": "%"}


def value(field: str, index: int, gpu: dict[str, Any]) -> str:
    known = {
        **gpu,
        "index": index,
        "count": len(FACTS["gpus"]),
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "driver_version": FACTS["driver"],
        "gpu_name": gpu["name"],
        "memory.free": gpu["memory.total"] - gpu["memory.used"],
        "temperature.gpu": 35,
        "utilization.memory": 0,
        "clocks.sm": 1980,
        "ecc.errors.uncorrected.volatile.total": 0,
    }
    if field not in known:
        sys.exit(f'Field "{field}" is not a valid field to query.\n')
    return str(known[field])


def query(fields: list[str], style: list[str]) -> None:
    if "noheader" not in style:
        print(", ".join(fields))
    for index, gpu in enumerate(FACTS["gpus"]):
        cells = []
        for field in fields:
            unit = "" if "nounits" in style else UNITS.get(field.partition(".")[0], "")
            cells.append(f"{value(field, index, gpu)} {unit}".strip())
        print(", ".join(cells))


def table() -> None:
    print(f"| NVIDIA-SMI {FACTS['driver']}   Driver Version: {FACTS['driver']}   ", end="")
    print(f"CUDA Version: {FACTS['cuda']} |")
    for index, gpu in enumerate(FACTS["gpus"]):
        used, total = gpu["memory.used"], gpu["memory.total"]
        print(f"| {index}  {gpu['name']}   {used}MiB / {total}MiB   {gpu['utilization.gpu']}% |")


if not FACTS["gpus"]:
    print("No devices were found")
    sys.exit(6)
flags = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
if "--query-gpu" in flags:
    style = flags.get("--format", "csv").split(",")
    query([field.strip() for field in flags["--query-gpu"].split(",")], style)
elif "--query-compute-apps" in flags:
    pass
elif sys.argv[1:2] == ["nvlink"]:
    for index, gpu in enumerate(FACTS["gpus"]):
        print(f"GPU {index}: {gpu['name']} (UUID: {value('uuid', index, gpu)})")
        for link in range(gpu["links"]):
            print(f"\t Link {link}: 26.562 GB/s")
elif "-L" in flags or "--list-gpus" in flags:
    for index, gpu in enumerate(FACTS["gpus"]):
        print(f"GPU {index}: {gpu['name']} (UUID: {value('uuid', index, gpu)})")
else:
    table()
