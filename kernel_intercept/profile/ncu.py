"""Runs `ncu`, and reads what `ncu --csv` prints: the raw page (a column per metric) or the details page (a line each).

Columns, metrics and units as NVIDIA Nsight Compute's CLI manual and its exports name them. Lines that other programs
printed in between are passed over.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_intercept.profile.store import Dim3, Fault, ProfileError

_KERNEL = "Kernel Name"
_TIMES_NS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_SIZES = {"byte": 1, "bytes": 1, "kbyte": 1_000, "mbyte": 1_000_000, "": 1}  # decimal prefixes: 4.096 Kbyte = 4096
_SHARES = {"%": 1.0}
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max", "Duration")
_COMPUTE = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
    "Compute (SM) [%]",
    "SM [%]",
)
_BANDWIDTH = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
)
_SHARED = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_CC_MAJOR = "device__attribute_compute_capability_major"
_CC_MINOR = "device__attribute_compute_capability_minor"
_METRICS = (_DURATION[0], _COMPUTE[0], _BANDWIDTH[0], _SHARED[0])  # the last one takes no pass of its own


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch, from the line given. Shares in percent of the peak; the name as exported.

    `shared_error` is half a unit of the last printed place of `shared_bytes`: 0 unless the export scaled its units.
    """

    line: int
    name: str
    grid: Dim3
    block: Dim3
    shared_bytes: float
    shared_error: float
    compute_capability: int
    gpu_ns: float
    compute_percent: float
    bandwidth_percent: float


@dataclass(frozen=True, slots=True)
class Export:
    """The launches of an export, and the ones left out."""

    launches: tuple[Launch, ...]
    faults: tuple[Fault, ...]


def measure(command: Sequence[str], launches: int, environment: Mapping[str, str]) -> tuple[Export, int]:
    """Run a command under `ncu`; what its first `launches` kernel launches use, and its exit status.

    ncu runs each of these launches a few times, alone, so the command is slow until then. It keeps its standard
    streams. Kernels are not gated meanwhile. Raises `ProfileError` if ncu is missing or measures nothing.
    """
    program = shutil.which("ncu", path=environment.get("PATH"))
    if program is None:
        raise ProfileError(
            "ncu is not on PATH: NVIDIA Nsight Compute comes with the CUDA toolkit (module load cuda, or "
            "/usr/local/cuda/bin) and as a package of its own, nsight-compute"
        )
    with tempfile.TemporaryDirectory(prefix="explsched-ncu-") as directory:
        log = Path(directory) / "ncu.csv"
        options = ("--csv", "--page", "raw", "--print-kernel-base", "mangled", "--print-units", "base")
        limits = ("--metrics", ",".join(_METRICS), "--launch-count", str(launches), "--target-processes", "all")
        argv = [program, *options, *limits, "--log-file", str(log), *command]
        try:
            status = subprocess.run(argv, env={**environment, "EXPLSCHED_INTERCEPT": "off"}, check=False).returncode
        except OSError as error:
            raise ProfileError(f"{program}: {error.strerror}") from error
        text = log.read_text(errors="replace") if log.exists() else ""
    try:
        return parse(text.splitlines(keepends=True)), status
    except ProfileError as error:
        words = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
        said = " ".join(words) or "no kernel was launched"
        raise ProfileError(f"{program} ends with status {status} and has measured nothing: {said}") from error


@dataclass(slots=True)
class _Record:
    """What is known of a launch so far: its identity columns, and metric -> (value, unit) as printed."""

    line: int
    columns: dict[str, str]
    metrics: dict[str, tuple[str, str]]


def parse(lines: Iterable[str]) -> Export:
    """Read an export. Raises `ProfileError` if it has no table, or one of a page that lacks what is needed."""
    launches = []
    faults: list[Fault] = []
    for record in _records(lines, faults):
        try:
            launches.append(_launch(record))
        except ProfileError as error:
            faults.append(Fault(record.line, str(error)))
    return Export(tuple(launches), tuple(faults))


def _records(lines: Iterable[str], faults: list[Fault]) -> Iterator[_Record]:
    header: list[str] = []
    units: list[str] = []
    details: dict[tuple[str, str], _Record] = {}
    # ncu quotes every cell. What does not begin so came from the program or is a message (==PROF==).
    reader = csv.reader(line if line.startswith('"') else "\n" for line in lines)
    for cells in reader:
        if _KERNEL in cells:
            yield from details.values()  # another table follows: its launches are numbered from 0 again
            details = {}
            header, units = cells, []
            if "Metric Name" in header and "Metric Value" not in header:
                raise ProfileError(
                    f"line {reader.line_num}: this is a summary over launches; accepted are `ncu --csv --page raw` "
                    "and `--page details` without --print-summary"
                )
        elif not header or not cells:
            continue
        elif len(cells) != len(header):
            faults.append(Fault(reader.line_num, f"found {len(cells)} columns, the header has {len(header)}"))
        elif "Metric Name" in header:
            row = dict(zip(header, cells, strict=True))
            identity = (row.get("Process ID", ""), row.get("ID", ""))
            record = details.setdefault(identity, _Record(reader.line_num, row, {}))
            if row["Metric Name"]:  # empty in the lines of rules
                record.metrics.setdefault(row["Metric Name"], (row["Metric Value"], row.get("Metric Unit", "")))
                if row.get("Metric Unit") == "%":  # one label is used for a share and for bytes per second
                    record.metrics[row["Metric Name"]] = (row["Metric Value"], "%")
        elif not cells[header.index(_KERNEL)]:
            units = cells
        else:
            measured = zip(header, cells, units or [""] * len(header), strict=True)
            metrics = {name: (value, unit) for name, value, unit in measured}
            yield _Record(reader.line_num, dict(zip(header, cells, strict=True)), metrics)
    if not header:
        raise ProfileError(f"no table with a column {_KERNEL!r}; accepted is what `ncu --csv` prints")
    yield from details.values()


def _launch(record: _Record) -> Launch:
    metrics = record.metrics
    shared, shared_error = _measure(metrics, _SHARED, _SIZES)
    return Launch(
        record.line,
        record.columns[_KERNEL],
        _extents(record, "Grid Size", "launch__grid_dim_"),
        _extents(record, "Block Size", "launch__block_dim_"),
        shared,
        shared_error,
        _capability(record),
        _measure(metrics, _DURATION, _TIMES_NS)[0],
        _measure(metrics, _COMPUTE, _SHARES)[0],
        _measure(metrics, _BANDWIDTH, _SHARES)[0],
    )


def _measure(
    metrics: Mapping[str, tuple[str, str]], names: tuple[str, ...], scales: Mapping[str, float]
) -> tuple[float, float]:
    """The first of the named metrics that was exported, in base units, and its rounding error."""
    for name in names:
        if name not in metrics:
            continue
        text, unit = metrics[name]
        number = text.replace(",", "")  # thousands
        base = unit.split("/")[0].lower()
        if base in scales and re.fullmatch(r"\d+(?:\.\d*)?", number):
            places = len(number.partition(".")[2])
            scale = scales[base]
            return float(number) * scale, 0.0 if scale == 1 else 0.5 * scale / 10**places
        raise ProfileError(
            f"{name}: found {text!r} in {unit!r}, accepted are numbers in {', '.join(filter(None, scales))}"
        )
    raise ProfileError(f"metric {names[0]} is missing; export with `--set full`, or name it in --metrics")


def _extents(record: _Record, column: str, metric: str) -> Dim3:
    numbers = re.findall(r"\d+", record.columns.get(column, ""))
    if len(numbers) != 3:
        numbers = [record.metrics.get(f"{metric}{axis}", ("", ""))[0].replace(",", "") for axis in "xyz"]
    if not all(number.isdecimal() for number in numbers):
        raise ProfileError(f"{column}: found {record.columns.get(column, '')!r}, accepted is (x, y, z)")
    x, y, z = (int(number) for number in numbers)
    return Dim3(x, y, z)


def _capability(record: _Record) -> int:
    text = record.columns.get("CC", "")
    if not text and _CC_MAJOR in record.metrics:
        text = f"{record.metrics[_CC_MAJOR][0]}.{record.metrics.get(_CC_MINOR, ('0', ''))[0]}"
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise ProfileError(f"column CC: found {text!r}, accepted is a compute capability such as 9.0")
    major, minor = text.split(".")
    return 10 * int(major) + int(minor)
