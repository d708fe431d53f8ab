#!/bin/bash
# One job of the replay: works (sleeps) for MICROSECONDS, saves how far it is when it is asked to, and goes on from there.
# Stand-in for a training whose checkpoint is instant: what is done after the last one is lost at a requeue. In shell,
# because at this compression half a second to start Python would stand for hours, and all nodes share one host.
# usage: job.sh MICROSECONDS DIRECTORY PYTHON
export LC_ALL=C
work=$1
saved=$2/saved/$SLURM_JOB_ID
python=$3
asked=
sleeper=

now() { REPLY=${EPOCHREALTIME/./}; }
save() {
    asked=yes
    [ -z "$sleeper" ] || kill "$sleeper"
    now
    echo $((REPLY - began)) > "$saved.new"
    mv "$saved.new" "$saved"
    "$python" -m wrappers.sxreport --event checkpoint
}

before=0
[ -e "$saved" ] && before=$(< "$saved")
now
began=$((REPLY - before))
trap save USR1
trap '[ -z "$sleeper" ] || kill "$sleeper"; exit 143' TERM
while now; left=$((work - (REPLY - began))); [ $left -gt 0 ]; do
    printf -v seconds '%d.%06d' $((left / 1000000)) $((left % 1000000))
    sleep "$seconds" &
    sleeper=$!
    wait "$sleeper"
done
# Whoever asked must learn that there is nothing left to requeue.
[ -z "$asked" ] || "$python" -m wrappers.sxreport --event end
