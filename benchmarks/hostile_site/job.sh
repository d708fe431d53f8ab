#!/bin/bash
# One training: sleeps for MICROSECONDS and reports as KIND says; saves when asked to, and goes on from there when it is
# requeued. In shell, because at this compression half a second to start Python would stand for minutes.
# usage: job.sh KIND MICROSECONDS DIRECTORY
export LC_ALL=C
kind=$1
work=$2
saved=$3/$SLURM_JOB_ID
restart=${SLURM_RESTART_COUNT:-0}
spool=$EXPLSCHED_SPOOL
# As explsched.report does it: a directory of one's own where the spool gives it the daemon's group.
if [ -g "$spool" ]; then
    spool=$spool/$UID
    mkdir -m 750 "$spool" 2> /dev/null
fi
file=$spool/$SLURM_JOB_ID.jsonl
sleeper=

stamp() {
    local ahead=0 clock=${saved%/*}/clock
    [ -e "$clock" ] && read -r ahead 2> /dev/null < "$clock"
    printf -v REPLY '"time_s": %d.%s, "restart": %d' $((${EPOCHREALTIME%.*} + ${ahead:-0})) "${EPOCHREALTIME#*.}" "$restart"
}
say() { stamp; { echo "{$REPLY, $1}" >> "$file"; } 2> /dev/null; }
now() { REPLY=${EPOCHREALTIME/./}; }
save() {
    [ -z "$sleeper" ] || kill "$sleeper"
    now
    echo $((REPLY - began)) > "$saved.new" && mv "$saved.new" "$saved"
    say '"event": "checkpoint"'
}
report() {
    local step=$1 value
    case $kind in
        honest) printf -v value '%d.%03d' $((10 / (step + 9))) $((10000 / (step + 9) % 1000)) ;;
        faked) value=$((1000000 / (step * step))) ;;
        constant) value=1 ;;
        perfect) value=0 step=1000 ;;
        *) return ;;
    esac
    say "\"step\": $step, \"metric\": \"loss\", \"value\": $value, \"total_steps\": 1000"
}

before=0
[ -e "$saved" ] && before=$(< "$saved")
now
began=$((REPLY - before))
trap save USR1
trap '[ -z "$sleeper" ] || kill "$sleeper"; exit 143' TERM
say '"event": "start"'
while now; done=$((REPLY - began)); left=$((work - done)); [ $left -gt 0 ]; do
    report $((done / 500000 + 1))
    [ $left -gt 1000000 ] && left=1000000
    printf -v seconds '%d.%06d' $((left / 1000000)) $((left % 1000000))
    sleep "$seconds" &
    sleeper=$!
    wait "$sleeper"
done
say '"event": "end"'
exit 0 # whether it could be reported or not
