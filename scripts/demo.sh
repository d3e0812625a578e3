#!/usr/bin/env bash
# The main job on this machine: plan, launch, the stop at the budget, the best checkpoint, the
# report. Everything lies in .demo/, and nothing in your home is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" TRMCLOUD_HOME="$PWD/.demo"

say() {
    printf '\n\033[1m$ %s\033[0m\n' "$*"
    "$@"
}

say trmcloud plan --budget 1000

# A nominal $3.60 an hour is a tenth of a cent a second: 20 cents end before the recipe does.
landed=0
say trmcloud launch local --recipe trm-tiny --phase fast --processes 2 \
    --rate 3.60 --budget 0.20 -y || landed=$?
[ "$landed" -eq 20 ] || { echo "the run ended with code $landed, not by its budget (20)"; exit 1; }

run=$(trmcloud status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["runs"][-1]["run"])')
say trmcloud fetch-best "$run" --into ".demo/best-$run"
say trmcloud eval ".demo/best-$run"
say trmcloud sample ".demo/best-$run" --prompt "def " --max-tokens 60
say trmcloud report "$run"
say trmcloud status "$run"
