"""The stand-in's data: a ``meta.json`` large enough for any batch."""

import argparse
import json
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--source", required=True)
parser.add_argument("--settings", required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--tokens", type=int)
arguments, _ = parser.parse_known_args()  # tokens, caches: it needs none
arguments.out.mkdir(parents=True, exist_ok=True)
meta = {"source": arguments.source, "train_tokens": 10**9, "validation_tokens": 10**6}
(arguments.out / "meta.json").write_text(json.dumps(meta))
print(json.dumps({"stage": "done"}))
