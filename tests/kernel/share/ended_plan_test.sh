#!/bin/sh
# The plan for a GPU, ended while it measures: it prints what it has, as JSON. Usage: ended_plan_test.sh PLAN BUILD
set -eu
TMPDIR="$(mktemp -d /tmp/XXXXXX)"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$1" "$2" 0.3 > "$TMPDIR/plan.json" &
plan=$!
tries=0
until grep -qs server_alone "$TMPDIR"/*/out; do
    tries=$((tries + 1))
    [ "$tries" -lt 900 ] || exit 1
    sleep 0.1
done
kill "$plan"
wait "$plan" || echo "it said that it was ended"
python3 -c 'import json, sys; print(json.load(sys.stdin)["sharing"]["arms"]["server_alone"])' < "$TMPDIR/plan.json"
