#!/bin/bash
# A training as a user might write it in shell. usage: checkpointing.sh DIRECTORY SPOOL STEPS [MORE]
# Each step appends "run step gpus nodes" to DIRECTORY/done; the step is saved on SIGUSR1, and loaded at the start.
# A run after a requeue does MORE steps and ends, if that is given: what must be interrupted need not be timed.
# The loss is 1, or with FLOOR in the environment it falls towards that. While the file HOLD is there, the last step waits.
directory=$1 spool=$2 steps=$3 more=$4 run=${SLURM_RESTART_COUNT:-0}
say() { printf '{"time_s": %s, "restart": %d, %s}\n' "$(date +%s.%N)" "$run" "$1" >> "$spool/$SLURM_JOB_ID.jsonl"; }
step=$(cat "$directory/checkpoint" 2> /dev/null || echo 0)
[ "$run" = 0 ] || [ -z "$more" ] || steps=$((step + more))
wanted=0
trap 'wanted=1' USR1
while [ "$step" -lt "$steps" ]; do
  sleep 0.2
  if [ $((step + 1)) -lt "$steps" ] || [ ! -e "$HOLD" ]; then
    step=$((step + 1))
    echo "$run $step ${SLURM_GPUS_ON_NODE:-0} $SLURM_JOB_NUM_NODES" >> "$directory/done"
    say "\"step\": $step, \"metric\": \"loss\", \"value\": $((FLOOR ? FLOOR + 1000 / step : 1)), \"total_steps\": $steps"
  fi
  if [ "$wanted" = 1 ]; then
    wanted=0
    echo "$step" > "$directory/checkpoint.new" && mv "$directory/checkpoint.new" "$directory/checkpoint"
    say '"event": "checkpoint"'
  fi
done
say '"event": "end"'
