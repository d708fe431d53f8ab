"""Shares from windows of device counters, against mixes whose shares are known."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_intercept.profile.refine import TraceCounter, Utilisation, Window, open_gpm, record, refined
from kernel_intercept.profile.store import Dim3, KernelKey, ProfileError, Source, name_hash
from tests.kernel_intercept.profiles import key, profile

GEMM = profile("gemm", gpu_ns=20_000, compute=1000, bandwidth=1000)
COPY = profile("copy", gpu_ns=50_000, compute=1000, bandwidth=1000)
NORM = profile("norm", gpu_ns=10_000, compute=1000, bandwidth=1000)
TRUE = {GEMM.key: (0.9, 0.2), COPY.key: (0.1, 0.85), NORM.key: (0.3, 0.5)}
WINDOW_NS = 100_000_000


def window(counts: Mapping[KernelKey, int], noise: tuple[float, float] = (0.0, 0.0)) -> Window:
    times = {p.key: p.gpu_ns for p in (GEMM, COPY, NORM)}
    used = [
        sum(count * times[k] / WINDOW_NS * TRUE[k][which] for k, count in counts.items()) + noise[which]
        for which in (0, 1)
    ]
    return Window(WINDOW_NS, counts, used[0], used[1])


def mixes(number: int, noise: float) -> list[Window]:
    random = np.random.default_rng(3)
    drawn = random.integers(0, [1500, 600, 3000], size=(number, 3))
    errors = random.normal(0, noise, size=(number, 2))
    return [
        window({GEMM.key: int(a), COPY.key: int(b), NORM.key: int(c)}, (float(e[0]), float(e[1])))
        for (a, b, c), e in zip(drawn, errors, strict=True)
    ]


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 1), (0.01, 40)])
def test_the_shares_of_a_known_mix_are_found(noise: float, tolerance: int) -> None:
    found = {p.key: p for p in refined(mixes(80, noise), [GEMM, COPY, NORM])}
    assert set(found) == set(TRUE)
    for name, (compute, bandwidth) in TRUE.items():
        assert found[name].source is Source.NVML
        assert abs(found[name].compute_permille - 1000 * compute) <= tolerance
        assert abs(found[name].bandwidth_permille - 1000 * bandwidth) <= tolerance


def test_kernels_that_always_run_together_are_left_out() -> None:
    windows = [window({GEMM.key: n, COPY.key: 2 * n, NORM.key: 100 + (37 * n) % 90}) for n in range(10, 60)]
    assert [p.key for p in refined(windows, [GEMM, COPY, NORM])] == [NORM.key]


def test_too_much_noise_leaves_all_out() -> None:
    assert refined(mixes(12, 0.5), [GEMM, COPY, NORM]) == []


def test_windows_that_cannot_be_explained_are_not_used() -> None:
    unknown = replace(window({GEMM.key: 100}), launches={GEMM.key: 100, key("other"): 5}, compute=0.9)
    saturated = replace(window({GEMM.key: 4000}), compute=1.0, bandwidth=1.0)
    with_both = refined([*mixes(80, 0.0), unknown, saturated], [GEMM, COPY, NORM])
    assert with_both == refined(mixes(80, 0.0), [GEMM, COPY, NORM])
    assert refined([unknown] * 9, [GEMM]) == []
    assert refined([], [GEMM]) == []


class Recorded:
    """A recorded device: each call gives the next pair of counters."""

    def __init__(self, *used: Utilisation) -> None:
        self.used = list(used)

    def since_last(self) -> Utilisation:
        return self.used.pop(0)


def test_windows_pair_counters_with_what_ran_between_them() -> None:
    source = Recorded(Utilisation(0.9, 0.9), Utilisation(0.5, 0.25), Utilisation(0.25, 0.125))
    counts = iter([{GEMM.key: 7}, {GEMM.key: 10, COPY.key: 4}, {GEMM.key: 10, COPY.key: 6}])
    clock = iter([1_000, 2_000, 5_000])
    windows = record(source, lambda: next(counts), lambda: next(clock), lambda: None, 2)
    assert windows == [
        Window(1_000, {GEMM.key: 3, COPY.key: 4}, 0.5, 0.25),
        Window(3_000, {COPY.key: 2}, 0.25, 0.125),
    ]


def test_a_gpu_that_is_not_there_is_named() -> None:
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    with pytest.raises(ProfileError, match=f"NVML cannot be used|{uuid}"), open_gpm(uuid):
        pass


def test_a_trace_is_counted_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    line = "launch cuLaunchKernel gemm 64,1,1 256,1,1 0 granted\n"
    path.write_text(line * 2 + "launch cuGraphLaunch graph 1,1,1 1,1,1 0 pass\n" + line[:20])
    counter = TraceCounter(path, 90)
    graph = KernelKey(name_hash("graph"), Dim3(1, 1, 1), Dim3(1, 1, 1), 0, 90)
    assert counter() == {GEMM.key: 2, graph: 1}
    with path.open("a") as stream:
        stream.write(line[20:] + line.replace("gemm", "copy"))
    assert counter() == {GEMM.key: 3, COPY.key: 1, graph: 1}
    assert refined([replace(window({GEMM.key: n}), launches={GEMM.key: n, graph: 1}) for n in range(9)], [GEMM]) == []


@pytest.mark.parametrize("line", ["step 1", "launch a b c d e f", "launch cuLaunchKernel k 1,1 1,1,1 0 pass"])
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace"
    path.write_text(line + "\n")
    with pytest.raises(ProfileError, match=f"{path}: found '{line}', accepted are lines of EXPLSCHED_TRACE"):
        TraceCounter(path, 90)()
    with pytest.raises(ProfileError, match="No such file"):
        TraceCounter(tmp_path / "none", 90)()
