"""Reads progress out of what a job writes anyway: its log, JSON lines, or rows (CSV).

Bytes come in by `Reporter.feed`, from a pipe or from a `LogTail`; lines that tell a step and a value become reports.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from explsched.errors import warn
from explsched.job_options.table import METRIC, STEP_KEY, VALUE_KEY
from explsched.progress import report_values

POLL_S = 1.0
_LINE_END = re.compile(rb"[\r\n]")
_LONGEST_LINE = 1 << 16
_MAX_READ = 1 << 20
_SEARCHED = 1 << 24
"""Of each end of a file, for headers: a command does not wait until all of a large one is read."""
_MAX_WARNINGS = 5
_MOST_READS = 64  # at a time, 64 MiB: a job that writes without a pause must not hold up its own end for ever


@dataclass(frozen=True, slots=True)
class Reading:
    """What one line tells."""

    step: int
    values: Mapping[str, float]


LineReader = Callable[[bytes], Reading | None]


_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_BESIDE = b" \"',;:|()[]{}"


def log_reader(regex: str, metric: str | None = None, option: str = "--log-regex") -> LineReader:
    r"""A reader of log lines by a regular expression with a group `step`, and one named after each metric.

    A group named `value` is the value of `metric`: by default that of the job, else loss. The reader raises
    ValueError for a match that is no number; this function for an expression that can never be used, and names the
    option that it came from. Colours are left out of lines, and punctuation beside a number from what `\S+` takes.
    """
    try:
        pattern = re.compile(regex.encode())
    except re.error as error:
        raise ValueError(f"{option}: {regex!r}: {error}") from error
    if "step" not in pattern.groupindex or len(pattern.groupindex) < 2:
        raise ValueError(f"{option}: {regex!r} needs a group named step and one named value or after a metric")
    value_name = metric or default_metric()

    def read(line: bytes) -> Reading | None:
        match = pattern.search(_COLOUR.sub(b"", line))
        if match is None or match["step"] is None:
            return None
        found = {name: text.strip(_BESIDE) for name, text in match.groupdict().items() if text is not None}
        step = int(found.pop("step"))
        values = {value_name if name == "value" else name: float(text) for name, text in found.items()}
        return Reading(step, values) if values else None

    return read


def json_reader(step_key: str = "step", value_key: str | None = None, metric: str | None = None) -> LineReader:
    """A reader of JSON lines. `value_key` is the metric's name by default; objects without both keys tell nothing."""
    name = metric or value_key or default_metric()
    key = value_key or name

    def read(line: bytes) -> Reading | None:
        if not line.strip():
            return None
        record = json.loads(line)
        if not isinstance(record, dict) or record.get(step_key) is None or record.get(key) is None:
            return None
        step = record[step_key]
        return Reading(int(step) if isinstance(step, float) and step.is_integer() else step, {name: record[key]})

    return read


def row_reader(
    path: Path, step_key: str = "step", value_key: str | None = None, metric: str | None = None
) -> LineReader:
    """A reader of rows, separated by tabs in a file `.tsv`, else by commas. `path` is where a header may stand already.

    A line with the step's name is a header, also later; of those that are there already, in the first or the last 16
    MiB, the last one counts. Rows without step or value tell nothing. The reader raises ValueError for rows before any
    header, for a header without the value's name, and for a cell that is no number.
    """
    name = metric or default_metric()
    key = value_key or name
    delimiter = "\t" if path.suffix == ".tsv" else ","
    names = f"{STEP_KEY.flag} and {VALUE_KEY.flag} name them"
    columns: list[str] = []

    def cells(line: bytes) -> list[str]:
        text = line.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter), [])]

    def read(line: bytes) -> Reading | None:
        row = cells(line)
        if step_key in row:
            columns[:] = row
            if key not in row:  # it may come later: Lightning writes the file anew when a value gets its first number
                raise ValueError(f"a header without the column {key!r}, so far; {names}")
            return None
        if not line.strip():
            return None
        if not columns:
            raise ValueError(f"no header with the columns {step_key!r} and {key!r} precedes it; {names}")
        told = dict(zip(columns, row, strict=False))
        if not told.get(step_key) or not told.get(key):
            return None
        return Reading(int(float(told[step_key])), {name: float(told[key])})

    with suppress(OSError):  # which the tail tells of, as long as it lasts
        if os.path.isfile(path):  # noqa: PTH113  as in `LogTail`
            with path.open("rb") as file:
                data = file.read(_SEARCHED)
                if os.fstat(file.fileno()).st_size > 2 * _SEARCHED:
                    data = data[: data.rfind(b"\n") + 1]
                    file.seek(-_SEARCHED, os.SEEK_END)
                    file.readline(_LONGEST_LINE)  # half a line
                data += file.read(_SEARCHED)
                for line in data.splitlines(keepends=True):
                    may_be = step_key.encode() in line and len(line) <= _LONGEST_LINE and line.endswith((b"\n", b"\r"))
                    if may_be and step_key in (header := cells(line)):
                        columns[:] = header
    return read


def default_metric(environment: Mapping[str, str] = os.environ) -> str:
    """The metric named at submission (`sxbatch --metric`), else loss."""
    return environment.get(METRIC.variable) or "loss"


class Reporter:
    """Splits bytes into lines and reports what a reader finds in them. Never raises: it warns, a few times.

    Of a file that was begun anew only steps after the last reported ones count, of each metric.
    `has_reported` says whether anything was found, `lines` how many lines have been read.
    """

    def __init__(self, reader: LineReader, program: str, total_steps: int | None = None) -> None:
        self._read = reader
        self._program = program
        self._total_steps = total_steps
        self._rest = b""
        self._source = Path()
        self._rests: dict[Path, bytes] = {}
        self._last: dict[str, int] = {}
        self._passed_over: Mapping[str, int] = {}
        self._former: Iterator[bytes] = iter(())
        self._warnings = 0
        self._goes_back = False
        self.has_reported = False
        self.lines = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes. A carriage return ends a line, too: progress bars write nothing else."""
        *lines, rest = _LINE_END.split(self._rest + data)
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines:
            self._take(line)

    def turn_to(self, source: Path) -> None:
        """The next bytes are of this file. What half lines others end with is kept for their next bytes."""
        self._rests[self._source] = self._rest
        self._source, self._rest = source, self._rests.pop(source, b"")

    def settle(self) -> None:
        """All files have been turned to that are looked at together."""

    def restart(self) -> None:
        """The next bytes are the first of another file: half a line before them will not be completed."""
        self._rest = b""
        self._passed_over = self._last.copy()

    def pass_over(self, former: bytes) -> None:
        """The next lines tell nothing as long as they are these, of a former run."""
        self._former = iter(_LINE_END.split(former)[:-1])

    def close(self) -> None:
        """No more bytes will come: the last line may lack its end."""
        self._take(self._rest)
        self._rest = b""

    def take(self, reading: Reading) -> None:
        """Report what was read. Raises TypeError or ValueError for what can be no report."""
        report_values(reading.step, reading.values, self._total_steps)
        self.has_reported = True

    def warn(self, text: str) -> None:
        """Say what is wrong on standard error, but never flood a job's log with it."""
        self._warnings += 1
        if self._warnings <= _MAX_WARNINGS:
            last = " (further warnings are left out)" if self._warnings == _MAX_WARNINGS else ""
            warn(self._program, f"{text}{last}")

    def _take(self, line: bytes) -> None:
        self.lines += 1
        is_former = next(self._former, None) == line
        if not is_former:
            self._former = iter(())
        try:
            reading = self._read(line)
            if reading is not None and not is_former:
                self._take_new(reading)
        except Exception as error:  # whatever a log holds, the job goes on
            self.warn(f"no progress in {line[:200]!r}: {error}")

    def _take_new(self, reading: Reading) -> None:
        passed_over = self._passed_over
        new = {k: value for k, value in reading.values.items() if k not in passed_over or reading.step > passed_over[k]}
        if new:
            self._look_back(reading.step, new)
            self.take(Reading(reading.step, new))
            self._last |= {name: max(reading.step, self._last.get(name, 0)) for name in new}

    def _look_back(self, step: int, names: Iterable[str]) -> None:
        """Say it once when steps go back."""
        back = next((name for name in names if step < self._last.get(name, 0)), None)
        if back and not self._goes_back:
            self._goes_back = True
            self.warn(
                f"steps of {back} go back, from {self._last[back]} to {step}: within a run such reports do not count; "
                "count steps through, over all epochs"
            )


class LogTail:
    """Reads what is new in a file that may not exist yet, and may be truncated, replaced, or begun anew in place.

    A file that was begun anew may be longer at the next look than it was before: then a changed first line tells.
    What a file held when the `LogTail` was made is passed over, as it is a former run's, unless `from_start` is set;
    so are these lines (of the first MiB) in a file that takes its place and has all of them when it is first read.
    `is_at_start` says of the bytes that were read last whether they are the first of a file.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._inode, self._offset = 0, 0
        self._first_line = self._held = b""
        self.is_at_start = False
        with suppress(OSError):  # which `read` tells of, as long as it lasts
            if not from_start and os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for closed directories
                status = path.stat()
                self._inode, self._offset = status.st_ino, status.st_size
                with path.open("rb") as file:
                    held = file.read(min(status.st_size, _MAX_READ))
                    self._held = held[: held.rfind(b"\n") + 1]

    def __str__(self) -> str:
        return str(self._path)

    def read(self) -> bytes:
        """The next bytes, at most 1 MiB; empty when there are none now. Raises OSError, e.g. for a directory."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._inode, self._offset = 0, 0  # a new file may have the same inode and first line
            return b""
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "is not a regular file")
            data = os.pread(descriptor, _MAX_READ, self._offset)
            first = _first_line(os.pread(descriptor, _LONGEST_LINE, 0))  # read last: the file may change in between
            is_same = status.st_ino == self._inode and first.startswith(self._first_line)
            if not is_same or status.st_size < self._offset:
                self._inode, self._offset = status.st_ino, 0
                data = os.pread(descriptor, _MAX_READ, 0)
            self.is_at_start = self._offset == 0
            self._first_line = _first_line(data) if self.is_at_start else first
            self._offset += len(data)
            return data
        finally:
            os.close(descriptor)

    def follow(self, reporter: Reporter, ended: Callable[[], bool]) -> None:
        """Feed the reporter until `ended`, which waits for a poll interval, is true; then once more to the end."""
        while not ended():
            self.catch_up(reporter)
        self.finish(reporter)
        reporter.close()

    def catch_up(self, reporter: Reporter) -> None:
        """Feed the reporter with what there is now."""
        for _ in range(_MOST_READS):
            if not self.pass_on(reporter):
                break

    def finish(self, reporter: Reporter) -> None:
        """Feed the reporter with all that is left; nothing more will be written."""
        self.catch_up(reporter)

    def pass_on(self, reporter: Reporter) -> bool:
        """Feed the reporter with the next bytes; whether there were any."""
        try:
            data = self.read()
        except OSError as error:
            reporter.warn(f"{self._path}: {error.strerror}")
            return False
        if data and self.is_at_start:
            reporter.restart()
            if not data.startswith(self._held):  # a run from scratch, whatever it will write
                self._held = b""
            reporter.pass_over(self._held)
        reporter.feed(data)
        return bool(data)


def _first_line(data: bytes) -> bytes:
    """The first line with its end, or as much of it as there is, and at most 64 KiB."""
    return data[: data.find(b"\n", 0, _LONGEST_LINE) + 1 or _LONGEST_LINE]
