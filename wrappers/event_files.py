"""Reads progress out of TensorBoard's event files.

An event file is a sequence of records (TFRecord): length as uint64, masked CRC-32C of it, that many bytes, their CRC;
all little endian. The bytes are a protobuf message `Event` (tensorflow/core/util/event.proto): field 2 is the step,
field 5 a `Summary` of values, each with a tag (1) and either a simple value (2) or a tensor (8) of one float. Reading
this much takes no package; `tensorboard` itself takes a second to import.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from wrappers.follow import LogTail, Reading, Reporter, default_metric

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_LONGEST = 1 << 20
"""Longer records are pictures and histograms, which are passed over."""

_LOOKING = 0.05
"""The share of the time in which new files are looked for, at most."""
_LONGEST_S = 60.0
"""Between two looks for new files."""

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_DT_FLOAT, _DT_DOUBLE = 1, 2
_Field = tuple[int, int | bytes]


class EventReporter(Reporter):
    """Reports the scalars of one tag, by default those named as the job's metric. Never raises: it warns.

    Of several files with the tag the newest counts, from its first step on: it is a new run's, or the validation's
    beside the training's. One that has told step 0 alone does not count as long as another one has told more:
    `add_hparams` writes such files.
    """

    def __init__(
        self, tag: str | None, program: str, total_steps: int | None = None, metric: str | None = None
    ) -> None:
        super().__init__(lambda _line: None, program, total_steps)
        self._metric = metric or default_metric()
        self._tag = (tag or self._metric).encode()
        self._skip = 0
        self._skips: dict[Path, int] = {}
        self._newest = Path()
        self._read_together: dict[Path, list[Reading]] = {}
        self._only: dict[Path, Reading] = {}
        """Of files that have told no other step, the last value of step 0."""
        self._going_on: set[Path] = set()

    def turn_to(self, source: Path) -> None:
        """The next bytes are of this file."""
        self._skips[self._source] = self._skip
        super().turn_to(source)
        self._skip = self._skips.pop(source, 0)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._rest += data
        for record in self._records():
            try:
                for step, value in scalars(record, self._tag):
                    self._note(Reading(step, {self._metric: value}))
            except (IndexError, struct.error, ValueError) as error:
                self.warn(f"a record of an event file cannot be read: {error}")
        if self._source == Path():  # there is one file only
            self.settle()

    def settle(self) -> None:
        """All files have been turned to: report the newest one's steps, and what those beside it tell of steps before.

        In other directories are the values of something else, such as of the training beside the validation.
        """
        files = sorted((file for file in self._read_together if _age(file) >= _age(self._newest)), key=_age)
        counting: list[Reading] = []
        for file in reversed(files):
            if not counting:
                counting = self._read_together[file]
            elif file.parent == files[-1].parent:
                first = counting[0].step
                counting = [one for one in self._read_together[file] if one.step < first] + counting
        self._newest = files[-1] if files else self._newest
        self._read_together.clear()
        for reading in counting:
            try:
                self.take(reading)
            except ValueError as error:
                self.warn(f"a record of an event file cannot be reported: {error}")

    def _note(self, reading: Reading) -> None:
        if reading.step == 0 and self._source not in self._going_on:
            self._only[self._source] = reading
            return
        self._going_on.add(self._source)
        first = self._only.pop(self._source, None)
        self._read_together.setdefault(self._source, []).extend(filter(None, (first, reading)))

    def restart(self) -> None:
        """The next bytes are the first of another file."""
        super().restart()
        self._skip = 0
        self._only.pop(self._source, None)
        self._going_on.discard(self._source)

    def close(self) -> None:
        """No more bytes will come: half a record tells nothing, and step 0 was the only one if no other has come."""
        if self._only and not self.has_reported:
            self.take(self._only[max(self._only, key=_age)])

    def _records(self) -> list[bytes]:
        found = []
        data, at = self._rest, 0  # cut once: each record's own rest would be another copy of all
        while True:
            passed = min(self._skip, len(data) - at)
            at, self._skip = at + passed, self._skip - passed
            if len(data) - at < _HEADER.size or self._skip:
                break
            length, crc = _HEADER.unpack_from(data, at)
            if crc != masked_crc32c(data[at : at + 8]):
                self.warn("no event file: a length does not have its checksum")
                at = len(data)
                break
            whole = _HEADER.size + length + _FOOTER_BYTES
            if length > _LONGEST:
                self._skip = whole
            elif len(data) - at < whole:
                break
            else:
                found.append(data[at + _HEADER.size : at + _HEADER.size + length])
                at += whole
        self._rest = data[at:]
        return found


class EventTail(LogTail):
    """The event files of a directory and those below it. Files that were there before are a former run's.

    Several may grow side by side: PyTorch's `add_scalars` begins one for each tag, Keras one for the validation. Where
    it takes long to look for new ones, as in a large tree on a file server, that is done seldom.
    """

    def __init__(self, directory: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(directory)
        self._clock_s = clock_s
        self._former = self._files()
        self._next_look_s = 0.0
        self._tails: dict[Path, LogTail] = {}

    def pass_on(self, reporter: Reporter) -> bool:
        """Feed the reporter with the next bytes of each file; whether there were any."""
        if self._feed(reporter, self._tails):
            return True
        if self._clock_s() < self._next_look_s:
            return False
        new = {path: LogTail(path, from_start=True) for path in self._files() - self._former - self._tails.keys()}
        self._tails |= new
        return self._feed(reporter, new)

    def finish(self, reporter: Reporter) -> None:
        """To the end, also of a file that was begun since the last look for new ones."""
        self._next_look_s = 0.0
        super().finish(reporter)

    def _feed(self, reporter: Reporter, tails: Mapping[Path, LogTail]) -> bool:
        fed = []
        for path in tails:
            reporter.turn_to(path)
            fed.append(tails[path].pass_on(reporter))
        reporter.settle()
        return any(fed)

    def _files(self) -> set[Path]:
        """Those that can be seen now: directories come and go, as of checkpoints."""
        began_s = self._clock_s()
        found = {Path(at, name) for at, _, names in os.walk(self._path) for name in names if "tfevents" in name}
        ended_s = self._clock_s()
        self._next_look_s = ended_s + min((ended_s - began_s) / _LOOKING, _LONGEST_S)
        return found


def _age(path: Path) -> tuple[str, str]:
    """Sorts event files from old to new: their names have the time at which they were begun."""
    return path.name, str(path)


def scalars(record: bytes, tag: bytes) -> Iterator[tuple[int, float]]:
    """(step, value) of each value of that tag. Raises ValueError, IndexError or struct.error for what is no event."""
    event = list(_fields(record))
    step = next((value for number, value in event if number == 2 and isinstance(value, int)), 0)
    for number, summary in event:
        if number != 5 or not isinstance(summary, bytes):
            continue
        for part, value in _fields(summary):
            if part == 1 and isinstance(value, bytes):
                found = _value(dict(_fields(value)), tag)
                if found is not None:
                    yield step, found


def masked_crc32c(data: bytes) -> int:
    """CRC-32C as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _value(fields: dict[int, int | bytes], tag: bytes) -> float | None:
    if fields.get(1) != tag:
        return None
    simple, tensor = fields.get(2), fields.get(8)
    if isinstance(simple, bytes):
        (number,) = struct.unpack("<f", simple)
        return float(number)
    return _tensor(dict(_fields(tensor))) if isinstance(tensor, bytes) else None


def _tensor(fields: dict[int, int | bytes]) -> float | None:
    """The number of a tensor that holds one: as raw bytes (4), or as packed floats (5) or doubles (6)."""
    code = "<f" if fields.get(1) == _DT_FLOAT else "<d" if fields.get(1) == _DT_DOUBLE else ""
    raw = fields.get(4) or fields.get(5 if code == "<f" else 6)
    if not code or not isinstance(raw, bytes) or len(raw) != struct.calcsize(code):
        return None
    (number,) = struct.unpack(code, raw)
    return float(number)


def _fields(message: bytes) -> Iterator[_Field]:
    """(number, value) of each field of a protobuf message; fixed and length-delimited values as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind not in (_I64, _LEN, _I32):
            raise ValueError(f"wire type {kind}")
        length, at = _varint(message, at) if kind == _LEN else (8 if kind == _I64 else 4, at)
        if at + length > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
