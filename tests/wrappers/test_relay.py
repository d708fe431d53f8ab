"""Signals on their way through sxrun, and what a command may do with them."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from explsched.process_signals import Handling, children, program
from wrappers.relay import Request, SignalRelay
from wrappers.signal_handlers import Lineage, handlers_below

SXRUN = [sys.executable, "-m", "wrappers.sxrun"]


@pytest.fixture(autouse=True)
def outside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "EXPLSCHED_PROGRESS_FILE", "EXPLSCHED_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)


def wait_for(path: Path, text: str) -> None:
    for _ in range(1500):
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} never came to {path}")


def test_a_shell_can_trap_the_checkpoint_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"trap 'echo saved >> {log}; exit 4' USR1; echo ready >> {log}; while :; do sleep 0.05; done"
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", script])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4
    assert "saved" in log.read_text()


def signalled_before_it_handles_it(
    running: subprocess.Popen[str], log: Path, go: Path, number: signal.Signals = signal.SIGUSR1
) -> None:
    """A command that says that it is ready gets the signal, goes on once `go` is there, and ends with status 4."""
    wait_for(log, "ready")
    running.send_signal(number)
    assert running.stderr is not None
    assert "is kept until the command handles it" in running.stderr.readline()
    go.touch()
    assert running.wait(timeout=60) == 4
    running.stderr.close()


def test_an_early_checkpoint_signal_waits_for_the_handler(tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"
    script = (
        f"echo ready >> {log}; while [ ! -e {go} ]; do sleep 0.05; done\n"
        f"trap 'echo saved >> {log}; exit 4' USR1; while :; do sleep 0.05; done"
    )
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", script], stderr=subprocess.PIPE, text=True)
    signalled_before_it_handles_it(running, log, go)


@pytest.mark.parametrize("where", ["-c", "file"])
def test_a_shell_with_an_exit_trap_is_not_taken_for_one_that_traps_the_signal(tmp_path: Path, where: str) -> None:
    """To run that trap bash catches all signals that would end it."""
    log, go, script = tmp_path / "pytest-10", tmp_path / "go", tmp_path / "train.sh"  # the signal's number, as a name
    text = (
        f"trap 'echo cleaned >> {log}' EXIT; echo ready >> {log}; while [ ! -e {go} ]; do sleep 0.05; done\n"
        f"echo done >> {log}; exit 4"
    )
    script.write_text(text)
    words = ["-c", text] if where == "-c" else [str(script)]
    running = subprocess.Popen([*SXRUN, "--", "bash", *words], stderr=subprocess.PIPE, text=True)
    signalled_before_it_handles_it(running, log, go)
    assert log.read_text() == "ready\ndone\ncleaned\n"


@pytest.mark.parametrize("where", ["-c", "file"])
@pytest.mark.parametrize("name", ["USR1", "sigusr1", "10", '"$EXPLSCHED_CHECKPOINT"'])
def test_a_shell_may_have_an_exit_trap_beside_that_of_the_signal(tmp_path: Path, name: str, where: str) -> None:
    log, script = tmp_path / "log", tmp_path / "train.sh"
    text = f"trap 'echo cleaned >> {log}' EXIT\ntrap 'exit 4' {name}; echo ready >> {log}; while :; do sleep 0.05; done"
    script.write_text(text)
    words = ["-c", text] if where == "-c" else [str(script)]
    running = subprocess.Popen([*SXRUN, "--", "bash", *words])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4
    assert log.read_text() == "ready\ncleaned\n"


@pytest.mark.parametrize("words", [". ./lib.sh", 'true; source "$TRAPS/lib.sh"'])
def test_a_trap_of_a_file_that_the_script_sources_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    log, script = tmp_path / "log", tmp_path / "train.sh"
    (tmp_path / "lib.sh").write_text(f"trap 'echo cleaned >> {log}' EXIT\ntrap 'exit 4' USR1\n")
    script.write_text(f"{words}\necho ready >> {log}; while :; do sleep 0.05; done")
    monkeypatch.setenv("TRAPS", str(tmp_path))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    running = subprocess.Popen([*SXRUN, "--", "bash", str(script)], cwd=tmp_path, env=environment)
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4
    assert log.read_text() == "ready\ncleaned\n"


@pytest.mark.parametrize("stderr", ["2> /dev/full", "2>&-"])
def test_a_log_that_cannot_be_written_does_not_end_the_command(tmp_path: Path, stderr: str) -> None:
    """Both of what sxrun says here would go to the log: of the option, and of the signal."""
    log = tmp_path / "log"
    script = f"echo ready >> {log}; sleep 2; echo done >> {log}; exit 4"
    line = f'exec "$0" -m wrappers.sxrun -- bash -c "$1" {stderr}'
    words = ["bash", "-c", line, sys.executable, script]
    running = subprocess.Popen(words, env=os.environ | {"EXPLSCHED_SHARE": "nonsense"})
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4
    assert "done" in log.read_text()


def test_a_signal_after_the_commands_end_does_not_end_us(tmp_path: Path) -> None:
    """As when a job is asked for a checkpoint in the moment it has finished."""
    for turn in range(5):
        log = tmp_path / f"log{turn}"
        running = subprocess.Popen(
            [*SXRUN, "--", "sh", "-c", f"echo ready >> {log}; sleep 0.05"], stderr=subprocess.PIPE
        )
        wait_for(log, "ready")
        while running.poll() is None:
            running.send_signal(signal.SIGUSR1)
        running.communicate()
        assert running.returncode == 0


def test_a_command_that_takes_signals_by_sigwait_gets_it(tmp_path: Path) -> None:
    """As srun does."""
    log = tmp_path / "log"
    code = (
        "import os,signal,threading; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "threading.Thread(target=lambda: (signal.sigwait([signal.SIGUSR1]), os._exit(6))).start()\n"
        f"open({str(log)!r}, 'w').write('ready')\nthreading.Event().wait()"
    )
    running = subprocess.Popen([*SXRUN, "--", sys.executable, "-c", code])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 6


def test_srun_is_not_sent_what_it_would_not_pass_on(tmp_path: Path) -> None:
    """It would kill its tasks. (A shell by its name: the true one waits for a cluster.)"""
    log, go = tmp_path / "log", tmp_path / "go"
    shutil.copy(str(shutil.which("bash")), tmp_path / "srun")
    loop = f"for _ in {{1..1000}}; do [ ! -e {go} ] || exit 4; sleep 0.05; done"
    script = f"trap 'exit 3' TERM; echo ready >> {log}; {loop}"
    environment = {**os.environ, "EXPLSCHED_CHECKPOINT": "TERM"}
    argv = [*SXRUN, "--", str(tmp_path / "srun"), "-c", script]
    running = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert "srun does not pass SIGTERM on to its tasks" in running.stderr.readline()
    signalled_before_it_handles_it(running, log, go, signal.SIGTERM)


@pytest.mark.parametrize(
    ("words", "signal_name", "launcher"),
    [
        (["torchrun", "train.py"], "TERM", "torchrun"),
        (["nohup", "/opt/bin/accelerate", "launch", "train.py"], "SIGHUP", "accelerate"),
        (["python", "-m", "torch.distributed.run", "train.py"], "INT", "torch.distributed.run"),
        (["torchrun", "train.py"], "USR1", None),
        (["python", "-m", "accelerate.commands.launch", "train.py"], "TERM", "accelerate.commands.launch"),
        (["python", "train.py", "--backend", "deepspeed"], "TERM", None),
        (["python", "-m", "train", "--backend", "deepspeed"], "TERM", None),
        (["nohup", "./train", "--strategy", "deepspeed"], "TERM", None),
    ],
)
def test_a_launcher_that_would_end_its_workers_instead_of_having_them_save_is_said(
    tmp_path: Path, words: list[str], signal_name: str, launcher: str | None
) -> None:
    """It catches the signal, and ends them 30 s later though they still save."""
    (tmp_path / "run").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "run").chmod(0o755)
    for name in {Path(words[0]).name, "nohup"}:
        (tmp_path / name).symlink_to("run")
    environment = {**os.environ, "EXPLSCHED_CHECKPOINT": signal_name, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*SXRUN, "--", *words], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    said = f"sxrun: {launcher} may end its workers at SIG{signal_name.removeprefix('SIG')} " if launcher else ""
    assert done.stderr[: len(said) or None] == said


def test_a_signal_that_is_blocked_for_a_moment_is_not_taken_for_sigwait(monkeypatch: pytest.MonkeyPatch) -> None:
    """fork(2) blocks signals so, and right after it nobody takes them."""
    blocked, free = Handling(catches=False, blocks=True), Handling(catches=False, blocks=False)
    looks = iter([blocked, free, blocked, blocked])
    sent: list[int] = []

    def send(_pid: int, number: int) -> None:
        assert next(looks, None) is None, "sent before it was blocked twice in a row"
        sent.append(number)

    child = SimpleNamespace(pid=1, poll=lambda: 0 if sent else None)
    asked = SimpleNamespace(si_signo=signal.SIGUSR1, si_code=0)
    monkeypatch.setattr("wrappers.relay.signal.sigwaitinfo", lambda _watched: asked)
    monkeypatch.setattr("wrappers.relay.signal.sigtimedwait", lambda _watched, _timeout_s: None)
    monkeypatch.setattr("wrappers.relay.os.kill", send)
    monkeypatch.setattr("wrappers.relay.handling", lambda _pid, _number: next(looks))
    monkeypatch.setattr("wrappers.relay.handlers_below", lambda _pid, _number, _told: [])
    assert SignalRelay(signal.SIGUSR1).wait(child) == 0
    assert sent == [signal.SIGUSR1]


WORKER = """\
import os, signal, sys, time
from pathlib import Path
from explsched import CheckpointSignal

def note(what):
    with (directory / "log").open("a") as file:
        file.write(f"{what} {name}\\n")

class Noting(CheckpointSignal):
    def _note(self, number, frame):
        note("told")

name, directory = sys.argv[1], Path(sys.argv[2])
signal.alarm(120)
note("begun")
while not (directory / f"start-{name}").exists():
    time.sleep(0.02)
with Noting():
    note("ready")
    while not (directory / "end").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """sxrun and a launcher without a handler, which starts two workers in sessions of their own, as torchrun does."""
    (tmp_path / "worker.py").write_text(WORKER)
    launches = (
        "import subprocess, sys\n"
        f"words = lambda name: [sys.executable, {str(tmp_path / 'worker.py')!r}, name, {str(tmp_path)!r}]\n"
        "each = [subprocess.Popen(words(name), start_new_session=True) for name in ('one', 'two')]\n"
        "sys.exit(sum(worker.wait() for worker in each))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [*SXRUN, "--", sys.executable, "-c", launches]
    running = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    for name in ("one", "two"):
        wait_for(tmp_path / "log", f"begun {name}")
    yield running
    (tmp_path / "end").touch()
    for name in ("one", "two"):
        (tmp_path / f"start-{name}").touch()
    assert running.wait(timeout=60) == 0
    assert running.stderr is not None
    running.stderr.close()


def test_workers_of_a_launcher_without_a_handler_are_told_each_once(
    launcher: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The second begins to handle the signal only after the first has had it."""
    log = tmp_path / "log"
    (tmp_path / "start-one").touch()
    wait_for(log, "ready one")
    launcher.send_signal(signal.SIGUSR1)
    wait_for(log, "told one")
    (tmp_path / "start-two").touch()
    wait_for(log, "told two")
    assert log.read_text().split("\n", 2)[2] == "ready one\ntold one\nready two\ntold two\n"


def test_torchruns_workers_are_told(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (explsched[demo])")
    log, worker = tmp_path / "log", tmp_path / "worker.py"
    worker.write_text(WORKER.replace("sys.argv[1], Path(sys.argv[2])", "os.environ['RANK'], Path(sys.argv[1])"))
    for name in ("start-0", "start-1"):
        (tmp_path / name).touch()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    running = subprocess.Popen([*SXRUN, "--", *torchrun, str(worker), str(tmp_path)], env=environment)
    for said in ("ready 0", "ready 1"):
        wait_for(log, said)
    running.send_signal(signal.SIGUSR1)
    for said in ("told 0", "told 1"):
        wait_for(log, said)
    (tmp_path / "end").touch()
    assert running.wait(timeout=60) == 0
    assert log.read_text().count("told") == 2


def test_a_signal_before_any_worker_handles_it_is_kept(launcher: subprocess.Popen[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    launcher.send_signal(signal.SIGUSR1)
    assert launcher.stderr is not None
    assert "is kept until the command handles it" in launcher.stderr.readline()
    for name in ("one", "two"):
        (tmp_path / f"start-{name}").touch()
        wait_for(log, f"told {name}")


def test_what_a_process_that_handles_it_has_started_is_its_own_to_tell(tmp_path: Path) -> None:
    """As the workers of a DataLoader, which inherit the handler."""
    log = tmp_path / "log"
    code = (
        "import os, signal, time\nsignal.alarm(120)\n"
        f"def note(*_): open({str(log)!r}, 'a').write(f'told {{child}}\\n')\n"
        "signal.signal(signal.SIGUSR1, note)\n"
        "if (child := os.fork()) == 0: time.sleep(60)\n"
        f"open({str(log)!r}, 'a').write('ready\\n')\n"
        "signal.pause()\nos.kill(child, signal.SIGTERM); os.wait()"
    )
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", '"$0" -c "$1"; exit $?', sys.executable, code])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 0
    assert re.fullmatch(r"ready\ntold [1-9]\d*\n", log.read_text())


SIGWAITING = """\
import signal, sys
signal.alarm(60)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open(sys.argv[1], "a").write("ready\\n")
signal.sigwait([signal.SIGUSR1])
open(sys.argv[1], "a").write("told\\n")
"""
CATCHING = """\
import signal, sys
signal.alarm(60)
signal.signal(signal.SIGUSR1, lambda *_: open(sys.argv[1], "a").write("told\\n"))
open(sys.argv[1], "a").write("ready\\n")
while True:
    signal.pause()
"""


def python_named(name: str, directory: Path) -> tuple[str, dict[str, str]]:
    """A Python interpreter in a file of another name, and the environment in which it finds its library."""
    program = directory / name
    shutil.copy(Path(sys.executable).resolve(), program)
    return str(program), {**os.environ, "PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("code", [SIGWAITING, CATCHING], ids=["sigwait", "handler"])
def test_no_program_below_a_shell_is_told_but_python_and_shells(tmp_path: Path, code: str) -> None:
    """An srun would pass it on to tasks that do not handle it, and rsync ends at it; the shell's next one is told."""
    log, go = tmp_path / "log", tmp_path / "go"
    program, environment = python_named("rsync", tmp_path)
    script = (
        f'"$0" -c "$1" {log} & other=$!; while [ ! -e {go} ]; do sleep 0.05; done\n'
        f"trap 'kill -KILL $other; exit 4' USR1; while :; do sleep 0.05; done"
    )
    argv = [*SXRUN, "--", "bash", "-c", script, program, code]
    running = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
    signalled_before_it_handles_it(running, log, go)
    assert log.read_text() == "ready\n"


SAVING = f"""\
#!{sys.executable}
import signal, sys
def save(*_):
    open("log", "a").write("told\\n")
    sys.exit()
signal.alarm(60)
signal.signal(signal.SIGUSR1, save)
open("log", "a").write("ready\\n")
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    "command",
    [
        ["xvfb-run", "-a", "./train"],
        ["bash", "-c", "xvfb-run -a ./train; exit $?"],
        ["make", "-s", "train"],
        ["script", "-qefc", "./train", "/dev/null"],
    ],
)
def test_what_a_program_runs_that_takes_the_signal_for_its_own_use_is_asked(tmp_path: Path, command: list[str]) -> None:
    """xvfb-run waits for its X server so, make turns its messages on, and script blocks all signals."""
    if command[0] in ("make", "script") and not shutil.which(command[0]):
        pytest.skip(f"no {command[0]}")
    files = {
        "train": SAVING,
        "xvfb-run": '#!/bin/sh\nshift; trap : USR1; "$@"\n',
        "Makefile": "train: always\n\t./train\nalways:\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    first = {"PATH": tmp_path, "PYTHONPATH": Path.cwd()}
    environment = os.environ | {name: f"{path}:{os.environ.get(name, '')}" for name, path in first.items()}
    running = subprocess.Popen([*SXRUN, "--", *command], cwd=tmp_path, env=environment)
    wait_for(tmp_path / "log", "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 0
    assert (tmp_path / "log").read_text() == "ready\ntold\n"


PASSES_ON = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t child;
static void pass_on(int number) { kill(child, number); }
int main(int count, char **words) {
  int status;
  signal(SIGUSR1, pass_on);
  if ((child = fork()) == 0) execvp(words[1], words + 1);
  while (waitpid(child, &status, 0) < 0) {}
  return count < 2 ? 2 : WEXITSTATUS(status);
}
"""


@pytest.mark.parametrize("name", ["uv", "dumb-init", "starter"])
def test_a_program_that_passes_all_on_at_once_does_not_get_it_before_what_it_runs_handles_it(
    tmp_path: Path, name: str
) -> None:
    """As what `uv run` and `apptainer exec` run, which would end at it."""
    log, go, source = tmp_path / "log", tmp_path / "go", tmp_path / "passes_on.c"
    source.write_text(PASSES_ON)
    subprocess.run(["cc", "-o", tmp_path / name, source], check=True)
    script = (
        f"echo ready >> {log}; while [ ! -e {go} ]; do sleep 0.05; done\n"
        f"trap 'exit 4' USR1; while :; do sleep 0.05; done"
    )
    running = subprocess.Popen([*SXRUN, "--", tmp_path / name, "bash", "-c", script], stderr=subprocess.PIPE, text=True)
    signalled_before_it_handles_it(running, log, go)


@pytest.mark.parametrize(
    ("names", "is_told"),
    [
        (["tini", "solver"], True),
        (["starter", "dumb-init", "solver"], True),
        (["starter", "squashfuse_ll"], False),
        (["another", "solver"], False),
    ],
)
def test_what_such_a_program_runs_is_told_whatever_it_is(tmp_path: Path, names: list[str], *, is_told: bool) -> None:
    """As a solver in C; but not what the starter runs besides, which would end, and with it the container's files."""
    log, source = tmp_path / "log", tmp_path / "passes_on.c"
    source.write_text(PASSES_ON)
    *above, last = names
    for name in above:
        subprocess.run(["cc", "-o", tmp_path / name, source], check=True)
    program, environment = python_named(last, tmp_path)
    argv = [*(tmp_path / name for name in above), program, "-c", CATCHING, log]
    running = subprocess.Popen(argv, env=environment)
    wait_for(log, "ready")
    found = handlers_below(running.pid, signal.SIGUSR1, [])
    lineage = lineage_below(running.pid)
    os.kill(lineage[-1], signal.SIGKILL)
    running.wait(timeout=60)
    assert found == ([lineage] if is_told else [])


def lineage_below(pid: int) -> Lineage:
    """A process and those below it, each the only child of the one before."""
    below = children().get(pid)
    return (pid, *lineage_below(below[0])) if below else (pid,)


def test_a_program_whose_file_its_user_may_not_see_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apptainer's starter where it is set-user-id."""

    def refuse(_path: Path) -> Path:
        raise PermissionError

    running = subprocess.Popen(["sleep", "60"])
    name = Path(f"/proc/{running.pid}/comm")
    wait_for(name, "sleep")  # the kernel sets it after what tells Popen that the program runs
    monkeypatch.setattr(Path, "readlink", refuse)
    assert program(running.pid) == "sleep"
    running.kill()
    running.wait()
    assert program(running.pid) == ""


def test_a_shell_by_another_name_is_told_below_a_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shell = shutil.copy(Path("/bin/sh").resolve(), tmp_path / "ksh93")
    traps = f"trap 'echo told >> {log}; exit 4' USR1; echo ready >> {log}; while :; do sleep 0.05; done"
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", '"$0" -c "$1"; exit $?', shell, traps])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4
    assert log.read_text() == "ready\ntold\n"


def test_a_script_that_passes_it_on_itself_is_not_told_after_its_worker(tmp_path: Path) -> None:
    """sxrun looks again after it has passed SIGCONT on, before it takes another."""
    log, go = tmp_path / "log", tmp_path / "go"
    script = (
        f'"$0" -c "$1" {log} & worker=$!; while [ ! -e {go} ]; do sleep 0.05; done\n'
        f"trap 'echo forwards >> {log}; kill -USR1 $worker' USR1; trap 'echo continued >> {log}' CONT\n"
        f"echo traps >> {log}; while [ $(grep -c continued {log}) -lt 2 ]; do sleep 0.05; done\n"
        "kill -KILL $worker; exit 4"
    )
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", script, sys.executable, CATCHING])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    wait_for(log, "told")
    go.touch()
    wait_for(log, "traps")
    running.send_signal(signal.SIGCONT)
    wait_for(log, "continued")
    running.send_signal(signal.SIGCONT)
    assert running.wait(timeout=60) == 4
    assert log.read_text() == "ready\ntold\ntraps\ncontinued\ncontinued\n"


def test_the_command_is_told_that_handles_it_after_those_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a script whose first program handles it for itself."""
    now_s, catches, sent = 0.0, False, list[int]()
    below: list[Lineage] = [(1, 2)]
    monkeypatch.setattr("wrappers.relay.handling", lambda _pid, _number: Handling(catches, blocks=False))
    monkeypatch.setattr("wrappers.relay.handlers_below", lambda _pid, _number, told: [*{*below} - told])
    monkeypatch.setattr("wrappers.relay.os.kill", lambda pid, _number: sent.append(pid))
    request = Request(1, signal.SIGUSR1, lambda: now_s)
    assert not request.pass_on()
    now_s, catches, below = 29.0, True, [(1, 2), (1, 3, 4)]
    assert not request.pass_on()
    assert sent == [2, 4]
    now_s, catches, below = 31.0, False, [(1, 5)]
    assert not request.pass_on()
    now_s, below = 32.0, [(1, 6)]
    assert not request.pass_on()
    now_s, catches = 3600.0, True
    assert request.pass_on()
    assert sent == [2, 4, 5, 1]


def test_where_looking_takes_long_those_below_are_looked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looks_s = 0.0, list[float]()

    def look(_command: int, _number: int, _told: object) -> list[Lineage]:
        nonlocal now_s
        looks_s.append(now_s)
        now_s += 0.25
        return []

    monkeypatch.setattr("wrappers.relay.handling", lambda _pid, _number: Handling(catches=now_s > 20.0, blocks=False))
    monkeypatch.setattr("wrappers.relay.handlers_below", look)
    monkeypatch.setattr("wrappers.relay.os.kill", lambda _pid, _number: None)
    request = Request(1, signal.SIGUSR1, lambda: now_s)
    while not request.pass_on():
        now_s += 0.5
    assert looks_s == [0.0, 5.25, 10.5, 15.75]
    assert now_s == 20.5


def test_however_long_looking_takes_those_that_begin_to_handle_it_within_the_time_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, sent = 0.0, list[int]()

    def look(_command: int, _number: int, told: set[Lineage]) -> list[Lineage]:
        nonlocal now_s
        begun = {(1, pid) for pid, from_s in ((2, 0.0), (3, 5.0), (4, 28.0)) if now_s >= from_s}
        now_s += 2.0
        return [*begun - told]

    monkeypatch.setattr("wrappers.relay.handling", lambda _pid, _number: Handling(now_s > 60.0, blocks=False))
    monkeypatch.setattr("wrappers.relay.handlers_below", look)
    monkeypatch.setattr("wrappers.relay.os.kill", lambda pid, _number: sent.append(pid))
    request = Request(1, signal.SIGUSR1, lambda: now_s)
    while not request.pass_on():
        now_s += 0.5
    assert sent == [2, 3, 4, 1]


def test_those_that_have_ended_do_not_count_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(pid: int, _number: int) -> None:
        if pid == 2:
            raise ProcessLookupError
        sent.append(pid)

    now_s, catches, sent = 0.0, False, list[int]()
    monkeypatch.setattr("wrappers.relay.handling", lambda _pid, _number: Handling(catches, blocks=False))
    monkeypatch.setattr("wrappers.relay.handlers_below", lambda _pid, _number, told: [*{(1, 2)} - told])
    monkeypatch.setattr("wrappers.relay.os.kill", send)
    request = Request(1, signal.SIGUSR1, lambda: now_s)
    assert not request.pass_on()
    now_s, catches = 1.0, True
    assert request.pass_on()
    assert sent == [1]


def test_a_child_that_has_ended_handles_no_signal() -> None:
    """Until its parent has asked for its status, /proc shows its handlers."""
    code = "import signal; signal.signal(signal.SIGUSR1, print)"
    ended = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert ended.pid not in {pid for *_, pid in handlers_below(os.getpid(), signal.SIGUSR1, [])}
    assert ended.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGWINCH])
def test_any_signal_may_ask_for_a_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    script = f"trap 'exit 4' {int(number)}; echo ready >> {log}; while :; do sleep 0.05; done"
    environment = {**os.environ, "EXPLSCHED_CHECKPOINT": number.name}
    running = subprocess.Popen([*SXRUN, "--", "bash", "-c", script], env=environment)
    wait_for(log, "ready")
    running.send_signal(number)
    assert running.wait(timeout=60) == 4


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    """The terminal sends it to the command as well, so it is not passed on."""
    log = tmp_path / "log"
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, taken := [signal.SIGINT, signal.SIGTERM])\n"
        f"log = open({str(log)!r}, 'w', buffering=1); log.write('ready\\n')\n"
        "while (number := signal.sigwait(taken)) != signal.SIGTERM: log.write(f'{number.name}\\n')"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(SXRUN[0], [*SXRUN, "--", sys.executable, "-c", code])  # noqa: S606
    wait_for(log, "ready")
    os.kill(pid, signal.SIGSTOP)  # so that the command has taken the terminal's before one that is passed on
    os.write(terminal, b"\x03")
    wait_for(log, "SIGINT")
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert log.read_text() == "ready\nSIGINT\n"


def test_the_end_of_a_terminal_reaches_the_command(tmp_path: Path) -> None:
    """The kernel tells the leader of the session alone, which sxrun is here."""
    log = tmp_path / "log"
    script = f"trap 'echo hung up >> {log}; exit 4' HUP; echo ready >> {log}; for _ in {{1..200}}; do sleep 0.05; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(SXRUN[0], [*SXRUN, "--", "bash", "-c", script])  # noqa: S606
    wait_for(log, "ready")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert log.read_text() == "ready\nhung up\n"


def test_an_sxrun_within_sxrun_passes_it_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"trap 'exit 4' USR1; echo ready >> {log}; while :; do sleep 0.05; done"
    running = subprocess.Popen([*SXRUN, "--", *SXRUN, "--", "bash", "-c", script])
    wait_for(log, "ready")
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_command_that_becomes_another_users_keeps_its_exit_status() -> None:
    becomes = "import os, signal, sys; os.setuid(65534); signal.signal(signal.SIGUSR1, print); "
    becomes += "os.write(1, b'ready\\n'); sys.exit(int(input()))"
    running = subprocess.Popen(
        ["setpriv", "--bounding-set=-kill", *SXRUN, "--", sys.executable, "-c", becomes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None and running.stdout is not None and running.stderr is not None
    assert running.stdout.readline() == "ready\n"
    for name in ("SIGTERM", "SIGUSR1"):
        running.send_signal(signal.Signals[name])
        assert running.stderr.readline().startswith(f"sxrun: {name} cannot be passed on: process ")
    running.communicate("5\n")
    assert running.returncode == 5


def test_what_was_ignored_stays_ignored() -> None:
    """As SIGHUP under nohup."""
    ignore = "import os,signal,sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    code = "import signal,sys; sys.exit(3 if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else 0)"
    argv = [sys.executable, "-c", ignore, *SXRUN, "--", sys.executable, "-c", code]
    assert subprocess.run(argv, check=False).returncode == 3


def test_the_command_starts_with_the_signals_sxrun_was_given() -> None:
    code = (
        "import signal,sys; mask = signal.pthread_sigmask(signal.SIG_BLOCK, []);"
        "sys.exit(any(signal.getsignal(n) == signal.SIG_IGN for n in (10, 12, 15, 17)) or bool(mask))"
    )
    assert subprocess.run([*SXRUN, "--", sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("options", ["", "--signals-only", r"--log-regex '(?P<step>\d+)x(?P<loss>\d+)'"])
def test_the_command_inherits_what_is_open(options: str) -> None:
    """Files of `<(...)`, what `exec 3>` opened, and the socket to an MPI launcher, which PMI_FD names."""
    line = f'exec 3>&1; exec "$0" -m wrappers.sxrun {options} -- bash -c \'cat "$0"; echo three >&3\' <(echo file)'
    done = subprocess.run(["bash", "-c", line, sys.executable], stdout=subprocess.PIPE, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["file", "three"]


def test_an_inherited_disposition_of_sigchld_does_no_harm() -> None:
    ignore = "import os,signal,sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", ignore, *SXRUN, "--", "sh", "-c", "exit 5"]
    assert subprocess.run(argv, check=False).returncode == 5


def test_an_unknown_checkpoint_signal_is_said_and_the_command_runs() -> None:
    environment = {**os.environ, "EXPLSCHED_CHECKPOINT": "NONE"}
    listens = "from explsched import CheckpointSignal\nwith CheckpointSignal():\n    print('hello')"
    command = [sys.executable, "-c", listens]
    done = subprocess.run([*SXRUN, *command], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"
    assert "not a signal that a job can catch" in done.stderr


def test_output_comes_at_once_and_unchanged(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"printf '50%%\\r'; while [ ! -e {go} ]; do sleep 0.05; done; printf '\\377\\000 end'"
    regex = r"(?P<step>\d+)x(?P<loss>\d+)"
    running = subprocess.Popen([*SXRUN, "--log-regex", regex, "--", "bash", "-c", script], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert os.read(running.stdout.fileno(), 100) == b"50%\r"
    go.touch()
    assert running.communicate(timeout=60)[0] == b"\xff\x00 end"


def test_a_background_process_that_holds_the_output_does_not_hold_sxrun() -> None:
    argv = [*SXRUN, "--log-regex", r"(?P<step>\d+)x(?P<loss>\d+)", "--", "sh", "-c", "sleep 60 & echo $!; exit 3"]
    done = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert done.stdout is not None
    sleeper = int(done.stdout.readline())
    assert done.wait(timeout=50) == 3
    os.kill(sleeper, signal.SIGKILL)
    done.stdout.close()


def test_a_background_process_that_goes_on_printing_does_not_hold_sxrun() -> None:
    script = "for i in $(seq 60); do echo $$; sleep 1; done & exit 3"
    argv = [*SXRUN, "--log-regex", r"(?P<step>\d+)x(?P<loss>\d+)", "--", "sh", "-c", script]
    done = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert done.wait(timeout=50) == 3
    assert done.stdout is not None
    done.stdout.close()


def test_a_process_of_the_command_that_ends_a_little_later_loses_no_output() -> None:
    script = "exec > >(while read -r line; do sleep 0.5; echo late $line; done); seq 3"
    argv = [*SXRUN, "--log-regex", r"(?P<step>\d+)x(?P<loss>\d+)", "--", "bash", "-c", script]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == "late 1\nlate 2\nlate 3\n"


def test_a_reader_that_leaves_ends_the_command_as_without_sxrun() -> None:
    argv = [*SXRUN, "--log-regex", r"(?P<step>\d+)x(?P<loss>\d+)", "--", "yes"]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.readline()
    running.stdout.close()
    assert running.wait(timeout=60) in (1, 128 + signal.SIGPIPE)
