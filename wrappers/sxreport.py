"""`sxreport`: reports progress from a shell script.

sxreport --step 10 --loss 0.5 [--metric accuracy=0.9] [--total-steps 100]
"""

from __future__ import annotations

import argparse
import sys

from wrappers.progress import event, report


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, or 2 for a call that cannot be right."""
    parser = argparse.ArgumentParser(
        prog="sxreport",
        description="Report a job's progress to explsched.",
        epilog="example: sxreport --step 10 --loss 0.5 --metric accuracy=0.9 --total-steps 100",
    )
    parser.add_argument("--step", type=int, help="steps done so far")
    parser.add_argument("--loss", type=float, help="the same as --metric loss=VALUE")
    parser.add_argument("--metric", type=_metric, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--total-steps", type=int, help="steps the job will run in all")
    parser.add_argument("--event", choices=("start", "checkpoint", "end"), help="record an event of the run instead")
    options = parser.parse_args(arguments)
    if options.event:
        event(options.event, options.step)
        return 0
    metrics = dict(options.metric)
    if options.loss is not None:
        metrics["loss"] = options.loss
    if options.step is None or not metrics:
        parser.error("--step and at least one of --loss and --metric are needed")
    try:
        report(step=options.step, total_steps=options.total_steps, **metrics)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return 0


def _metric(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, float(value)


if __name__ == "__main__":
    sys.exit(main())
