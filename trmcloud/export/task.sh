#!/usr/bin/env bash
# What the tasks in sky/ run, from the checkout that SkyPilot synced: their plan is in an envs entry.
# shellcheck disable=SC2034  # the steps use it
SRC="$PWD"
write_spec() { printf '%s\n' "$TRMCLOUD_SPEC"; }
# shellcheck source=/dev/null
. "$(dirname -- "$0")/standalone.sh"
main "$@"
