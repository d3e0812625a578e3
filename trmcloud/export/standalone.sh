# shellcheck shell=bash disable=SC2153
# -- what follows is the same in every exported script ------------------------------------------
set -euo pipefail
unset TRMCLOUD_POD

RUN_DIR="${RUN_DIR:-$PWD/trmcloud-run}"
DATA="${DATA:-${DEFAULT_DATA:-python-stdlib}}"
export TRMCLOUD_AT_END="${TRMCLOUD_AT_END:-none}"
TORCH="${TORCH:-2.9.1}"

say() { printf 'trmcloud: %s\n' "$1" >&2; }

# die CODE WHAT [NEXT STEP]
die() {
    printf 'error: %s\n' "$2" >&2
    if [[ -n "${3:-}" ]]; then printf '  try: %s\n' "$3" >&2; fi
    exit "$1"
}

# Several machines train as one: NODES of them, this one NODE_RANK, node 0 reached at HEAD. SkyPilot
# tells each of its nodes, by other names while it sets them up.
find_nodes() {
    local ips="${SKYPILOT_NODE_IPS:-${SKYPILOT_SETUP_NODE_IPS:-}}"
    if [[ -n "$ips" ]]; then
        HEAD="${HEAD:-${ips%%[[:space:]]*}}"
        NODES="${NODES:-$(wc -w <<<"$ips")}"
    fi
    NODES="${NODES:-1}" HEAD="${HEAD:-}"
    NODE_RANK="${NODE_RANK:-${SKYPILOT_NODE_RANK:-${SKYPILOT_SETUP_NODE_RANK:-0}}}"
}

# python_does PYTHON CODE: whether this Python is there and CODE gives 0
python_does() { "$1" -I -c "$2" >/dev/null 2>&1; }

has_torch() {
    "$PYTHON" -P -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'
}

# The Python that PYTHON names; else one that has torch; else one that is new enough.
find_python() {
    local new_enough='import sys; sys.exit(sys.version_info < (3, 11))' name found=''
    if [[ -n "${PYTHON:-}" ]]; then
        python_does "$PYTHON" "$new_enough" ||
            die 2 "PYTHON=$PYTHON is not Python 3.11 or newer" 'PYTHON=/path/to/python3'
        return
    fi
    for name in python3 python python3.13 python3.12 python3.11; do
        python_does "$name" "$new_enough" || continue
        PYTHON="$name"
        if has_torch; then return; fi
        found="${found:-$name}"
    done
    PYTHON="$found"
    if [[ -n "$PYTHON" ]]; then return; fi
    # SkyPilot's machines have an older Python, and uv.
    PATH="$PATH:$HOME/.local/bin"
    if command -v uv >/dev/null; then
        say 'installing Python 3.12 with uv'
        uv python install -q 3.12
        PYTHON="$(uv python find 3.12)"
        return
    fi
    die 6 'there is no Python 3.11 or newer here' 'install one, or PYTHON=/path/to/python3'
}

# The sources: those of a checkout that SRC names, or those that this file carries after its end.
unpack() {
    if [[ -n "${SRC:-}" ]]; then return; fi
    SRC="$RUN_DIR/src-${PAYLOAD_SHA256:0:12}"
    if [[ -d "$SRC" ]]; then return; fi
    local packed="$RUN_DIR/.payload.$$" sum
    [[ -r "$0" ]] || die 2 'this script reads its own file' 'save it, then: bash FILE'
    sed -n 's/^#:\(.*\)$/\1/p' "$0" | base64 -d >"$packed" ||
        die 9 'the sources at the end of this file are cut off' 'copy the whole file again'
    sum="$(sha256sum <"$packed")"
    [[ "${sum%% *}" == "$PAYLOAD_SHA256" ]] ||
        die 9 'the sources at the end of this file are not what was exported' 'copy it again'
    rm -rf "$SRC.part"
    mkdir -p "$SRC.part"
    tar -xzf "$packed" -C "$SRC.part"
    rm -f "$packed"
    mv "$SRC.part" "$SRC"
}

# Python with the sources, and with what was installed here, wherever this is called from
run_python() {
    PYTHONPATH="$SRC${PACKAGES:+:$PACKAGES}:$TORCH_DIR${PYTHONPATH:+:$PYTHONPATH}" "$@"
}

# standalone COMMAND [OPTION…]: lease, watchdog and agent (trmcloud/export/standalone.py)
standalone() {
    local command="$1"
    shift
    run_python "$PYTHON" -P -m trmcloud.export.standalone "$command" --root "$RUN_DIR" "$@"
}

# within COMMAND…: not beyond the hard stop
within() {
    local left=$((HARD_STOP_AT - $(date +%s)))
    ((left > 0)) || die 25 'the hard stop came before everything was in place'
    run_python timeout --foreground --kill-after=10 "$left" "$@"
}

install_torch() {
    if has_torch; then
        say "torch is there ($PYTHON): nothing to install"
        return
    fi
    if [[ -d "$TORCH_DIR" ]]; then return; fi
    say "installing torch $TORCH into $TORCH_DIR"
    python_does "$PYTHON" 'import pip' ||
        die 6 "$PYTHON has no pip" 'apt-get install python3-pip, or PYTHON=/path/to/python3'
    rm -rf "$TORCH_DIR.part"
    mkdir -p "$TORCH_DIR.part"
    within "$PYTHON" -m pip install --target "$TORCH_DIR.part" --only-binary :all: --no-input \
        --disable-pip-version-check --progress-bar off --retries 3 "torch==$TORCH" \
        >"$RUN_DIR/install-torch.log" 2>&1 ||
        die 6 "torch could not be installed: $(tail -n 1 "$RUN_DIR/install-torch.log")" \
            'PYTHON=/path/to/one/that/has/torch'
    mv "$TORCH_DIR.part" "$TORCH_DIR"
}

# Text to tokens and a tokenizer; data that is prepared already (a folder with meta.json) is used.
prepare_data() {
    if [[ -f "$DATA/meta.json" && -f "$DATA/train.bin" ]]; then
        DATA_DIR="$DATA"
        return
    fi
    local name said
    local at=''
    if [[ "$DATA" == "${DEFAULT_DATA:-}" ]] && declare -F write_data_set >/dev/null; then
        at="$RUN_DIR/data-set.json"
        write_data_set >"$at"
    fi
    # Another revision of the same data set is other data.
    name="$( { printf '%s' "$DATA"; if [[ -n "$at" ]]; then cat "$at"; fi; } | sha256sum)"
    DATA_DIR="$RUN_DIR/data-${name:0:12}"
    # One that grows has its meta.json before all of it is there.
    if [[ -f "$DATA_DIR/meta.json" ]] && ! grep -q '"complete": false' "$DATA_DIR/meta.json"; then
        return
    fi
    say "preparing data and tokenizer from $DATA"
    within "$PYTHON" -P -m model.prepare "--source=$DATA" "--settings=$RUN_DIR/settings.json" \
        "--out=$DATA_DIR" "--tokens=${TOKENS:-0}" ${at:+"--data-set=$at"} >"$RUN_DIR/prepare.log" 2>"$RUN_DIR/prepare.err" || {
        said="$(sed -n 's/^error: //p' "$RUN_DIR/prepare.err" | head -n 1)"
        die 9 "${said:-preparing the data was ended before it was done}" \
            'DATA=/path/to/a/text/file/or/folder'
    }
}

# Set-up that fails ends the run at once: nothing is left running that nobody uses.
# shellcheck disable=SC2329  # a trap calls it
on_exit() {
    local code=$?
    if ((code)) && [[ "$STAGE" != following ]]; then
        standalone give-up "--reason=$STAGE failed" || true
        exit "$code"
    fi
}

# Show the run until it ends; its exit code. SIGUSR1 and SIGTERM land it.
follow() {
    local follower code signalled=0
    standalone follow &
    follower=$!
    trap 'signalled=1; standalone land --reason=signal || true' USR1 TERM
    trap 'kill "$follower" || true; say "the run goes on by itself; bash $0 shows it again"; exit 130' INT
    while :; do
        code=0
        wait "$follower" || code=$?
        if ((signalled)); then
            signalled=0
            continue
        fi
        exit "$code"
    done
}

main() {
    local again=() state
    case "${1:-}" in
        '' | set-up | land) ;;
        --again) again=(--again) ;;
        *) die 2 "unknown argument: $1" "bash $0 [--again | set-up | land]" ;;
    esac
    mkdir -p -- "$RUN_DIR"
    RUN_DIR="$(cd -- "$RUN_DIR" && pwd)"
    TORCH_DIR="$RUN_DIR/env/torch-$TORCH"
    find_nodes
    find_python
    unpack
    if [[ "${1:-}" == land ]]; then
        standalone land '--reason=asked to by hand'
        return
    fi
    # From here on the clock runs: the watchdog ends it all at the hard stop, this script or not.
    write_spec >"$RUN_DIR/spec.json"
    state="$(standalone begin "--spec=$RUN_DIR/spec.json" "--nodes=$NODES" \
        "--node=$NODE_RANK" "--head=$HEAD" ${again[@]+"${again[@]}"})"
    case "$state" in
        'over '*) exit "${state#over }" ;;
    esac
    HARD_STOP_AT="${state#running }"
    STAGE='installing torch'
    trap on_exit EXIT
    install_torch
    STAGE='installing packages'
    PACKAGES="$(standalone environment)"
    if [[ "${1:-}" == set-up ]]; then
        STAGE=following
        return
    fi
    STAGE='preparing data'
    prepare_data
    STAGE='starting'
    standalone ready "--spec=$RUN_DIR/spec.json" "--code=$SRC" "--data=$DATA_DIR" \
        "--nodes=$NODES" "--node=$NODE_RANK" "--head=$HEAD"
    STAGE=following
    follow
}
