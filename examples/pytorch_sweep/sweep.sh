#!/bin/sh
# Six trainings as one job array, one GPU each. explsched compares them, starts the promising ones first, preempts them
# for better ones (--checkpoint) and stops those with nothing left to learn (--early-stop).
exec sxbatch --sweep mlp --checkpoint USR1 --early-stop --time=30 --template sweep \
  --param-grid lr=0.01,0.1,0.3 --param-grid width=16,64 --param gpus=1 "$@" \
  -- python3 examples/pytorch_sweep/train.py
