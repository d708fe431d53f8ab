"""Counts kernels from the interposer's trace (EXPLSCHED_TRACE): one line per caught launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kernel_intercept.profile.model import Dim3, KernelKey, ProfileError, name_hash

_WORDS = 7  # launch ENTRY KERNEL GRID BLOCK SHARED granted|pass


class TraceCounter:
    """Launches so far by kernel, on GPUs of one compute capability. Each call reads what was appended since.

    A graph counts as a kernel of its own, whose time nobody knows: windows with one are not used.
    """

    def __init__(self, path: Path, compute_capability: int) -> None:
        self._path, self._capability = path, compute_capability
        self._at = 0
        self._rest = b""
        self._counts: Counter[KernelKey] = Counter()
        self._keys: dict[tuple[str, ...], KernelKey] = {}

    def __call__(self) -> Mapping[KernelKey, int]:
        """The counts now. Raises `ProfileError` if the trace cannot be read or has a line of another form."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read()
        except OSError as error:
            raise ProfileError(f"{self._path}: {error.strerror}") from error
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._counts[self._key(line.decode(errors="replace"))] += 1
        return dict(self._counts)

    def _key(self, line: str) -> KernelKey:
        words = line.split(" ")
        if len(words) != _WORDS or words[0] != "launch":
            raise ProfileError(f"{self._path}: found {line[:80]!r}, accepted are lines of EXPLSCHED_TRACE")
        what = tuple(words[2:6])
        if what not in self._keys:
            try:
                grid, block = (Dim3(*(int(extent) for extent in word.split(","))) for word in words[3:5])
                key = KernelKey(name_hash(words[2]), grid, block, int(words[5]), self._capability)
            except (TypeError, ValueError):
                raise ProfileError(
                    f"{self._path}: found {line[:80]!r}, accepted are lines of EXPLSCHED_TRACE"
                ) from None
            self._keys[what] = key
        return self._keys[what]
