"""Exports of Nsight Compute, and which kernels their rows are."""

import shutil
from collections.abc import Sequence

import pytest

from kernel_intercept.profile import ncu
from kernel_intercept.profile.match import base_name, comparable, demangled, outline, profiles_of
from kernel_intercept.profile.store import KernelProfile, ProfileError, Source
from tests.kernel_intercept.profiles import FILL, FILL_NVIDIA, key, profile

RAW_HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",'
    '"launch__shared_mem_per_block_dynamic","sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
)
RAW_UNITS = '"","","","","","","","","","","","%","us","Kbyte/block","%"\n'


def raw(*rows: tuple[str, str, str, str, str]) -> list[str]:
    """A raw page; a row is name, DRAM %, duration in us, dynamic shared memory in Kbyte, SM %."""
    lines = [
        f'"{number}","7","python","host","{name}","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0","{dram}","{time}",'
        f'"{shared}","{sm}"\n'
        for number, (name, dram, time, shared, sm) in enumerate(rows)
    ]
    return ["==PROF== Connected to process 7\n", "step 1, loss 0.5\n", RAW_HEADER, RAW_UNITS, *lines]


def imported(lines: Sequence[str], *known: KernelProfile) -> tuple[list[KernelProfile], list[str]]:
    profiles, faults = profiles_of(ncu.parse(lines), known)
    return profiles, [str(fault) for fault in faults]


def test_the_raw_page() -> None:
    lines = raw((FILL, "40.04", "5.12", "0", "12.5"), (FILL, "41.96", "1,005.12", "0", "13.5"))
    [found], faults = imported(lines)
    assert faults == []
    assert found == profile(samples=0, gpu_ns=505_120, compute=130, bandwidth=410, source=Source.NCU)


def details(*metrics: tuple[str, str, str]) -> list[str]:
    header = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
        '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"\n'
    )
    start = '"0","7","python","host","triton_poi_0","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0"'
    rule = f'{start},"SpeedOfLight","","","","Bottleneck"\n'
    return [header, *(f'{start},"S","{name}","{unit}","{value}",""\n' for name, unit, value in metrics), rule]


DETAILS = (
    ("DRAM Throughput", "Gbyte/s", "1.23"),  # the label has two meanings
    ("DRAM Throughput", "%", "40"),
    ("Duration", "ns", "2,570"),
    ("Compute (SM) Throughput", "%", "100.3"),
    ("Dynamic Shared Memory Per Block", "byte/block", "128"),
)


@pytest.mark.parametrize("order", [1, -1])
def test_the_details_page(order: int) -> None:
    [found], faults = imported(details(*DETAILS[::order]))
    assert faults == []
    expected = profile("triton_poi_0", shared_bytes=128, samples=0, gpu_ns=2570, compute=1000, bandwidth=400)
    assert found == KernelProfile(expected.key, 0, 2570, 1000, 400, Source.NCU, "triton_poi_0")


def test_two_tables_in_one_file_are_two_runs() -> None:
    [found], faults = imported([*details(*DETAILS), *details(*DETAILS[1:2], ("Duration", "us", "4.57"), *DETAILS[3:])])
    assert faults == []
    assert found.gpu_ns == round((2570 + 4570) / 2)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (details(*DETAILS[:4]), "line 2: metric launch__shared_mem_per_block_dynamic is missing; export with"),
        (details(("Duration", "cycle", "3"), *DETAILS), "line 2: Duration: found '3' in 'cycle', accepted are numbers"),
        (raw((FILL, "n/a", "5", "0", "1")), "line 5: dram__throughput.avg.pct_of_peak_sustained_elapsed: found 'n/a'"),
        ([*raw(), '"1","2"\n'], "line 5: found 2 columns, the header has 15"),
        ([line.replace('"9.0"', '""') for line in raw((FILL, "1", "5", "0", "1"))], "line 5: column CC: found ''"),
        ([line.replace("(64, 1, 1)", "64") for line in raw((FILL, "1", "5", "0", "1"))], "line 5: Grid Size: found"),
    ],
)
def test_a_row_that_lacks_something_is_reported_and_left_out(lines: list[str], reason: str) -> None:
    profiles, faults = imported(lines)
    assert profiles == []
    assert len(faults) == 1
    assert faults[0].startswith(reason)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["step 1\n"], "no table with a column 'Kernel Name'"),
        (['"Kernel Name","Invocations","Metric Name","Metric Unit","Average"\n'], "line 1: this is a summary"),
    ],
)
def test_what_is_no_export_is_refused(lines: list[str], reason: str) -> None:
    with pytest.raises(ProfileError, match=reason):
        ncu.parse(lines)


def test_a_readable_name_is_found_among_the_known_mangled_ones() -> None:
    assert imported(raw((FILL_NVIDIA, "40", "5", "0", "30")))[1][0].startswith("line 5: 'void at::native::vectorized")
    [found], faults = imported(raw((FILL_NVIDIA, "40", "5", "0", "30")), profile(FILL))
    assert (faults, found.key, found.name) == ([], key(FILL), FILL)
    [found], _ = imported(raw(("vectorized_elementwise_kernel", "40", "5", "0", "30")), profile(FILL))
    assert found.key == key(FILL)


def test_a_name_that_means_several_kernels_is_reported() -> None:
    other = FILL.replace("ILi4E", "ILi2E")
    profiles, faults = imported(raw(("vectorized_elementwise_kernel", "4", "5", "0", "3")), profile(), profile(other))
    assert profiles == []
    assert "means 2 known kernels; export with `--print-kernel-base mangled`" in faults[0]


def test_rounded_shared_memory_is_the_known_size_or_the_likely_one() -> None:
    lines = raw(("k", "4", "5", "16.38", "3"))
    assert imported(lines)[0][0].key.shared_bytes == 16_384
    assert imported(lines, profile("k", shared_bytes=16_379))[0][0].key.shared_bytes == 16_379
    assert imported(raw(("k", "4", "5", "16.382", "3")))[0][0].key.shared_bytes == 16_382


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f<(bool)1>(T1 *)", "void f<true>(float*)"),
        ("void <unnamed>::g<float>(T1)", "void (anonymous namespace)::g<float>(float)"),
        ("void h<std::array<char *, (unsigned long)2>>(T1)", "void h<std::array<char*, 2ul> >(int)"),
        ("plain(int, float *)", "plain(int, float*)"),
        ("void a::b<int (*)(float)>::c(int)", "a::b<int (*)(float)>::c(int)"),
    ],
)
def test_two_demanglers_compare_equal(one: str, other: str) -> None:
    assert comparable(one) == comparable(other)


def test_different_kernels_do_not_compare_equal() -> None:
    assert comparable("void f<(int)4>(T1)") != comparable("void f<(int)8>(T1)")
    assert comparable("void a::f<u8>(T1)") != comparable("void a::f<u>(T1)")


def test_names_are_readable_with_and_without_binutils(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [FILL, "triton_poi_0", "_Znonsense", "_ZN2at6nativ"]
    with_tool = demangled(names)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert demangled(names) == with_tool
    assert base_name(comparable(with_tool[FILL])) == "vectorized_elementwise_kernel"
    assert with_tool["triton_poi_0"] == "triton_poi_0"


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        (FILL[:60], "at::native::vectorized_elementwise_kernel<...>"),
        ("_Z4axpyPfS_f", "axpy"),
        ("_Z4axpyIfEvPT_", "axpy<...>"),
        ("_ZN12_GLOBAL__N_13addEPf", "(anonymous namespace)::add"),
        ("triton_poi_0", "triton_poi_0"),
        ("_Z", "_Z"),
    ],
)
def test_the_outline_of_a_cut_name(mangled: str, expected: str) -> None:
    assert outline(mangled) == expected
