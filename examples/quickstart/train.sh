#!/bin/bash
# sxrun passes the checkpoint signal on to the training. Arguments of the job go to the training.
exec sxrun -- python3 examples/quickstart/train.py "$@"
