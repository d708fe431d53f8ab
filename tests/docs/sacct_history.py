"""What sacct prints for the jobs of a synthetic month, by the command that docs/simulation.md shows."""

from __future__ import annotations

import random

_HEAD = "JobID|JobIDRaw|User|Partition|Submit|Eligible|Start|End|ElapsedRaw|State|TimelimitRaw|AllocTRES|ReqTRES"


def history(jobs: int, seed: int) -> str:
    """Lines with bars between the fields; times are Unix times."""
    chance = random.Random(seed)
    lines, now_s = [_HEAD], 1_767_225_600
    for job in range(1, jobs + 1):
        now_s += int(chance.expovariate(1 / 600))
        start_s = now_s + int(chance.expovariate(1 / 300))
        run_s = 60 + int(chance.lognormvariate(7, 1.5))
        gpus = chance.choice((1, 1, 1, 2, 4, 8))
        tres = f"billing={gpus},cpu={gpus},gres/gpu={gpus},mem={gpus}G,node=1"
        times = (now_s, now_s, start_s, start_s + run_s, run_s)
        fields = (job, job, f"u{job % 7}", "gpu", *times, "COMPLETED", max(1, 2 * run_s // 60), tres, tres)
        lines.append("|".join(map(str, fields)))
    return "\n".join(lines) + "\n"
