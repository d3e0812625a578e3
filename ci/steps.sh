#!/usr/bin/env bash
# The steps of a training in CI: steps.sh plan|launch|fetch|receipt. GitHub's action and GitLab's
# snippet call it; ci/README.md describes both.
#
#   TRMCLOUD_ARGUMENTS  what follows `trmcloud launch`, as words: hardware, --recipe, --budget, …
#   TRMCLOUD_KEY        the idempotency key: a job that is run again finds its run and rents nothing
#   TRMCLOUD_OUT        the folder of what is kept (default: trmcloud-out)
#
# What may reach a shell is passed in variables alone, and is never evaluated.
set -euo pipefail
set -f # words of the arguments are no patterns of file names

out=${TRMCLOUD_OUT:-trmcloud-out}
mkdir -p -- "$out"

words() {
    # Spaces and line feeds part words; there is no quoting.
    read -r -d '' -a arguments <<<"${TRMCLOUD_ARGUMENTS:-}" || true
    if [ "${#arguments[@]}" -eq 0 ]; then
        echo "error: TRMCLOUD_ARGUMENTS is empty: give what follows trmcloud launch" >&2
        exit 2
    fi
}

# value FILE KEY: what the first JSON document of the file that has the key says there.
value() {
    python3 - "$@" <<'PYTHON'
import json, sys

text, key = open(sys.argv[1], encoding="utf-8").read().strip(), sys.argv[2]
while text:
    document, end = json.JSONDecoder().raw_decode(text)
    if document.get(key) is not None:
        print(document[key])
        break
    text = text[end:].lstrip()
PYTHON
}

plan() {
    words
    code=0
    trmcloud launch "${arguments[@]}" --dry-run --json >"$out/plan.json" || code=$?
    if [ "$code" -ne 0 ]; then
        echo "plan refused ($code): $(value "$out/plan.json" message)" >&2
        exit "$code"
    fi
    echo "plan $(value "$out/plan.json" id) fits: at most \$$(value "$out/plan.json" cap_usd)"
}

launch() {
    words
    if [ -z "${TRMCLOUD_KEY:-}" ]; then
        echo "error: TRMCLOUD_KEY is empty: a job that is run again would rent again" >&2
        exit 2
    fi
    code=0
    trmcloud launch "${arguments[@]}" --idempotency-key "$TRMCLOUD_KEY" -y --json \
        >"$out/launch.jsonl" || code=$?
    run=$(value "$out/launch.jsonl" run)
    if [ -z "$run" ]; then
        echo "launch refused ($code): $(value "$out/launch.jsonl" message)" >&2
        exit "$code"
    fi
    printf '%s\n' "$run" >"$out/run"
    # Where the key's run was there already, it is waited for here, and driven on where its job was
    # cancelled; its exit code is the run's, also where it has ended.
    code=0
    trmcloud logs -f "$run" --json >"$out/events.jsonl" || code=$?
    printf '%s\n' "$code" >"$out/exit-code"
    case $code in
    0) echo "run $run finished" ;;
    20) echo "run $run stopped at its budget or time limit, saved" ;;
    *)
        echo "run $run ended with $code" >&2
        exit "$code"
        ;;
    esac
}

fetch() {
    trmcloud fetch-best "$(cat -- "$out/run")" --into "$out/checkpoint" --json >"$out/fetched.json"
    echo "$(value "$out/fetched.json" checkpoint), sha256 $(value "$out/fetched.json" sha256)"
}

receipt() {
    if [ ! -e "$out/run" ]; then
        echo "no run was launched: no receipt"
        return
    fi
    run=$(cat -- "$out/run")
    trmcloud report "$run" --json >"$out/report.json"
    trmcloud report "$run" --html "$out/receipt.html"
}

case ${1:-} in
plan | launch | fetch | receipt) "$1" ;;
*)
    echo "usage: steps.sh plan|launch|fetch|receipt" >&2
    exit 2
    ;;
esac
