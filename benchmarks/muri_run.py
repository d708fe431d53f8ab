"""One replay under Muri's conventions in a process of its own, so that its CPU time can be measured; prints JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from explsched.errors import ExplschedError
from sched_policy.group.interleave import Ordering
from simulation import muri
from simulation.traces.formats.public import MURI
from simulation.traces.trace import ClusterShape, require_all_rows

_VARIANTS = {
    "plain": muri.MuriOptions(),
    "autopack": muri.MuriOptions(autopack=True),
    "in-order": muri.MuriOptions(grouping=muri.Grouping.IN_ORDER),
    "worst-ordering": muri.MuriOptions(ordering=Ordering.WORST),
    "three-members": muri.MuriOptions(max_members=3),
    "two-members": muri.MuriOptions(max_members=2),
    "early-shares": muri.MuriOptions(shares=muri.Shares.EARLY),
    "whole-shares": muri.MuriOptions(shares=muri.Shares.WHOLE),
    "learnt": muri.MuriOptions(durations=muri.Durations.LEARNT),
}


def main(trace: str, nodes: str, gpus_per_node: str, policy: str, variant: str) -> None:
    """Simulate and print the three published metrics. Raises `TraceError` if a row of the trace cannot be used."""
    jobs = MURI.read(Path(trace))
    require_all_rows(Path(trace), jobs.rejected)
    outcome = muri.simulate(jobs, ClusterShape(int(nodes), int(gpus_per_node)), policy, _VARIANTS[variant])
    jct_s = sorted(job.end_s - job.submit_s for job in outcome.jobs)
    print(
        f'{{"avg_jct_s": {sum(jct_s) / len(jct_s)}, "makespan_s": {max(job.end_s for job in outcome.jobs)}, '
        f'"p99_jct_s": {jct_s[int(0.99 * len(jct_s))]}, "events": {outcome.events}}}'
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ExplschedError as error:
        sys.exit(str(error))
