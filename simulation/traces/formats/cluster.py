"""Reads the shape of a cluster: a shape such as `8x8`, our own YAML or JSON, or a cluster file of Muri."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from simulation.traces.formats.table import collect, open_table, shown, whole
from simulation.traces.trace import ClusterShape, TraceError

ACCEPTED = (
    "accepted: NODESxGPUS such as 8x8, a YAML or JSON file with nodes and gpus_per_node, "
    "or a cluster file of the Muri simulator"
)
_MOST_NODES = 1_000_000
_MOST_GPUS_PER_NODE = 1024
_KEYS = ("nodes", "gpus_per_node")
_MURI = ("num_switch", "num_node_p_switch", "num_gpu_p_node")
_MOST_BYTES = 1 << 12


def read_cluster(text: str) -> ClusterShape:
    """The cluster of a shape such as `8x8`, or of a file. Raises `TraceError`.

    Muri's file is CSV with one row: num_switch x num_node_p_switch nodes of num_gpu_p_node GPUs. Its CPUs and memory
    are not used.
    """
    shape = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text.strip())
    if shape:
        return _shape(f"cluster {text.strip()}", int(shape[1]), int(shape[2]))
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _read_own(path)
    if not _is_there(path):
        raise TraceError(f"cluster {shown(text)}: neither a shape nor a file; {ACCEPTED}")
    return _read_muri(path)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long for a file, or with a NUL byte
        return False


def _shape(name: str, nodes: int, gpus_per_node: int) -> ClusterShape:
    for key, value, most in (("nodes", nodes, _MOST_NODES), ("gpus_per_node", gpus_per_node, _MOST_GPUS_PER_NODE)):
        if not 1 <= value <= most:
            raise TraceError(f"{name}: {key} is not in the accepted range from 1 to {most:,}")
    return ClusterShape(nodes, gpus_per_node)


def _read_own(path: Path) -> ClusterShape:
    import yaml  # late: most clusters are given as a shape

    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise TraceError(f"{path}: longer than {_MOST_BYTES:,} bytes; {ACCEPTED}")
        found = yaml.safe_load(text)  # JSON is YAML
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; {ACCEPTED}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not YAML: {' '.join(str(error).split())}; {ACCEPTED}") from error
    if not isinstance(found, dict):
        raise TraceError(f"{path}: found {type(found).__name__}, accepted: the keys {' and '.join(_KEYS)}")
    for key in found:
        if key not in _KEYS:
            near = get_close_matches(str(key), _KEYS, n=1) or [" and ".join(_KEYS)]
            raise TraceError(f"{path}: unknown key {key}, the nearest known is {near[0]}")
    for key in _KEYS:
        if type(found.get(key)) is not int:  # True is an int to isinstance
            what = type(found[key]).__name__ if key in found else "nothing"
            raise TraceError(f"{path}: {key}: found {what}, accepted: whole numbers from 1")
    return _shape(str(path), found["nodes"], found["gpus_per_node"])


def _read_muri(path: Path) -> ClusterShape:
    with open_table(path) as table:
        lacks = [column for column in _MURI if table.index(column) is None]
        if lacks:
            raise TraceError(f"{table.where}: the header lacks {', '.join(lacks)}; {ACCEPTED}")
        switches, nodes, gpus = (table.position(column) for column in _MURI)

        def parse(_line: int, row: list[str]) -> tuple[int, int]:
            per_switch = whole(_MURI[1], row[nodes], 1, _MOST_NODES)
            return whole(_MURI[0], row[switches], 1, _MOST_NODES) * per_switch, whole(
                _MURI[2], row[gpus], 1, _MOST_GPUS_PER_NODE
            )

        rows, rejected = collect(table, parse)
    if rejected:
        raise TraceError(f"{path}: line {rejected[0].line}: {rejected[0].reason}")
    if len(rows) != 1:
        raise TraceError(f"{path}: found {len(rows)} rows, accepted: one")
    return _shape(str(path), *rows[0])
