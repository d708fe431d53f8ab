"""The job scripts that templates make: their text, and what bash does with them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wrappers import template
from wrappers.template import SXRUN, TemplateError

PASSES_ON = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
SWEEP = f"""\
#!/usr/bin/env bash
#SBATCH --job-name=digits
#SBATCH --array=0-1%2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --time=60
# shellcheck disable=SC2016
set -u
case "$SLURM_ARRAY_TASK_ID" in
0) set -- --lr=0.1 ;;
1) set -- --lr=0.2 ;;
*) echo "no parameters for array task $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
esac
exec {SXRUN} -- python train.py "$@"
"""


def test_the_sweep_template() -> None:
    text = template.render(
        "sweep", {"name": "digits", "array_limit": "2"}, {"lr": ["0.1", "0.2"]}, ["python", "train.py"]
    )
    assert text == SWEEP


TORCHRUN = """\
#!/usr/bin/env bash
#SBATCH --job-name=torchrun
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=60
# shellcheck disable=SC2016
set -u
# A free port of the job's first node, where this runs; gateways' replicas and outgoing connections have higher ones.
for _ in {1..100}; do
  port=$((10000 + RANDOM % 10000))
  (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null || break
done
export EXPLSCHED_RENDEZVOUS_PORT="${EXPLSCHED_RENDEZVOUS_PORT:-$port}"
# The rendezvous is on the job's first node, where srun runs. Which node hosts it is said outright: torchrun would
# compare addresses, and a node may have several.
# Slurm signals the task alone or, with some ProctrackType, every process of the step. What has no handler yet, as a
# launcher or a starting sxrun, would die of a checkpoint signal, so all start ignoring it; the task's sxrun passes it
# on to workers once they have a handler of their own. torchrun starts Python itself.
exec @sxrun@ -- srun bash -c 'trap "" "${EXPLSCHED_CHECKPOINT:-USR1}"; exec "$@"' bash \\
  @sxrun@ --signals-only -- bash -c '
case ${1-} in python | python3) shift ;; esac
exec torchrun --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-conf="is_host=$((SLURM_NODEID == 0))" \\
  --rdzv-endpoint="$SLURM_LAUNCH_NODE_IPADDR:$EXPLSCHED_RENDEZVOUS_PORT" \\
  --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" "$@"' bash \\
train.py '--note=$(touch x)'
""".replace("@sxrun@", SXRUN)


def test_the_torchrun_template() -> None:
    command = ["train.py", "--note=$(touch x)"]
    assert template.render("torchrun", {"nodes": "2", "gpus": "4"}, {}, command) == TORCHRUN


def test_a_job_whose_path_has_no_sxrun_finds_that_of_the_installation(tmp_path: Path) -> None:
    """As with --export=NONE, or where sxbatch was called by its path."""
    bash, echo = (str(shutil.which(name)) for name in ("bash", "echo"))
    (tmp_path / "echo").symlink_to(echo)
    here = {"PATH": str(tmp_path), "SLURM_ARRAY_TASK_ID": "0"}
    text = template.render("sweep", {}, {"lr": ["0.1"]}, ["echo", "$HOME"])
    done = subprocess.run([bash, "-c", text], env=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "$HOME --lr=0.1\n", "")


def test_torchrun_gets_the_command_and_ignores_the_checkpoint_signal(tmp_path: Path) -> None:
    """bash runs the script with stand-ins for Slurm and torchrun: what arrives, and in what state."""
    show = (
        f"#!{sys.executable}\nimport signal, sys\n"
        "print(sys.argv[1:], signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)\n"
    )
    stand_ins = {
        "sxrun": PASSES_ON,
        "srun": '#!/bin/sh\nexec "$@"\n',
        "torchrun": show,
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_ID": "10042", "SLURM_NODEID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    environment |= {"SLURM_NNODES": "3", "SLURM_GPUS_ON_NODE": "4", "EXPLSCHED_RENDEZVOUS_PORT": "12042"}
    text = template.render("torchrun", {}, {}, ["train.py", "$(touch canary)", "a\nb"])
    done = subprocess.run(
        ["bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rendezvous = ["--rdzv-id=10042", "--rdzv-backend=c10d", "--rdzv-conf=is_host=0", "--rdzv-endpoint=10.0.0.7:12042"]
    shape = ["--nnodes=3", "--nproc-per-node=4"]
    assert done.stdout == f"{[*rendezvous, *shape, 'train.py', '$(touch canary)', 'a' + chr(10) + 'b']} True\n"
    assert not (tmp_path / "canary").exists()


WORKER = """\
from pathlib import Path
from signal import alarm
from time import sleep
from explsched import CheckpointSignal
alarm(120)
with CheckpointSignal() as checkpoint:
    Path("ready").touch()
    while not checkpoint.requested:
        sleep(0.02)
"""


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_workers_are_asked_for_a_checkpoint_where_slurm_signals_the_task_alone(launcher: str, tmp_path: Path) -> None:
    """As with proctrack/cgroup; the launcher starts its worker in a session of its own."""
    code = "import signal, subprocess, sys\ntask = subprocess.Popen(sys.argv[1:])\n"
    signals = "signal.signal(signal.SIGUSR1, lambda number, _: task.send_signal(number))\nsys.exit(task.wait())\n"
    starts = (
        "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, 'worker.py'], start_new_session=True))\n"
    )
    stand_ins = {
        "sxrun": f'#!/bin/sh\nexec {sys.executable} -m wrappers.sxrun "$@"\n',
        "srun": f"#!{sys.executable}\n{code}{signals}",
        launcher: f"#!{sys.executable}\n{starts}",
        "scontrol": "#!/bin/sh\necho n1\n",
    }
    for name, text in {**stand_ins, "worker.py": WORKER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    here = {**os.environ, **SLURM, **ON_SECOND, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    here |= {"PYTHONPATH": os.pathsep.join(sys.path), "EXPLSCHED_RENDEZVOUS_PORT": "12042", "SLURM_JOB_NODELIST": "n1"}
    here["EXPLSCHED_PROGRESS_FILE"] = str(tmp_path / "progress")
    running = subprocess.Popen(["bash", "-c", template.render(launcher, {}, {}, ["worker.py"])], env=here, cwd=tmp_path)
    while not (tmp_path / "ready").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 0
    told = [json.loads(line).get("event") for line in (tmp_path / "progress").read_text().splitlines()]
    assert told == ["start", "end"]


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_checkpoint_signal_at_the_start_of_a_task_does_not_end_it(launcher: str, tmp_path: Path) -> None:
    """Before the task's sxrun, whose Python takes its time, can hold signals back."""
    waits = "touch begun; while [ ! -e signalled ]; do sleep 0.02; done"
    passes_on = "task.send_signal(number), open('signalled', 'w').close()"
    stand_ins = {
        "sxrun": f'#!/bin/sh\n[ "$1" = -- ] || {{ {waits}; }}\nexec {sys.executable} -m wrappers.sxrun "$@"\n',
        "srun": f"#!{sys.executable}\nimport signal, subprocess, sys\ntask = subprocess.Popen(sys.argv[1:])\n"
        f"signal.signal(signal.SIGUSR1, lambda number, _: ({passes_on}))\nsys.exit(task.wait())\n",
        launcher: "#!/bin/sh\nexit 5\n",
        "scontrol": "#!/bin/sh\necho n1\n",
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    here = {**os.environ, **SLURM, **ON_SECOND, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    here |= {"PYTHONPATH": os.pathsep.join(sys.path), "EXPLSCHED_RENDEZVOUS_PORT": "12042", "SLURM_JOB_NODELIST": "n1"}
    here["EXPLSCHED_PROGRESS_FILE"] = str(tmp_path / "progress")
    running = subprocess.Popen(["bash", "-c", template.render(launcher, {}, {}, ["worker.py"])], env=here, cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=60) == 5


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
@pytest.mark.parametrize("python", [[], ["python"], ["python3"]])
def test_launchers_that_start_python_are_not_given_it(launcher: str, python: list[str], tmp_path: Path) -> None:
    text = template.render(launcher, {}, {}, [*python, "train.py", "python"])
    here = {**SLURM, **ON_SECOND, "SLURM_JOB_NODELIST": "n1", "EXPLSCHED_RENDEZVOUS_PORT": "12042"}
    stand_ins = {launcher: '#!/bin/sh\necho "$@"\n', "scontrol": "#!/bin/sh\necho n1\n"}
    found = with_stand_ins(tmp_path, text, stand_ins, TMPDIR=str(tmp_path), **here)
    command = found.splitlines()[0].split()
    assert command[command.index("train.py") :] == ["train.py", "python"]
    assert not {"python", "python3"} & {*command[: command.index("train.py")]}


def with_stand_ins(directory: Path, text: str, stand_ins: dict[str, str], **environment: str) -> str:
    """What bash makes of a job script where these programs stand in for the real ones."""
    programs = {"sxrun": PASSES_ON, "srun": '#!/bin/sh\nexec "$@"\n', **stand_ins}
    for name, content in programs.items():
        (directory / name).write_text(content)
        (directory / name).chmod(0o755)
    everything = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", **environment}
    argv = ["bash", "-c", text]
    done = subprocess.run(argv, env=everything, cwd=directory, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}exit {done.returncode}\n"


SLURM = {"SLURM_JOB_ID": "10042", "SLURM_NNODES": "2", "SLURM_NTASKS": "8", "SLURM_GPUS_ON_NODE": "4"}
ON_SECOND = {"SLURM_NODEID": "1", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}


def test_deepspeed_gets_a_hostfile_that_goes_when_it_ends(tmp_path: Path) -> None:
    show = '#!/bin/sh\necho "$@"\ncat "$2"\nexit 3\n'
    nodes = "#!/bin/sh\nprintf 'n1\\nn2\\n'\n"
    text = template.render("deepspeed", {}, {}, ["train.py", "$(touch canary)"])
    here = {**SLURM, **ON_SECOND, "SLURM_JOB_NODELIST": "n[1-2]", "TMPDIR": str(tmp_path)}
    here["EXPLSCHED_RENDEZVOUS_PORT"] = "12042"
    found = with_stand_ins(tmp_path, text, {"deepspeed": show, "scontrol": nodes}, **here)
    options, *hostfile, status = found.splitlines()
    wanted = "--no_ssh --node_rank 1 --master_addr 127.0.0.1 --master_port 12042 train.py $(touch canary)"
    assert options.split(" ", 2)[2] == wanted
    assert (hostfile, status) == (["n1 slots=4", "n2 slots=4"], "exit 3")
    assert not list(tmp_path.glob("explsched-*"))
    assert not (tmp_path / "canary").exists()


def test_horovod_tasks_learn_their_ranks_once_the_rendezvous_is_there(tmp_path: Path) -> None:
    show = f"#!{sys.executable}\nimport os, signal\nprint(signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN)\n"
    show += "print(sorted(f'{k[8:]}={v}' for k, v in os.environ.items() if k.startswith('HOROVOD_')))\n"
    (tmp_path / "train").write_text(show)
    (tmp_path / "train").chmod(0o755)
    text = template.render("horovod", {}, {}, ["train"])
    with socket.create_server(("127.0.0.1", 0)) as rendezvous:
        port = rendezvous.getsockname()[1]
        here = {**SLURM, **ON_SECOND, "SLURMD_NODENAME": "n2", "EXPLSCHED_RENDEZVOUS_PORT": str(port)}
        listens, variables, status = with_stand_ins(tmp_path, text, {}, **here).splitlines()
    assert (listens, status) == ("True", "exit 0")
    assert eval(variables) == sorted(  # noqa: S307  what the stand-in printed
        [
            "CONTROLLER=gloo",
            "CPU_OPERATIONS=gloo",
            "RANK=5",
            "SIZE=8",
            "LOCAL_RANK=1",
            "LOCAL_SIZE=4",
            "CROSS_RANK=1",
            "CROSS_SIZE=2",
            "HOSTNAME=n2",
            "GLOO_RENDEZVOUS_ADDR=127.0.0.1",
            f"GLOO_RENDEZVOUS_PORT={port}",
        ]
    )


def test_horovods_rendezvous_server_runs_in_the_python_of_the_training(tmp_path: Path) -> None:
    """That of PATH may be none, or have no Horovod."""
    serves = "import socket, sys; socket.create_server((sys.argv[1], int(sys.argv[2]))).accept()"
    of_training = f'#!/bin/sh\n[ "$1" = -c ] || exec echo trains\nexec {sys.executable} -c "{serves}" 127.0.0.1 "$3"\n'
    of_path = "#!/bin/sh\nkill $PPID\n"
    text = template.render("horovod", {}, {}, [str(tmp_path / "python3.11"), "train.py"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    here = {**SLURM, **ON_SECOND, "SLURM_PROCID": "0", "SLURMD_NODENAME": "n2", "EXPLSCHED_RENDEZVOUS_PORT": port}
    stand_ins = {"python3.11": of_training, "python": of_path}
    assert with_stand_ins(tmp_path, text, stand_ins, **here) == "trains\nexit 0\n"


def test_processes_meet_at_a_port_that_is_free_and_no_replicas(tmp_path: Path) -> None:
    """Whatever bash draws first is taken; a job that is requeued draws again."""
    script = template.render("torchrun", {}, {}, ["train.py"])
    text = script.replace("set -u\n", "set -u\nRANDOM=7\n", 1)
    show = {"torchrun": '#!/bin/sh\necho "${4##*:}"\n'}
    first = with_stand_ins(tmp_path, text, show, **SLURM, **ON_SECOND).splitlines()[0]
    assert 10000 <= int(first) < 20000
    with socket.create_server(("127.0.0.1", int(first))):
        second = with_stand_ins(tmp_path, text, show, **SLURM, **ON_SECOND).splitlines()[0]
    assert 10000 <= int(second) < 20000
    assert first != second


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("sweep", {"x": ["$(a)", "`b`", "'"]}),
        ("torchrun", {}),
        ("horovod", {}),
        ("deepspeed", {}),
    ],
)
def test_shellcheck_finds_nothing(name: str, grid: dict[str, list[str]]) -> None:
    text = template.render(name, {}, grid, ["python", "$HOME"])
    done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_template_of_ones_own_quotes_what_it_inserts(tmp_path: Path) -> None:
    (tmp_path / "mine.sh.j2").write_text("echo {{ command[0] }} {{ grid[0].x }} {{ name | q }}\n")
    (tmp_path / "mine.toml").write_text("sweeps = true\n[parameters]\nname = 'n'\n")
    text = template.render(str(tmp_path / "mine.sh.j2"), {}, {"x": ["$(x)"]}, ["a b"])
    assert text == "echo 'a b' '$(x)' n\n"


@pytest.mark.parametrize(
    ("body", "declaration", "words"),
    [
        ("{{ nmae }}", "", "nmae"),
        ("{{", "", "mine"),
        ("x", "[parameters", "mine"),
        ("x", "required = ['w']\n[parameters]\nw = ''", "needs --param w="),
    ],
)
def test_faults_of_ones_own_template_are_named(tmp_path: Path, body: str, declaration: str, words: str) -> None:
    (tmp_path / "mine.sh.j2").write_text(body)
    (tmp_path / "mine.toml").write_text(declaration)
    with pytest.raises(TemplateError, match=words):
        template.render(str(tmp_path / "mine.sh.j2"), {}, {}, ["x"])


HOSTILE = [
    "$(touch canary)",
    "`touch canary`",
    "'; touch canary; '",
    "a\nb",
    "\u00e9\u2603",
    '"$HOME"',
    "a b",
    "\\",
    "*",
]


def test_hostile_values_reach_the_command_as_they_are(tmp_path: Path) -> None:
    """The rendered script is run by bash: every value arrives literally, and nothing else is executed."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sxrun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tools / "sxrun").chmod(0o755)
    show = [sys.executable, "-c", "import sys; sys.stdout.write(repr(sys.argv[1:]))", "fixed $(touch canary)"]
    text = template.render("sweep", {}, {"x": HOSTILE}, show)
    for task, value in enumerate(HOSTILE):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == repr(["fixed $(touch canary)", f"--x={value}"])
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("sweeep", {}, {}, ["x"]), "unknown template 'sweeep'.*sweep, torchrun"),
        (("sweep", {"gpu": "1"}, {}, ["x"]), "no parameter 'gpu'.*name, gpus"),
        (("sweep", {"name": "a\n#SBATCH --uid=0"}, {}, ["x"]), "name='a"),
        (("sweep", {"name": "$(x)"}, {}, ["x"]), "accepted"),
        (("sweep", {}, {"a b": ["1"]}, ["x"]), "not a name"),
        (("sweep", {}, {"a": ["1"]}, []), "needs a command"),
        (("sweep", {}, {"a": ["\0"]}, ["x"]), "NUL"),
        (("sweep", {"gpus": ""}, {}, ["x"]), "needs --param gpus="),
        (("torchrun", {}, {"lr": ["1"]}, ["x"]), "takes no --param-grid"),
    ],
)
def test_template_faults_are_named(call: tuple[object, ...], words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        template.render(*call)
