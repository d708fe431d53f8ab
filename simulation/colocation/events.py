"""Instance events, starts and deletes, and files of them: one event a line, in order of time.

    {"Time": 12, "Action": "start", "Instance": {"service_name": "bert", "type": "inference", "gpu_num": 1,
     "sm_requests": 0.1, "sm_limits": 0.2, "memory": [5]}}

`Time` is in seconds, or all of them are dates (`2024-06-19 15:46:09`), counted from the first. Shares are fractions of
a GPU, `memory` is in GiB with one entry per GPU (a single number stands for one GPU), `Action` is start or delete,
`type` is inference, llm-inference or training. An `Instance` may have an `instance_id`; a delete without one ends the
newest instance of its service, as Dilu's scaler does. Lines in Python's notation for the same are read as well, because
Dilu's authors publish theirs so, with dates. Blank lines are skipped.

`generate` makes events with the distributions of Dilu's large-scale simulation (ASPLOS 2025).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from explsched.atomic_file import output
from explsched.errors import ExplschedError
from simulation.colocation.instance import Instance, InstanceKind
from simulation.traces.formats.table import RowError, date_time_s, open_lines
from simulation.traces.trace import Rejected, TraceError


class Action(StrEnum):
    """What happens to an instance."""

    START = "start"
    DELETE = "delete"


class InstanceEvent(Struct, frozen=True):
    """At `time_s` the instance known by `key` starts, or is deleted."""

    time_s: float
    action: Action
    key: int
    instance: Instance


class InstanceTrace(Struct, frozen=True):
    """Events in order of time, every delete after the start of its instance, and the lines that were left out."""

    events: tuple[InstanceEvent, ...]
    rejected: tuple[Rejected, ...] = ()


LONGEST_LINE = 4096
"""Characters a line may have: it bounds what reading Python's notation can cost."""

_MIB_PER_GIB = 1024
_Share = Annotated[float, Meta(gt=0, le=1)]
_Gib = Annotated[float, Meta(gt=0, le=1_000_000)]


class _Instance(msgspec.Struct, frozen=True, omit_defaults=True):
    """The instance of a line. Unknown fields are ignored: the service records of others have more."""

    service_name: Annotated[str, Meta(min_length=1, max_length=200)]
    type: InstanceKind
    sm_requests: _Share
    sm_limits: _Share
    memory: Annotated[list[_Gib], Meta(min_length=1, max_length=1024)] | _Gib
    gpu_num: Annotated[int, Meta(ge=1)] | None = None
    instance_id: int | str | None = None


class _EventLine(msgspec.Struct, frozen=True, rename="pascal"):
    time: Annotated[float, Meta(ge=0, le=1e12)] | str
    action: Action
    instance: _Instance


class _RefusedError(ExplschedError):
    """Why a line is left out."""


def read_events(path: Path) -> InstanceTrace:
    """Read a file of events. Raises `TraceError` if it is no text file, or holds no usable line."""
    with open_lines(path) as lines:
        trace = parse_events(text for _, text in lines)
    if not trace.events:
        why = f"line {trace.rejected[0].line}: {trace.rejected[0].reason}" if trace.rejected else "it is empty"
        raise TraceError(f"{path}: holds no usable event: {why}")
    return trace


def write_events(path: Path, events: Iterable[InstanceEvent]) -> None:
    """Write events as JSON lines, with instance ids. Raises `TraceError` if the file cannot be written."""
    try:
        with output(path) as file:
            file.writelines(msgspec.json.encode(_line(event)) + b"\n" for event in events)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror}") from error


def parse_events(lines: Iterable[str]) -> InstanceTrace:
    """Events of lines. A line that cannot be used is left out and reported with its number and why."""
    running, clock = _Running(), _Clock()
    events: list[InstanceEvent] = []
    rejected: list[Rejected] = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = _decoded(text)
            time_s = clock.seconds(line.time)
            if events and time_s < events[-1].time_s:
                raise _RefusedError(f"Time {line.time} lies before that of an earlier line")
            events.append(running.start(line, time_s) if line.action is Action.START else running.delete(line, time_s))
        except _RefusedError as reason:
            rejected.append(Rejected(number, str(reason)))
    return InstanceTrace(tuple(events), tuple(rejected))


class _Clock:
    """Seconds of times that are numbers, or dates: those since the first date. A file has either."""

    def __init__(self) -> None:
        self._first_date_s: float | None = None
        self._has_numbers = False

    def seconds(self, time: float | str) -> float:
        """Raises `_RefusedError` for what is no date, or where numbers and dates are mixed."""
        if isinstance(time, str):
            if self._has_numbers:
                raise _RefusedError(f"Time {time!r} is a date, accepted: seconds, as on the lines before")
            try:
                date_s = date_time_s("Time", time)
            except RowError as error:
                raise _RefusedError(str(error)) from error
            self._first_date_s = date_s if self._first_date_s is None else self._first_date_s
            return date_s - self._first_date_s
        if self._first_date_s is not None:
            raise _RefusedError(f"Time {time:g} is a number, accepted: dates, as on the lines before")
        self._has_numbers = True
        return time


class _Running:
    """The instances that have started and are not deleted: finds the one that a delete means."""

    def __init__(self) -> None:
        self._started = 0
        self._instances: dict[int, Instance] = {}
        self._key_of_id: dict[int | str, int] = {}
        self._id_of_key: dict[int, int | str] = {}
        self._keys_of_service: dict[str, list[int]] = {}

    def start(self, line: _EventLine, time_s: float) -> InstanceEvent:
        """A new instance with a key of its own."""
        instance = _checked(line.instance)
        name = line.instance.instance_id
        if name is not None:
            if name in self._key_of_id:
                raise _RefusedError(f"instance_id {name!r} runs already")
            self._key_of_id[name] = self._started
            self._id_of_key[self._started] = name
        key = self._started
        self._started += 1
        self._instances[key] = instance
        self._keys_of_service.setdefault(instance.service, []).append(key)
        return InstanceEvent(time_s, Action.START, key, instance)

    def delete(self, line: _EventLine, time_s: float) -> InstanceEvent:
        """The end of the instance of that id, or of the newest one of that service."""
        name, service = line.instance.instance_id, line.instance.service_name
        keys = self._keys_of_service.get(service, [])
        if name is None:
            if not keys:
                raise _RefusedError(f"no instance of service {service!r} runs that could be deleted")
            key = keys[-1]
        elif (found := self._key_of_id.get(name)) is not None and found in keys:
            key = found
        else:
            raise _RefusedError(f"no instance_id {name!r} of service {service!r} runs that could be deleted")
        keys.remove(key)
        if key in self._id_of_key:
            del self._key_of_id[self._id_of_key.pop(key)]
        return InstanceEvent(time_s, Action.DELETE, key, self._instances.pop(key))


def _decoded(text: str) -> _EventLine:
    if len(text) > LONGEST_LINE:
        raise _RefusedError(f"the line has {len(text)} characters, at most {LONGEST_LINE} are read")
    try:
        return msgspec.json.decode(text, type=_EventLine)
    except msgspec.ValidationError as error:
        raise _RefusedError(str(error)) from error
    except RecursionError as error:
        raise _RefusedError("it is nested too deeply") from error
    except msgspec.DecodeError as not_json:
        try:  # literals only, and a short line: nothing is run, and nothing grows
            return msgspec.convert(ast.literal_eval(text.strip()), type=_EventLine)
        except msgspec.ValidationError as error:
            raise _RefusedError(str(error)) from error
        except (ValueError, SyntaxError, TypeError, RecursionError) as error:
            raise _RefusedError(f"neither JSON ({not_json}) nor a Python dict") from error


def _checked(line: _Instance) -> Instance:
    memory = line.memory if isinstance(line.memory, list) else [line.memory]
    if not line.service_name.isprintable():
        raise _RefusedError(f"service_name {line.service_name!r} has characters that cannot be printed")
    if line.gpu_num is not None and line.gpu_num != len(memory):
        raise _RefusedError(f"gpu_num is {line.gpu_num}, but memory has {len(memory)} entries; one per GPU is needed")
    if line.type is not InstanceKind.TRAINING and len(memory) > 1:
        raise _RefusedError(f"an instance of type {line.type} takes one GPU, not {len(memory)}")
    if line.sm_limits < line.sm_requests:
        raise _RefusedError(f"sm_limits {line.sm_limits:g} is less than sm_requests {line.sm_requests:g}")
    memory_mib = tuple(max(1, round(gib * _MIB_PER_GIB)) for gib in memory)
    return Instance(line.service_name, line.type, line.sm_requests, line.sm_limits, memory_mib)


def _line(event: InstanceEvent) -> _EventLine:
    instance = event.instance
    memory = [mib / _MIB_PER_GIB for mib in instance.memory_mib]
    return _EventLine(
        event.time_s,
        event.action,
        _Instance(
            instance.service,
            instance.kind,
            instance.request,
            instance.limit,
            memory,
            gpu_num=instance.gpus,
            instance_id=event.key,
        ),
    )


_GIB = 1024
_DECIMALS = 4


class InstanceMix(Struct, frozen=True):
    """What is drawn. Shares are of the number of instances; U is the uniform distribution, memory in GiB.

    * training (`training_share`): 2 or 4 GPUs, memory of all of them one of 25, 30, 35, 40, request U(0.4, 0.8),
      limit max(request + 0.2, U(0.6, 1.0)).
    * llm-inference (`llm_share`): memory U(20, 30) whole, request U(0.4, 0.6), limit U(request + 0.2, 0.8).
    * inference (the rest): memory U(3, 10) whole, request U(0.2, 0.4), limit max(request + 0.2, U(0.3, 0.6)).

    They start in random order, one a second. `inference_deletes` of them, all of either inference kind, are deleted 1
    to 3 min after their start, `training_deletes`, all trainings, after 10 to 15 min. Requests and limits have four
    decimals.

    The instances of either inference kind belong to services of `instances_per_service` instances each in the mean
    (ours: the original does not say), and the instances of one service are alike. Every training is a service of its
    own.
    """

    training_share: float = 0.2
    llm_share: float = 0.2
    inference_deletes: float = 0.6
    training_deletes: float = 0.1
    instances_per_service: float = 4.0


def generate(instances: int, seed: int, mix: InstanceMix | None = None) -> InstanceTrace:
    """Events of so many instances; the same seed gives the same events everywhere."""
    mix = mix or InstanceMix()
    random = np.random.default_rng(seed)
    drawn = _instances(instances, mix, random)
    starting = [drawn[i] for i in random.permutation(len(drawn))]
    events = [InstanceEvent(float(key), Action.START, key, each) for key, each in enumerate(starting)]
    trains = np.array([each.kind is InstanceKind.TRAINING for each in starting], dtype=np.bool_)
    for among, share, shortest_s, longest_s in (
        (np.flatnonzero(~trains), mix.inference_deletes, 60.0, 180.0),
        (np.flatnonzero(trains), mix.training_deletes, 600.0, 900.0),
    ):
        count = min(among.size, round(share * instances))
        chosen = np.sort(random.choice(among, size=count, replace=False))
        lives_s = random.uniform(shortest_s, longest_s, size=count)
        for key, life_s in zip(chosen.tolist(), lives_s.tolist(), strict=True):
            events.append(InstanceEvent(round(key + life_s, 3), Action.DELETE, key, starting[key]))
    return InstanceTrace(tuple(sorted(events, key=lambda event: (event.time_s, event.action, event.key))))


def _instances(count: int, mix: InstanceMix, random: np.random.Generator) -> Sequence[Instance]:
    trainings = min(count, round(count * mix.training_share))
    llms = min(count - trainings, round(count * mix.llm_share))
    drawn = [_training(f"training-{i + 1}", random) for i in range(trainings)]
    for kind, how_many in ((InstanceKind.LLM_INFERENCE, llms), (InstanceKind.INFERENCE, count - trainings - llms)):
        draw = _llm if kind is InstanceKind.LLM_INFERENCE else _inference
        of_kind = max(1, round(how_many / mix.instances_per_service))
        services = [draw(f"{kind}-{i + 1}", random) for i in range(of_kind)]
        drawn += [services[i] for i in random.integers(len(services), size=how_many)]
    return drawn


def _training(name: str, random: np.random.Generator) -> Instance:
    gpus = int(random.choice([2, 4]))
    memory_mib = (_GIB * int(random.choice([25, 30, 35, 40])),) * gpus
    request = random.uniform(0.4, 0.8)
    limit = max(request + 0.2, random.uniform(0.6, 1.0))
    return _instance(name, InstanceKind.TRAINING, request, limit, memory_mib)


def _llm(name: str, random: np.random.Generator) -> Instance:
    request = random.uniform(0.4, 0.6)
    limit = random.uniform(request + 0.2, 0.8)
    return _instance(name, InstanceKind.LLM_INFERENCE, request, limit, (_GIB * int(random.integers(20, 31)),))


def _inference(name: str, random: np.random.Generator) -> Instance:
    request = random.uniform(0.2, 0.4)
    limit = max(request + 0.2, random.uniform(0.3, 0.6))
    return _instance(name, InstanceKind.INFERENCE, request, limit, (_GIB * int(random.integers(3, 11)),))


def _instance(name: str, kind: InstanceKind, request: float, limit: float, memory_mib: tuple[int, ...]) -> Instance:
    return Instance(name, kind, round(request, _DECIMALS), min(1.0, round(limit, _DECIMALS)), memory_mib)
