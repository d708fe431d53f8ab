"""Prepares the environment of a command that shares a GPU, and puts everything away after it.

Whatever is missing is told once on standard error, and the command runs without it. MPS that `sxrun` starts is of one
job: its end would end the CUDA programs of others, so what several jobs share is slurmd's to start (`node_mps`). The
end of the kernel manager does not, so jobs on shards of a GPU have one together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from explsched.errors import warn
from explsched.job_options.table import MPS
from wrappers import kernel_manager, mps, node_mps, runtime_directory, spanning
from wrappers.inherited import with_marked, without_marked
from wrappers.kernel_manager import NotInstalledError, kept_alive
from wrappers.runtime_directory import RuntimeDirectory, is_of_another_job, place, shared_place
from wrappers.share_options import ShareRequest

_OURS = ("EXPLSCHED_", "CUDA_MPS_", "LD_PRELOAD")
_BIND = ("APPTAINER_BIND", "SINGULARITY_BIND")
_IN_CONTAINER = ("APPTAINERENV_", "SINGULARITYENV_")
_IN_ROOMS = (kernel_manager.SOCKET_VARIABLE, mps.PIPE_VARIABLE, mps.LOG_VARIABLE)


@contextmanager
def prepared(
    share: ShareRequest, environment: Mapping[str, str], as_daemon: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """The command's environment: `environment` and what sharing needs. At the end the daemons it needed are stopped.

    `as_daemon` is run in the daemons' processes before their programs (`SignalRelay.as_daemon`).
    """
    environment = of_this_job(environment)
    command = {**environment, **share.environment()}
    if share.priority is None and not share.mps:
        command |= _memory(share, environment, command)
        yield _for_it_alone(command, environment)
        return
    remove_stale({place(environment).parent, place({}).parent})
    room = _joined(place(environment))
    together = shared_place(environment)
    gpu_room = _joined(together) if together and share.priority else None
    try:
        with contextlib.ExitStack() as until_the_end:
            if room is not None:
                command |= _served(share, room, gpu_room or room, environment, as_daemon)
                command |= until_the_end.enter_context(_without_second_spanning_client(room.path, command, environment))
            command |= _memory(share, environment, command)
            if gpu_room is not None and _is_served_in(gpu_room, command):
                until_the_end.enter_context(kept_alive(gpu_room, _policy(share), environment, as_daemon))
            # MPS, too, can put a process behind others; without MPS the variable means nothing.
            command = mps.BELOW_NORMAL | command if share.is_best_effort else command
            yield _for_it_alone(command, environment)
    finally:
        for joined in filter(None, (gpu_room, room)):
            _leave(joined, environment)


def _for_it_alone(command: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The command's environment with that of its containers; an `sxrun` inside sets its own priority and theirs."""
    given = for_containers(command, environment)
    new = {**mps.BELOW_NORMAL, **given}.keys() - environment.keys() - set(_BIND)
    found = {**command, **given}
    return with_marked(found, {name: value for name, value in found.items() if name in new})


def of_this_job(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what another `sxrun` has set for its command alone, and without places of other jobs.

    A job inherits those from the one in which it was submitted. Daemons there end with that job, and no container
    starts for which a directory is to be mounted that is gone.
    """
    environment = without_marked(environment)
    names = {prefix + name for name in _IN_ROOMS for prefix in ("", *_IN_CONTAINER)}
    foreign = {name for name in names & environment.keys() if is_of_another_job(Path(environment[name]), environment)}
    found = {name: value for name, value in environment.items() if name not in foreign}
    for name in _BIND:
        if name in found:
            paths = (path for path in found[name].split(",") if not is_of_another_job(Path(path), environment))
            found[name] = ",".join(paths)
    return found


def for_containers(command: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """What gives a container that the command runs in by Apptainer or Singularity the same; what the user set stays.

    They mount little more than the home and /tmp, pass no variables on with --cleanenv, and do not start where
    something to mount is missing. Both names have the same value, since Apptainer warns of two values.
    """
    given = {
        prefix + name: value
        for name, value in command.items()
        if name.startswith(_OURS) or environment.get(name) != value
        for prefix in _IN_CONTAINER
        if prefix + name not in environment
    }
    either = environment.get(_BIND[0]) or environment.get(_BIND[1]) or ""
    for name in _BIND:
        before = (environment.get(name) or either).split(",")
        new = [path for path in map(str, _shared_paths(command, environment)) if path not in before]
        given[name] = ",".join(filter(None, [*before, *new]))
    return given


def _shared_paths(command: Mapping[str, str], environment: Mapping[str, str]) -> list[Path]:
    """The files and directories that the command's processes and those of others both need."""
    paths = [mps.answering(command)]
    paths += [Path(command[name]) for name in (mps.LOG_VARIABLE, "EXPLSCHED_SPOOL") if command.get(name)]
    if socket := command.get(kernel_manager.SOCKET_VARIABLE):
        paths.append(Path(socket).parent)  # a manager that is started again makes another socket
    with contextlib.suppress(NotInstalledError):
        library = kernel_manager.library(environment)
        paths += [library] if str(library) in command.get("LD_PRELOAD", "").split(":") else []
    seen = (path for path in paths if path and os.path.exists(path))  # noqa: PTH110  as in `mps`
    return [path for path in seen if path.is_absolute() and not set(str(path)) & set(":,")]


@contextmanager
def _without_second_spanning_client(
    room: Path, command: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """What keeps the command from MPS, if another one that spans GPUs is there."""
    pipes = mps.answering(command)
    if pipes is None or not spanning.spans_gpus(environment):
        yield {}
        return
    with spanning.sole_spanning_client(pipes, environment) as is_sole:
        if not is_sole:
            _say(
                "no CUDA MPS for this command: another one on several GPUs uses it, and their collectives (NCCL) "
                "could deadlock; kernels are time-sliced"
            )
        yield {} if is_sole else mps.none_in(room, environment)


def _memory(share: ShareRequest, environment: Mapping[str, str], command: Mapping[str, str]) -> dict[str, str]:
    """What holds the command to its memory: the interposer, and MPS where that serves it."""
    if share.memory is None:
        return {}
    limit = mps.memory_limit(command, share.memory) if mps.answering(command) else {}
    if "LD_PRELOAD" in command and command["LD_PRELOAD"] != environment.get("LD_PRELOAD"):
        return limit
    try:
        return limit | _preloaded(environment)
    except NotInstalledError as error:
        _say(f"memory is not limited: {error}")
        return limit


def _preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """The library in front of the command. Raises `NotInstalledError` where it is missing or cannot be used."""
    library = kernel_manager.library(environment)
    fault = kernel_manager.preload_fault(library, environment)
    if fault:
        raise NotInstalledError(f"{library} cannot be preloaded: {fault}")
    return {"LD_PRELOAD": kernel_manager.ld_preload(library, environment)}


def _served(
    share: ShareRequest,
    room: RuntimeDirectory,
    manager_room: RuntimeDirectory,
    environment: Mapping[str, str],
    as_daemon: Callable[[], None],
) -> dict[str, str]:
    try:
        with room.locked():
            own = _mps(share, room.path, environment, as_daemon)
            if manager_room is room:
                return own | _kernels(share, room.path, environment, as_daemon)
        with manager_room.locked():
            return own | _kernels(share, manager_room.path, environment, as_daemon)
    except OSError as error:
        _say(f"the GPU is not shared: {error.filename or room.path}: {error.strerror}")
        return {}


def remove_stale(directories: set[Path]) -> None:
    """Whoever was killed could not put its room away. What cannot be looked at is only told of."""
    for directory in directories:
        with _told_of(directory):
            for path in runtime_directory.rooms(directory):
                with _told_of(path):
                    runtime_directory.remove_if_stale(
                        path, lambda room: kernel_manager.listens(room) or mps.serves(room)
                    )


@contextmanager
def _told_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _say(f"{error.filename or path}: {error.strerror}")


def _joined(path: Path) -> RuntimeDirectory | None:
    try:
        return RuntimeDirectory(path)
    except OSError as error:
        _say(f"the GPU is not shared: {error.filename or path}: {error.strerror}")
        return None


def _mps(
    share: ShareRequest, room: Path, environment: Mapping[str, str], as_daemon: Callable[[], None]
) -> dict[str, str]:
    if mps.answering(environment):
        return {}
    if of_node := node_mps.of_job(environment):
        return of_node
    if not share.mps:
        _say(f"no CUDA MPS serves this command ({MPS.flag} starts one): kernels of different processes are time-sliced")
        return {}
    try:
        return mps.start(room, environment, as_daemon)
    except mps.MpsError as error:
        _say(f"no MPS: {error}")
        return {}


def _kernels(
    share: ShareRequest, room: Path, environment: Mapping[str, str], as_daemon: Callable[[], None]
) -> dict[str, str]:
    if share.priority is None:
        return {}
    try:
        preloaded = _preloaded(environment)
        if kernel_manager.answering(environment):
            return preloaded
        policy = _policy(share)
        served = kernel_manager.start(room, policy, environment, as_daemon)
        if policy == "quota" and kernel_manager.policy_of(room) != policy:
            _say("request and limit do not count: the kernel manager was started without, by another sxrun")
        return preloaded | served
    except (NotInstalledError, kernel_manager.ManagerError) as error:
        _say(f"kernels are not managed: {error}")
        return {}


def _is_served_in(room: RuntimeDirectory, command: Mapping[str, str]) -> bool:
    """Whether the command uses the room's manager, and not one of the site."""
    return command.get(kernel_manager.SOCKET_VARIABLE) == str(kernel_manager.socket_of(room.path))


def _policy(share: ShareRequest) -> str:
    return "quota" if share.has_quota else "group"


def _leave(room: RuntimeDirectory, environment: Mapping[str, str]) -> None:
    def stop_all() -> None:
        kernel_manager.stop(room.path)
        try:
            mps.stop(room.path, environment)
        except mps.MpsError as error:
            _say(str(error))

    try:
        room.close(stop_all)
    except OSError as error:
        _say(f"{error.filename or room.path}: {error.strerror}")


def _say(text: str) -> None:
    warn("sxrun", text)
