import time, cProfile, pstats
from benchmarks.policy_pass import snapshot, as_new
from sched_policy import catalog
from sched_policy.utility import estimate

s = snapshot(10000, 2000)
for name in ("explsched", "slaq"):
    pol = catalog.build(name)
    for _ in range(2):
        f = as_new(s)
        a, b = time.process_time(), time.perf_counter()
        pol.plan(f)
        print(name, "cold plan cpu", round(time.process_time() - a, 3), "wall", round(time.perf_counter() - b, 3))
        a = time.process_time()
        pol.plan(f)
        print("  warm cpu", round(time.process_time() - a, 3))
f = as_new(s)
a = time.process_time()
estimate(f.jobs, 600.0)
print("estimate cold", time.process_time() - a)
f = as_new(s)
pr = cProfile.Profile()
pr.enable()
catalog.build("explsched").plan(f)
pr.disable()
pstats.Stats(pr).sort_stats("tottime").print_stats(22)
