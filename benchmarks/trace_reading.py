"""How long reading a trace takes, in each format, beside what Python's csv module alone takes for the same file.

    python -m benchmarks.trace_reading [--rows 100000] [--file TRACE]

Prints JSON last. `exponent` is that of the growth from a tenth of the rows to all of them; linear is 1.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from simulation.traces.formats import own, read_any
from simulation.traces.generate import WorkloadSpec, generate
from simulation.traces.trace import ClusterShape, Trace, TraceJob

_EPOCH_S = 1_767_225_600  # 2026-01-01
_REPEATS = 3

_MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
_SACCT = "JobID|JobIDRaw|User|Partition|Submit|Eligible|Start|End|ElapsedRaw|State|TimelimitRaw|AllocTRES|ReqTRES"


def _muri(job: TraceJob) -> str:
    assert job.stages is not None  # noqa: S101  generated jobs have them
    run_ms, iteration_ms = round(job.run_s * 1000), round(job.iteration_s * 1000)
    stages = ",".join(f"{1000 * stage:g}" for stage in (job.stages.io_s, job.stages.gpu_s, job.stages.net_s))
    head = f"{job.job_id},{job.gpus},{round(job.submit_s * 1000)},{round(job.iterations)},{job.model}"
    return f"{head},16,{run_ms},0,{iteration_ms},{stages},{job.priority}"


def _philly(job: TraceJob) -> str:
    submitted = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(_EPOCH_S + job.submit_s))
    return f"{submitted},{job.run_s},{job.gpus},{job.run_s * job.gpus},{job.user}"


def _sacct(job: TraceJob) -> str:
    submit_s, run_s, tres = round(_EPOCH_S + job.submit_s), math.ceil(job.run_s), f"cpu=8,gres/gpu={job.gpus},node=1"
    times = f"{submit_s}|{submit_s}|{submit_s + 60}|{submit_s + 60 + run_s}|{run_s}"
    limit_min = round((job.time_limit_s or 0) / 60)
    return f"{job.job_id}|{job.job_id}|{job.user}|main|{times}|COMPLETED|{limit_min}|{tres}|{tres}"


def _write(trace: Trace, name: str, directory: Path) -> Path:
    path = directory / f"{name}-{len(trace.jobs)}"
    if name == "own":
        own.write(trace, path)
        return path
    header, line = {
        "muri": (_MURI, _muri),
        "philly": ("timestamp,duration,num_gpus,gpu_time,cluster", _philly),
        "sacct": (_SACCT, _sacct),
    }[name]
    path.write_text("\n".join([header, *map(line, trace.jobs)]) + "\n")
    return path


def _csv_alone(path: Path) -> None:
    with path.open(newline="") as stream:
        for _row in csv.reader(stream):
            pass


def _cpu_s(work: Callable[[Path], object], path: Path) -> float:
    """The shortest of a few runs: other programs can only add to it."""
    taken = []
    for _ in range(_REPEATS):
        start_s = time.process_time()
        work(path)
        taken.append(time.process_time() - start_s)
    return min(taken)


def _measure(path: Path, rows: int) -> dict[str, float]:
    read_s, csv_s = _cpu_s(read_any, path), _cpu_s(_csv_alone, path)
    return {
        "rows": rows,
        "read_cpu_s": round(read_s, 3),
        "per_row_us": round(1e6 * read_s / rows, 1),
        "times_csv_alone": round(read_s / csv_s, 1),
    }


@click.command()
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--file", type=click.Path(path_type=Path), help="Also read this trace.")
def main(rows: int, file: Path | None) -> None:
    """Measure reading generated traces of two sizes in every format."""
    found: dict[str, dict[str, float]] = {}
    cluster = ClusterShape(64, 8)
    large, small = (generate(WorkloadSpec(count, cluster), seed=1) for count in (rows, rows // 10))
    with tempfile.TemporaryDirectory() as directory:
        for name in ("own", "muri", "philly", "sacct"):
            tenth_s = _cpu_s(read_any, _write(small, name, Path(directory)))
            found[name] = _measure(_write(large, name, Path(directory)), rows)
            found[name]["exponent"] = round(math.log10(found[name]["read_cpu_s"] / tenth_s), 2)
    if file is not None:
        trace = read_any(file)
        found[file.name] = _measure(file, len(trace.jobs) + len(trace.rejected))
        found[file.name]["rejected"] = len(trace.rejected)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
