"""Figures of README and docs are those that are stored, and each stands beside the command that made it.

A claim is a sentence of a page with `{}` where its figures stand, and the stored values that these must be, as rounded
as the page shows them. Who measures anew changes both; who words a sentence anew changes the claim.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from tests.docs.blocks import PAGES, ROOT

RESULTS = ROOT / "benchmarks" / "results"
_STORED = re.compile(r"`benchmarks/results/(\w+\.json)`")
_COMMAND = re.compile(r"python -m benchmarks\.|`scripts/|`benchmarks/gpu/plan ")
_NUMBER = r"([+-]?\d[\d,]*(?:\.\d+)?)"
_KERNELS = "docs/kernels-measured.md"
_NO_FIGURES = {
    (_KERNELS, "kernel_virtual.json"),
    ("docs/web.md", "web.json"),
}
"""Pages that name a stored file and quote nothing of it."""
_IN_WORDS = {("docs/decisions/0003-haproxy.md", "gateway_load.json")}
"""Pages that quote it in words, or shares that the file does not hold as such."""


class Claim(NamedTuple):
    page: str
    stored: str
    sentence: str
    figures: Callable[[Any], list[float]]


def _to_best(report: Any) -> list[float]:
    asha = report["asha_over_explsched"]
    slurm = report["slurm_alone_over_explsched"]
    gpu_s = "gpu_seconds_to_best"
    each = asha[gpu_s]["each"]
    return [slurm[gpu_s]["median"], asha[gpu_s]["median"], asha["time_to_best"]["median"], min(each), max(each)]


def _off(rows: Any, policies: tuple[str, ...], *figures: str) -> float:
    """The largest distance from the published figures, as a percentage."""
    return max(
        abs(float(row[figure]))
        for row in rows
        for figure in figures
        if row["policy"] in policies and row["variant"] == "plain" and row["reference"] == "published"
    )


def _themis(rows: Any) -> dict[str, float]:
    plain = [
        row for row in rows if (row["policy"], row["variant"], row["reference"]) == ("themis", "plain", "published")
    ]
    return {row["trace"]: abs(row["avg_jct_off_pct"]) for row in plain}


def _parity(report: Any) -> list[float]:
    muri, themis = ("muri-s", "muri-l"), _themis(report["rows"])
    return [
        _off(report["rows"], muri, "avg_jct_off_pct", "makespan_off_pct"),
        _off(report["rows"], muri, "p99_jct_off_pct"),
        themis["trace1"],
        themis["trace2_pr"],
        max(themis["trace1_pr"], themis["trace2"]),
    ]


def _share_row(trace: str) -> Claim:
    def figures(report: Any) -> list[float]:
        ratio = {row["durations"]: row["avg_jct_ratio"] for row in report["rows"] if row["trace"] == trace}
        return [ratio["known"], ratio["learnt"]]

    return Claim("docs/simulation.md", "share.json", f"| {trace} | {{}} | {{}} |", figures)


def _published(size: str) -> Claim:
    def figures(report: Any) -> list[float]:
        return [report["published"][size][name] for name in ("dilu", "dilu-original")]

    shown = f"{int(size):,}"
    return Claim("docs/colocation.md", "colocation.json", f"| Dilu's own, {shown} instances | {{}} | {{}} |", figures)


def _at_defaults(report: Any) -> list[float]:
    """Of Mooncake's conversations: ours, at which cost, and the best peer's."""
    (row,) = (case["default"] for case in report["cases"] if case["trace"] == "mooncake-conversation")
    return [row["over"], row["replica_seconds"], row["peer_over"]]


def _foreseen_starts(report: Any) -> list[float]:
    """Percentages of the recordings that nothing was chosen on: now, before, and Slurm's own."""
    judges = [run for run in report["parts"]["eta"]["runs"] if "before" in run and not run["chosen_on"]]

    def share(which: str, name: str) -> float:
        counted = [(run[which][f"{name}_estimates"], run[which][f"{name}_within_2x"]) for run in judges]
        good: float = sum(estimates * within for estimates, within in counted)
        of: float = sum(estimates for estimates, _ in counted)
        return 100 * good / of

    rich, every = "eta_with_history", "eta"
    counts = [sum(run["figures"][f"{name}_estimates"] for run in judges) for name in (rich, every)]
    return [
        share("figures", rich),
        counts[0],
        share("figures", every),
        counts[1],
        share("before", every),
        share("before", "slurm"),
    ]


def _batches(report: Any) -> list[float]:
    found = report["parts"]["batching"]["figures"]
    return [found[f"batching_{which}_mean_s"] for which in ("real", "simulated", "unbatched")]


def _themis_row(trace: str) -> Claim:
    def figures(report: Any) -> list[float]:
        found = {
            row["variant"]: row
            for row in report["rows"]
            if (row["policy"], row["trace"], row["reference"]) == ("themis", trace, "published")
        }
        names = ("avg_jct_off_pct", "makespan_off_pct", "p99_jct_off_pct")
        return [found[variant][name] for variant in ("plain", "early-shares") for name in names]

    row = f"| {trace} | {{}} / {{}} / {{}} | {{}} / {{}} / {{}} |"
    return Claim("docs/simulation.md", "muri_parity.json", row, figures)


def _autopack(report: Any) -> list[float]:
    off = {
        (r["policy"], r["variant"]): r
        for r in report["rows"]
        if (r["trace"], r["reference"]) == ("trace1", "published")
    }
    return [
        off[policy, variant]["avg_jct_off_pct"] for variant in ("plain", "autopack") for policy in ("muri-s", "muri-l")
    ]


def _ablations(report: Any) -> list[float]:
    smaller = {"in-order", "worst-ordering", "three-members", "two-members"}
    rows = [row for row in report["rows"] if row["variant"] in smaller]
    assert {row["variant"] for row in rows} == smaller
    return [max(abs(row[figure]) for row in rows) for figure in ("avg_jct_off_pct", "makespan_off_pct")]


def _medians(figure: str) -> Callable[[Any], list[float]]:
    return lambda report: [report["medians"][arm][figure] for arm in ("without", "first passes", "steady")]


def _against_asha(report: Any) -> list[float]:
    rows = [report[f"{family}:1"]["explsched"] for family in ("taskset", "algoperf")]
    return [row[name] for name in ("time_against_asha", "all_gpu_hours_against_slurm") for row in rows]


def _against_slurm_on_algoperf(report: Any) -> list[float]:
    one, four = (report[f"algoperf:{sweeps}"] for sweeps in (1, 4))
    names = ("time_against_slurm", "worst_against_slurm")
    against = [found["explsched"][name] for name in names for found in (one, four)]
    seeds = [report[f"{family}:1"]["seeds"] for family in ("taskset", "algoperf")]
    return [100 * one["asha"]["reached"], *against, *seeds]


def _generated(report: Any) -> list[float]:
    return [report["placements"][name]["ratio"] for name in ("dilu", "dilu-original")]


def _too_short(report: Any) -> list[float]:
    arms = [report["arms"][arm] for arm in ("muri-l", "explsched-share")]
    return [report["sim_jct_ratio"], *(100 * (1 - arm["sim_avg_jct_s"] / arm["avg_jct_s"]) for arm in arms)]


def _live_ratios(report: Any) -> list[float]:
    return [run[name] for name in ("jct_ratio", "makespan_ratio") for run in report["runs"]]


def _live_errors(report: Any) -> list[float]:
    (alone,) = (run for run in report["runs"] if all(max(arm["load_before_after"]) < 2 for arm in run["arms"].values()))
    names = ("sim_error_jct", "sim_error_makespan")
    worst = [abs(report[name]) for name in names]
    return [100 * error for error in (*worst, *(alone["arms"][arm][name] for arm in _LIVE_ARMS for name in names))]


_LIVE_ARMS = ("slurm", "explsched")


def _scaling(trace: str) -> Callable[[Any], Any]:
    return lambda report: next(case for case in report["cases"] if case["trace"].startswith(trace))


def _missed(report: Any) -> list[float]:
    case = _scaling("mooncake")(report)
    ratios = [one["ratio"] for one in case["curve"]]
    return [case["default"]["ratio"], min(ratios), max(ratios)]


def _which_are_slow(report: Any) -> list[float]:
    case = _scaling("mooncake")(report)
    fifo = case["default_fifo"]
    return [fifo["over"], fifo["replica_seconds"], case["defaults"]["slurm, fifo"]["slow"], case["default"]["over"]]


def _same_queue(report: Any) -> list[float]:
    return [_scaling("mooncake")(report)["default_same_queue"]["peer_over"]]


def _smooth(report: Any) -> list[float]:
    (at,) = (one for one in _scaling("azure")(report)["curve"] if one["utilization"] == 1.2)
    return [at[name] for name in ("over", "replica_seconds", "peer_over")]


def _azure_at_defaults(report: Any) -> list[float]:
    default = _scaling("azure")(report)["default"]
    return [default[name] for name in ("over", "replica_seconds", "peer_over")]


def _peers_defaults(report: Any) -> list[float]:
    peers = _scaling("mooncake")(report)["defaults"]
    return [peers[rule][name] for rule in ("knative", "dilu", "target") for name in ("slo_misses", "replica_seconds")]


def _peers_options(report: Any) -> list[float]:
    case = _scaling("mooncake")(report)
    (_, default_s, _), *others = (run for run in case["runs"] if run[0] == "knative")
    late = [late for _, replica_s, late in others if replica_s <= _AS_DEAR]
    assert len(late) == 13
    assert default_s <= _AS_DEAR
    return [_AS_DEAR, min(late), median(late), max(late)]


_AS_DEAR = 36_623


def _affinity(report: Any) -> list[float]:
    five, three = ("all_5000", "all_3000")
    found = {name: 100 * value for name, value in report["figures"].items() if name.endswith("of_reusable")}
    return [
        found[f"{five}_prefix_hits_of_reusable"],
        found[f"{five}_least_hits_of_reusable"],
        report["figures"][f"{five}_wait_p99_ratio"],
        found[f"{three}_prefix_hits_of_reusable"],
        report["figures"][f"{three}_wait_p99_ratio"],
    ]


def _fair(report: Any) -> list[float]:
    ratios = {
        which: [run["figures"][f"fair_{which}_ratio"] for run in report["parts"]["fair"]["runs"]]
        for which in ("in_turn", "fifo")
    }
    return [end(ratios[which]) for which in ("in_turn", "fifo") for end in (min, max)]


def _order(report: Any) -> list[float]:
    figures = report["parts"]["order"]["figures"]
    return [100 * figures[f"order_{name}"] for name in ("haproxy_cpu_share", "late_share_in_turn", "late_share_fifo")]


def _more(ratio: float) -> float:
    return 100 * (ratio - 1)


def _hostile_row(row: str, arm: str) -> Claim:
    def figures(report: Any) -> list[float]:
        worst = report[arm]
        work = [100 * worst[name] for name in ("be_retained", "total")]
        return [_more(worst["hp_p99_ratio"]), _more(worst["hp_p50_ratio"]), *work]

    return Claim(_KERNELS, "kernel_hostile.json", f"| {row} | {{}} % | {{}} % | {{}} % | {{}} % |", figures)


def _of_variants(report: Any) -> list[float]:
    variants = report["variants"].values()
    arms = [variant[arm] for variant in variants for arm in _ARMS.values()]
    ideal = [mix["be_retained"] for variant in variants for mix in variant["ideal"].values()]
    return [
        _more(max(arm["hp_p99_ratio"] for arm in arms)),
        100 * min(arm["be_retained"] for arm in arms),
        100 * min(ideal),
    ]


def _oracle_row(mix: str) -> Claim:
    """The gate's figures are those of another file, in the same row."""

    def work(arm: Any) -> list[float]:
        return [100 * arm[name] for name in ("be_retained", "total")]

    def figures(report: Any) -> list[float]:
        gate, oracle = (
            next(one for one in stored["mixes"] if one["mix"] == mix)
            for stored in (json.loads((RESULTS / "kernel_hostile.json").read_text()), report)
        )
        ours, tail = gate["known"], oracle["gate_tail"]
        shown = [*work(ours), _more(ours["hp_p99_ratio"]), *work(oracle["gate_each"])]
        shown += [*work(tail), _more(tail["hp_p50_ratio"])]
        return [*shown, *work(oracle["each"]), *work(oracle["tail"])]

    cells = "{} ({}), {} % | {} ({}) | {} ({}), {} % | {} ({}) | {} ({})"
    return Claim(_KERNELS, "kernel_oracle.json", f"| {mix} | {cells} |", figures)


def _gpu_row(row: str, arm: str) -> Claim:
    def figures(report: Any) -> list[float]:
        arms = report["arms"]
        server, alone = arms[arm]["server"], arms["training_alone"]["training"]["work_us_per_s"]
        return [server["p50_us"] / 1e3, server["p99_us"] / 1e3, 100 * arms[arm]["training"]["work_us_per_s"] / alone]

    return Claim(_KERNELS, "gpu_h100.json", f"| {row} | {{}} | {{}} | {{}} |", figures)


def _torch_row(row: str, arm: str) -> Claim:
    def figures(report: Any) -> list[float]:
        one = report["arms"][arm]
        both = [one["both"][f"service_{which}_ms"] for which in ("p50", "p99")]
        return [one["alone"]["service_p50_ms"], *both, one["training"]["rate"]]

    return Claim(_KERNELS, "kernel_share_h100.json", f"| {row} | {{}} | {{}} | {{}} | {{}} |", figures)


_REQUEST_US = 60 * 32
"""Work of a request: its kernels take 32 us on average."""


def _on_a_gpu(report: Any) -> list[float]:
    arms, seconds = report["arms"], report["seconds"]
    ours, mps, slices = (arms[name] for name in ("explsched_device", "mps", "time_slices"))

    def work(arm: Any, its_seconds: float) -> float:
        return float(arm["server"]["requests"] * _REQUEST_US / its_seconds + arm["training"]["work_us_per_s"])

    in_slices = work(slices, seconds)
    return [
        _more(ours["server"]["p99_us"] / arms["server_alone"]["server"]["p99_us"]),
        100 * ours["training"]["work_us_per_s"] / mps["training"]["work_us_per_s"],
        work(ours, 2 * seconds) / in_slices,  # this arm runs twice as long
        work(mps, seconds) / in_slices,
    ]


def _quota(report: Any) -> list[float]:
    arms = report["arms"]
    works = [arms["explsched_quota_30_70"][f"request_{share}"]["work_us_per_s"] for share in ("0.3", "0.7")]
    alone = arms["training_alone"]["training"]["work_us_per_s"]
    return [*(100 * work / sum(works) for work in works), 100 * sum(works) / alone]


_GPU_ARMS = {
    "time slices": "time_slices",
    "MPS": "mps",
    "MPS, client priority": "mps_priority",
    "MPS, training on 30 % of the threads": "mps_percentage",
    "explsched": "explsched_device",
    "explsched, without MPS": "explsched_device_without_mps",
    "explsched, gate on the host": "explsched_host",
}
_ARMS = {
    "with priority": "known_priority",
    "with priority, profiles learnt": "learnt_priority",
    "without priority": "known",
    "without priority, profiles learnt": "learnt",
}
_ONE_TRAINING = tuple(
    f"{server} + {training}"
    for server, trainings in (("eager", "vision short language graphs"), ("graph", "vision graphs"))
    for training in trainings.split()
)


def _of_liars(report: Any) -> list[float]:
    """What each lie brings and when nobody lies, with standard errors; evictions, and those in vain."""
    arms = report["virtual_one_lie"]["arms"]
    told = [f"explsched, {lie}" for lie in ("perfect", "constant", "faked", "missing", "sweeps", "honest")]
    of_lies = [arms[arm]["lying_over_honest"][name] for arm in told for name in ("mean", "standard_error")]
    runs = [
        *(arms[arm] for arm in told),
        report["virtual_policies"]["arms"]["explsched, a pass each 30 s, later seeds"],
    ]
    return [*of_lies, *(sum(run[name] for run in runs) for name in ("evictions", "evictions_in_vain"))]


def _of_one_lie_each(report: Any) -> list[float]:
    told = report["virtual_policies"]["arms"]["explsched, a pass each 30 s, later seeds"]["lying_over_honest"]
    return [told[lie][name] for lie in ("all", "sweeps") for name in ("mean", "standard_error")]


def _learned(report: Any) -> list[float]:
    """Percentages: more per GPU-hour than the baselines; reached by all, and by the best; stopped; reached early."""
    ours = report["policies"]["explsched"]
    shares = (
        *(report["against_mean"], report["against_best"], ours["reached"], ours["best_reached"], ours["stopped"]),
        *(ours["early_reached"], report["policies"]["slaq"]["early_reached"]),
    )
    return [100 * share for share in shares]


CLAIMS = (
    Claim(
        "docs/simulation.md",
        "exploratory.json",
        "{} % more per GPU-hour than under `fair`, `slaq` and `fifo` on average, {} % more than under the best of them "
        "(`python -m benchmarks.exploratory --json`, `benchmarks/results/exploratory.json`). Of what is possible {} % "
        "is reached, and by the best jobs of the sweeps {} %: {} % of the jobs are stopped early. When the last job "
        "arrives it is {} %, under `slaq` {} %.",
        _learned,
    ),
    Claim(
        "docs/systems.md",
        "muri_parity.json",
        "the mean JCT of Muri-S and Muri-L is {} and {} % off without it, {} and {} % with it",
        _autopack,
    ),
    Claim(
        "docs/systems.md",
        "muri_parity.json",
        "Of both figures mean JCTs are at most {} %, makespans {} % off",
        _ablations,
    ),
    Claim(
        "docs/gateway.md",
        "gateway_batch.json",
        "replicas and the gateway's job were killed {} times, each of {} requests had one answer",
        lambda report: [report["figures"]["batch_kills"], report["figures"]["batch_answered_once"]],
    ),
    Claim(
        "README.md",
        "sweep_demo.json",
        "Slurm alone needs {} times the GPU-seconds of explsched (median of three seeds), and trainings that ask "
        "Optuna's ASHA whether to go on need {} times as many, in {} times the time ({} to {} times as many: ",
        _to_best,
    ),
    Claim(
        "README.md",
        "best_model.json",
        "On AlgoPerf ASHA reaches the best model in {} % of the sweeps only (the others count twice what Slurm alone "
        "needs for all trainings), and explsched needs {} of Slurm's time with one sweep and {} with four side by "
        "side, at worst {} and {}. Seeds: {} on TaskSet, {} on AlgoPerf.",
        _against_slurm_on_algoperf,
    ),
    Claim(
        "README.md",
        "best_model.json",
        "explsched needs {} of ASHA's time on TaskSet and {} on AlgoPerf; all its trainings together take {} and {} of "
        "the GPU-hours of Slurm alone",
        _against_asha,
    ),
    Claim(
        "README.md",
        "muri_parity.json",
        "Muri-S and Muri-L are within {} % in average JCT and makespan and {} % in p99. Themis depends on a solver "
        "whose choice among many optima is not ours: {} % off in average JCT on `trace1`, {} % on `trace2_pr`, at most "
        "{} % on the other two.",
        _parity,
    ),
    *(_share_row(trace) for trace in ("trace1", "trace1_pr", "trace2", "trace2_pr")),
    *(_themis_row(trace) for trace in ("trace1", "trace1_pr", "trace2", "trace2_pr")),
    *(_hostile_row(row, arm) for row, arm in _ARMS.items()),
    *(_gpu_row(row, arm) for row, arm in _GPU_ARMS.items()),
    *(
        _torch_row(row, arm)
        for row, arm in (
            ("in time slices", "time slices"),
            ("under MPS", "mps"),
            ("with explsched", "explsched"),
            ("with explsched, without MPS", "explsched without mps"),
        )
    ),
    Claim(
        _KERNELS,
        "kernel_share_h100.json",
        "which does {} steps a second alone",
        lambda report: [report["arms"]["time slices"]["training_alone"]["rate"]],
    ),
    Claim(
        _KERNELS,
        "gpu_h100.json",
        "keeps the p99 within {} % of a server alone, with {} % of the training that MPS gets done while its requests "
        "take three times as long. All work together is {} of that in time slices, {} under MPS.",
        _on_a_gpu,
    ),
    Claim(_KERNELS, "gpu_h100.json", "got {} and {} % of the work, {} % of what one training", _quota),
    Claim(
        _KERNELS,
        "gpu_h100.json",
        "is that under MPS without it, {} ms; its p99 was {} ms, and {} without",
        lambda report: [
            report["arms"]["explsched_server_alone"]["server"]["p50_us"] / 1e3,
            report["arms"]["explsched_server_alone"]["server"]["p99_us"] / 1e3,
            report["arms"]["mps_server_alone"]["server"]["p99_us"] / 1e3,
        ],
    ),
    Claim(
        _KERNELS,
        "gpu_h100.json",
        "in another run {} and {} ms.",
        lambda report: [report["server_managed"][which]["p99_us"] / 1e3 for which in ("after", "without")],
    ),
    Claim(
        _KERNELS,
        "kernel_hostile_variants.json",
        "p99 grows by {} % at worst, and {} % of best-effort work is kept, where "
        "[the ideal gate](#what-any-gate-could-reach) keeps {} %",
        _of_variants,
    ),
    Claim(
        _KERNELS,
        "gpu_h100.json",
        "the p99 is {} ms, and {} under MPS",
        lambda report: [
            report["arms"][arm]["server"]["p99_us"] / 1e3 for arm in ("explsched_device_persistent", "mps_persistent")
        ],
    ),
    *(_oracle_row(mix) for mix in _ONE_TRAINING),
    Claim(
        "docs/kernels-gate.md",
        "kernel_hostile.json",
        "on the [simulated GPU](kernels-measured.md#without-a-gpu) its median grew by {} % at worst",
        lambda report: [_more(max(report[arm]["hp_p50_ratio"] for arm in _ARMS.values()))],
    ),
    *(_published(size) for size in ("100", "800", "3200")),
    Claim("docs/colocation.md", "colocation.json", "mean of five seeds | {} | {} |", _generated),
    Claim(
        "docs/colocation.md",
        "colocation.json",
        "needs {} of `exclusive` on the same generated events, with {} moves per start; {} of the starts wait",
        lambda report: [
            report["placements"]["dilu-moves"][name] for name in ("ratio", "moves_per_start", "behind_moves")
        ],
    ),
    Claim(
        "docs/colocation.md",
        "colocation.json",
        "On Dilu's own events it needs {}, {} and {} with 100, 800 and 3,200 instances",
        lambda report: [report["published"][size]["dilu-moves"] for size in ("100", "800", "3200")],
    ),
    Claim(
        "docs/operation.md",
        "controller_load.json",
        "main cycle takes {} ms by Slurm alone, {} ms while the daemon puts a new queue in order, 200 writes a pass, "
        "and {} ms once it is in order.",
        _medians("main_mean_ms"),
    ),
    Claim(
        "docs/operation.md",
        "controller_load.json",
        "CPU time per cycle is {}, {} and {} ms",
        _medians("main_cpu_mean_ms"),
    ),
    Claim(
        "docs/authority.md",
        "effective_priority.json",
        "at most {}, {} and {} of them were not in force one pass after 200 were written",
        lambda report: [max(one["out_of_force"] for one in run["passes"]) for run in report["runs"]],
    ),
    Claim(
        "docs/authority.md",
        "effective_priority.json",
        "backfill looked at {}, {} and {} jobs a cycle",
        lambda report: [run["with_daemon"]["depth"] for run in report["runs"]],
    ),
    Claim(
        "docs/simulation.md",
        "live_replay.json",
        "mean JCT {}, {}, {} and {} times better than Slurm alone, makespan {}, {}, {} and {} times",
        _live_ratios,
    ),
    Claim(
        "docs/colocation.md",
        "colocation.json",
        "generated events {} of `exclusive`, where `dilu` needs {}; on Dilu's own {}, {} and {})",
        lambda report: [
            report["bound_ratio"],
            report["placements"]["dilu"]["ratio"],
            *(report["published"][size]["bound"] for size in ("100", "800", "3200")),
        ],
    ),
    Claim(
        "docs/simulation.md",
        "live_share.json",
        "is {} times shorter, makespan {} times, and {} jobs were lost",
        lambda report: [report["jct_ratio"], report["makespan_ratio"], report["jobs_lost"]],
    ),
    Claim(
        "docs/researcher.md",
        "stages.json",
        "measured stages were at most {}, {}, {} and {} % of an iteration from those timed by hand, "
        "for {} % more CPU time",
        lambda report: [100 * share for share in (*(case["worst"] for case in report["cases"]), report["overhead"])],
    ),
    Claim(
        "docs/simulation.md",
        "policy_pass.json",
        "jobs took it {} s, and `muri-s` {} s in the same run",
        lambda report: [report["explsched-share"]["plan_s"], report["muri-s"]["plan_s"]],
    ),
    Claim(
        "docs/simulation.md",
        "live_share_held_out.json",
        "the factors are {} for mean JCT and {} for makespan, with {} preemptions and {} jobs lost",
        lambda report: [
            report["jct_ratio"],
            report["makespan_ratio"],
            report["arms"]["explsched-share"]["preemptions"],
            report["jobs_lost"],
        ],
    ),
    Claim(
        "docs/simulation.md",
        "live_share_trace2.json",
        "the factors were {} for mean JCT and {} for makespan, {} jobs lost, on an idle machine; the simulator says {}",
        lambda report: [report["jct_ratio"], report["makespan_ratio"], report["jobs_lost"], report["sim_jct_ratio"]],
    ),
    Claim(
        "docs/simulation.md",
        "live_share_fresh.json",
        "gives {} for mean JCT and {} for makespan, {} jobs lost",
        lambda report: [report["jct_ratio"], report["makespan_ratio"], report["jobs_lost"]],
    ),
    Claim(
        "docs/simulation.md",
        "live_share_fresh.json",
        "says {}. It is too short in both arms, {} % for `muri-l` and {} % for ours",
        _too_short,
    ),
    Claim(
        "docs/simulation.md",
        "live_replay.json",
        "differ from live ones by at most {} % (mean JCT) and {} % (makespan); in the run alone by {} / {} % for Slurm "
        "alone and {} / {} % for srsf",
        _live_errors,
    ),
    Claim(
        "docs/simulation.md",
        "live_replay_partition.json",
        "cluster trace: {} times, makespan {} times, errors of at most {} % and {} %",
        lambda report: [
            report["jct_ratio"],
            report["makespan_ratio"],
            100 * abs(report["sim_error_jct"]),
            100 * abs(report["sim_error_makespan"]),
        ],
    ),
    Claim(
        "docs/simulation.md",
        "live_replay_philly.json",
        "mean JCT is {} times better and makespan *longer*, {} times; the simulator says the same within {} %",
        lambda report: [
            report["jct_ratio"],
            report["makespan_ratio"],
            100 * max(abs(report[f"sim_error_{figure}"]) for figure in ("jct", "makespan")),
        ],
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "* {} of the best peer's. Along our curve (`utilization` 0.6 to 1.6) it is {} to {}.",
        _missed,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "our rule has {} at {}, of which {} were in time and then slow, because long prompts of others were read "
        "beside them; now {},",
        _which_are_slow,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "the best of them at our cost has {} (Knative",
        _same_queue,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "| Azure, conversation (options were chosen on it) | {} at {} | {} |",
        _azure_at_defaults,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "`utilization` 1.2, ours has {} at {} replica-seconds (the best peer {})",
        _smooth,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "Knative has {} at {} replica-seconds, Dilu {} at {}, Ray Serve's rule {} at {}.",
        _peers_defaults,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "Knative's thirteen other sets of options at up to {} replica-seconds the best has {}, the median {}, the "
        "worst {}:",
        _peers_options,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_load.json",
        "half of the requests within {} %, 95 % within {} %",
        lambda report: [
            100 * report["parts"]["batching"]["figures"][f"batching_{name}_error"] for name in ("median", "p95")
        ],
    ),
    Claim(
        "docs/gateway-admin.md",
        "gateway_affinity.json",
        "find {} % of what can be reused ({} % when the replica with the fewest requests is taken), at {} times the "
        "wait at the 99th percentile; with room for 3,000 it is {} % at {} times",
        _affinity,
    ),
    Claim(
        "docs/gateway-admin.md",
        "gateway_load.json",
        "one of a single thread took {} to {} times as long as alone at the 99th percentile, with an HAProxy alone "
        "(first in, first out) {} to {} times",
        _fair,
    ),
    Claim(
        "docs/gateway-admin.md",
        "gateway_load.json",
        "HAProxy used {} % of a core and {} % of the requests were late, with first in, first out {} %",
        _order,
    ),
    Claim(
        "docs/gateway-operation.md",
        "gateway_load.json",
        "over ten kills at most {} s, and of {} requests to the other",
        lambda report: [
            report["parts"]["two"]["figures"][f"two_{name}"] for name in ("refused_longest_s", "other_good")
        ],
    ),
    Claim(
        "docs/simulation.md",
        "run_times.json",
        "under `srsf` is {} s with time limits (the trace has none), {} s with learnt run times and {} s with exact "
        "ones",
        lambda report: [report["mean_jct_s"][arm] for arm in ("limit", "learnt", "exact")],
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_rules.json",
        "| Mooncake, conversation | {} at {} | {} |",
        _at_defaults,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_load.json",
        "| while it waits, three have started before | {} % of {} | | | | while it waits | {} % of {} | {} % | {} % |",
        _foreseen_starts,
    ),
    Claim(
        "docs/gateway-scaling.md",
        "gateway_load.json",
        "a mean latency of {} s, simulated {} s (without batching {} s)",
        _batches,
    ),
    Claim(
        "docs/authority.md",
        "hostile_site.json",
        "Under `explsched` a liar gets of the honest one's GPU-time: {} (standard error {}) for reports that "
        "a training is nearly done, {} ({}) for reports that never change, {} ({}) for invented learning "
        "curves, {} ({}) for no reports, {} ({}) for a sweep of its own named for each job. Where nobody lies it "
        "is {} ({}), by chance. Of {} preemptions {} were in vain: the job that others made room for started within "
        "two cycles.",
        _of_liars,
    ),
    Claim(
        "docs/authority.md",
        "hostile_site.json",
        "all liars together get {} ({}), the one who names a sweep of its own for each job {} ({}) in six runs.",
        _of_one_lie_each,
    ),
)


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.sentence[:40]}")
def test_a_figure_of_a_page_is_the_stored_one(claim: Claim) -> None:
    pattern = re.escape(claim.sentence).replace(r"\{\}", _NUMBER)
    found = re.findall(pattern, text_of(claim.page))
    assert len(found) == 1, f"{claim.page} says {len(found)} times: {claim.sentence}"
    shown = found[0] if isinstance(found[0], tuple) else (found[0],)
    stored = claim.figures(json.loads((RESULTS / claim.stored).read_text()))
    assert list(shown) == [_as_shown(value, text) for value, text in zip(stored, shown, strict=True)]


def _as_shown(value: float, text: str) -> str:
    """The stored value with as many decimals as the page shows."""
    decimals = len(text.partition(".")[2])
    sign, comma = "+" if text.startswith("+") else "", "," if "," in text else ""
    return format(value, f"{sign}{comma}.{decimals}f")


def named() -> list[tuple[str, str]]:
    """(page, stored file) of every mention."""
    pages = [str(page.relative_to(ROOT)) for page in PAGES]
    return [(page, name) for page in pages for name in _STORED.findall((ROOT / page).read_text())]


def test_every_stored_result_that_a_page_names_is_there_and_compared() -> None:
    covered = {(claim.page, claim.stored) for claim in CLAIMS} | _NO_FIGURES | _IN_WORDS
    assert not [mention for mention in named() if not (RESULTS / mention[1]).is_file()]
    assert not [mention for mention in named() if mention not in covered]


def test_beside_every_stored_result_stands_the_command_that_made_it() -> None:
    without = []
    for page in PAGES:
        sections = re.split(r"^#+ ", Path(page).read_text(), flags=re.MULTILINE)
        without += [
            (page.name, name) for part in sections for name in _STORED.findall(part) if not _COMMAND.search(part)
        ]
    assert not without


def test_rounding_is_that_of_the_page() -> None:
    assert [_as_shown(0.6757, "0.676"), _as_shown(1170.8, "1171"), _as_shown(12345.6, "12,346")] == [
        "0.676", "1171", "12,346"
    ]  # fmt: skip


def test_the_policies_that_pages_call_equal_to_the_digit_give_the_published_figures() -> None:
    policies, traces = ("srtf", "srsf", "tiresias", "antman"), ("trace1", "trace1_pr", "trace2", "trace2_pr")
    for page in ("README.md", "docs/systems.md"):
        assert re.search(r"SRTF, SRSF, Tiresias(, | and )AntMan[^.]* to the digit", text_of(page))

    def figures(rows: Any) -> dict[tuple[str, str], list[float]]:
        names = ("avg_jct_s", "makespan_s", "p99_jct_s")
        return {(row["policy"], row["trace"]): [float(row[name]) for name in names] for row in rows}

    of_others = figures(json.loads((ROOT / "benchmarks" / "muri_published.json").read_text())["figures"])
    plain = [
        row
        for row in json.loads((RESULTS / "muri_parity.json").read_text())["rows"]
        if (row["variant"], row["reference"], row["jobs"]) == ("plain", "published", 0)
    ]
    for key in product(policies, traces):
        assert figures(plain)[key] == pytest.approx(of_others[key], rel=0, abs=0.5)  # published without decimals
