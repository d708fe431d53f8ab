#!/bin/bash
# One job of the replay that shares its GPU. How fast it is beside the others, the replay reckons; it ends the job by USR2.
# What it has done until then counts after a requeue, as if its checkpoint were instant.
# usage: share.sh PYTHON
python=$1
trap '"$python" -m wrappers.sxreport --event checkpoint' USR1
trap 'kill "$sleeper"; exit 143' TERM
trap 'kill "$sleeper"; exit 0' USR2
sleep 3600 &
sleeper=$!
echo ready # for a signal: before, it would kill this shell
while kill -0 "$sleeper" 2> /dev/null; do wait "$sleeper"; done
exit 1
