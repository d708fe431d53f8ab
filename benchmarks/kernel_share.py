"""How well processes share a GPU: an inference server with trainings, and quotas; alone, under MPS alone, and managed.

`--virtual` runs real processes on a virtual GPU (the fake driver of `tests/kernel`), through the interposer and the
kernel manager. All kernels that run together are slowed down there by max(1, sum of compute, sum of bandwidth).

Latencies are from the virtual GPU's log, from a request's first launch to the end of its last kernel; `--host` takes
what the server itself measured, which includes the time until this machine's cores let it run again.

`--virtual --hostile` runs the gate and the manager's decisions in virtual time, on a device that is as unfriendly as
real ones: see `tests/kernel/hostile/device.hpp`. `--seconds` are then of virtual time.

`benchmarks/kernel_share_real.py` measures on a real GPU.

The last line is JSON: hp_p99_ratio (managed / alone, the worst mix), be_retained (best-effort work, managed / MPS
alone, the worst mix), quota_shares, quota_total (managed / unmanaged), let_in_above_caps (share of the time above the
caps that the gate could have avoided, the worst mix), and one row for each mix.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import click

from benchmarks import kernel_share_hostile
from benchmarks.kernel_share_log import above_caps, ended_within, request_ms
from benchmarks.kernel_share_run import Bench, Client, Kernel, Trial

# The server's kernels are like a convolution and a normalisation of 1 ms each; those of the trainings are shorter.
_KERNELS = (
    Kernel("conv", 1000, 600, 200),
    Kernel("norm", 1000, 200, 600),
    Kernel("math", 500, 250, 100),
    Kernel("copy", 500, 100, 250),
    Kernel("whole", 700, 1000, 400),
)
_SERVER = Client("high", ",".join(["conv,norm"] * 20), pause_ms=80)
_TRAININGS = {
    "math": Client("best-effort", "math*40"),
    "copy": Client("best-effort", "copy*40"),
    "both": Client("best-effort", ",".join(["math,copy"] * 20)),
    "runs": Client("best-effort", ",".join(["math*2,copy*2"] * 10)),
}
_MIXES = (
    ("math",),
    ("copy",),
    ("both",),
    ("math", "copy"),
    ("math", "both"),
    ("math", "copy", "both"),
    tuple(_TRAININGS),
)
_CAP = 950
_GROUP_OPTIONS = ("--policy", "group")
_QUOTA_PERMILLE = (300, 700)
_QUOTA_MARGIN_S = 0.5


@dataclass(frozen=True, slots=True)
class MixRow:
    """One server and some trainings: ratios of the medians over the repetitions."""

    trainings: str
    hp_p99_ratio: float
    hp_p99_ratio_mps: float
    be_retained: float
    above_caps: float  # share of the time, requests that arrive on top of what runs included
    let_in_above_caps: float  # of it, because of a best-effort kernel that was launched last
    be_above_caps: float  # by best-effort kernels alone
    longest_wait_ms: float
    passed: int  # launches that reached the bound of their wait
    unmanaged: int  # launches that were not asked for, as the manager was late
    requests: int  # behind each p99


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """Two busy clients with requests of 30 % and 70 %."""

    shares: tuple[float, float]
    total: float


@click.command()
@click.option("--virtual", is_flag=True, help="On the virtual GPU.")
@click.option("--hostile", is_flag=True, help="Short kernels, copies, unknown slowdowns, clocks; in virtual time.")
@click.option(
    "--build", default="build/native", show_default=True, type=click.Path(path_type=Path), help="CMake build directory."
)
@click.option("--seconds", type=float, help="Of each run.  [default: 5; with --hostile 20]")
@click.option("--repeat", default=3, show_default=True, help="Runs of each kind, in turns.")
@click.option("--host", is_flag=True, help="Latencies as the server itself measures them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def main(
    virtual: bool,  # noqa: FBT001
    hostile: bool,  # noqa: FBT001
    build: Path,
    seconds: float | None,
    repeat: int,
    host: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Measure how processes share a GPU."""
    if not virtual:
        raise click.UsageError("name --virtual; on a real GPU run `python -m benchmarks.kernel_share_real --json`")
    if hostile:
        print(json.dumps(kernel_share_hostile.run(build.resolve(), seconds or 20.0)))
        return
    seconds = seconds or 5.0
    bench = Bench(build.resolve(), _KERNELS)
    rows = []
    for mix in _MIXES:
        rows.append(_mix(bench, mix, seconds, repeat, host=host))
        if not as_json:
            print(rows[-1])
    quota = _quota(bench, seconds, repeat)
    if not as_json:
        print(quota)
    result = {
        "hp_p99_ratio": max(row.hp_p99_ratio for row in rows),
        "be_retained": min(row.be_retained for row in rows),
        "quota_shares": quota.shares,
        "quota_total": quota.total,
        "let_in_above_caps": max(row.let_in_above_caps for row in rows),
        "mixes": [asdict(row) for row in rows],
    }
    print(json.dumps(result))


def _mix(bench: Bench, mix: Sequence[str], seconds: float, repeat: int, *, host: bool) -> MixRow:
    clients = [_SERVER, *(_TRAININGS[name] for name in mix)]
    alone, free, ours = [], [], []
    for _ in range(repeat):
        alone.append(bench.run([_SERVER], seconds, None))
        free.append(bench.run(clients, seconds, None))
        ours.append(bench.run(clients, seconds, _GROUP_OPTIONS))
    alone_ms = _p99_ms(alone, host=host)
    above = [astuple(above_caps(trial.log, _KERNELS, trial.pids[0], _CAP)) for trial in ours]
    in_all, let_in, by_best_effort = (round(statistics.median(shares), 5) for shares in zip(*above, strict=True))
    return MixRow(
        "+".join(mix),
        round(_p99_ms(ours, host=host) / alone_ms, 4),
        round(_p99_ms(free, host=host) / alone_ms, 4),
        round(statistics.median(map(_best_effort_work, ours)) / statistics.median(map(_best_effort_work, free)), 4),
        in_all,
        let_in,
        by_best_effort,
        round(max(_most(trial, "longest_wait_ns") for trial in ours) / 1e6, 2),
        sum(_sum(trial, "passed") for trial in ours),
        sum(_sum(trial, "unmanaged") for trial in ours),
        len(_request_ms(ours, host=host)),
    )


def _quota(bench: Bench, seconds: float, repeat: int) -> QuotaRow:
    """What is done between the first half second and the end, as whole kernels: a step may end long after."""
    clients = [Client("best-effort", "whole*40", request_permille=share) for share in _QUOTA_PERMILLE]

    def done(options: Sequence[str] | None) -> list[int]:
        trial = bench.run(clients, seconds, options)
        first_ns = min(kernel.started_ns for kernel in trial.log)
        begin_ns, end_ns = first_ns + int(_QUOTA_MARGIN_S * 1e9), first_ns + int(seconds * 1e9)
        return [ended_within(trial.log, pid, begin_ns, end_ns) for pid in trial.pids]

    shares, totals = [], []
    for _ in range(repeat):
        free, ours = done(None), done(("--policy", "quota"))
        shares.append(ours[0] / sum(ours))
        totals.append(sum(ours) / sum(free))
    share = round(statistics.median(shares), 4)
    return QuotaRow((share, round(1 - share, 4)), round(statistics.median(totals), 4))


def _p99_ms(trials: Sequence[Trial], *, host: bool) -> float:
    """The 99th percentile of the requests of all trials together."""
    latencies_ms = sorted(_request_ms(trials, host=host))
    return latencies_ms[int(0.99 * len(latencies_ms))]


def _request_ms(trials: Sequence[Trial], *, host: bool) -> list[float]:
    if host:
        return [us / 1e3 for trial in trials for us in trial.clients[0].latencies_us]
    kernels = _SERVER.kernels.count(",") + 1
    return [ms for trial in trials for ms in request_ms(trial.log, trial.pids[0], kernels)]


def _best_effort_work(trial: Trial) -> int:
    return sum(client.launches for client in trial.clients[1:])


def _counts(trial: Trial, counter: str) -> list[int]:
    """A counter of each client, as the manager tells it shortly before the end."""
    return [client[counter] for gpu in (trial.status or {"gpus": []})["gpus"] for client in gpu["clients"]]


def _most(trial: Trial, counter: str) -> int:
    return max(_counts(trial, counter), default=0)


def _sum(trial: Trial, counter: str) -> int:
    return sum(_counts(trial, counter))


if __name__ == "__main__":
    main()
