"""Taking an sbatch command line apart."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wrappers import sxbatch
from wrappers.sbatch_options import read_script, split

OWN = {"sweep": True, "early-stop": False}


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that records its arguments and answers as --parsable does; returns the record."""
    program = tmp_path / "sbatch"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --help ]; then printf "  --sweepy=x  a SPANK option \\351\\n"; exit; fi\n'
        f'printf "%s\\n" "$@" > {tmp_path}/record\nenv > {tmp_path}/env\necho "17;east"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith(("SXBATCH_", "SBATCH_", "EXPLSCHED_"))]:
        monkeypatch.delenv(name)
    return tmp_path / "record"


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.sh").write_text("#!/bin/sh\ntrue\n")
    return str(tmp_path / "train.sh")


def test_a_word_that_can_be_no_file_is_left_to_sbatch(script: str) -> None:
    """For a closed directory the kernel has an error, too, and no answer; but not for root."""
    word = "x" * 5000
    assert read_script(word, ".") is None
    assert split(["--new-option", word, script], OWN).rest == (script,)


@pytest.mark.parametrize(
    "before",
    [
        ["--nice"],
        ["-k"],
        ["-F", "hosts"],
        ["--propagate"],
        ["--exclusive"],
        ["-N2"],
        ["-HN", "2"],
        ["-vvo", "out.txt"],
        ["--job", "x"],
        ["--job-name=--sweep"],
        ["-J", "--sweep"],
        ["--comment", "--early-stop"],
        ["--container-image", "ubuntu"],
        ["--new-switch"],
        ["-W", "--wrap", "sleep 1"],
        ["--oom-kill-step", "--tasks-per-node", "4", "--resources", "x", "--spread-segments"],
        ["--gres=gpu:1", ":", "--gres", "gpu:2", ":", "-N2"],
    ],
)
def test_options_of_sbatch_are_told_from_the_script(before: list[str], script: str) -> None:
    line = split([*before, "--sweep", "s", script, "--sweep", "the script's", "--", "-N"], OWN)
    assert line.own == ("--sweep=s",)
    assert [word for option in line.options for word in option.words] == before
    assert line.rest == (script, "--sweep", "the script's", "--", "-N")


def test_two_dashes_end_the_options() -> None:
    assert split(["--early-stop", "--", "--sweep", "x"], OWN).rest == ("--sweep", "x")


def test_the_script_may_not_exist_here(sbatch: Path) -> None:
    assert sxbatch.main(["--early-stop", "elsewhere.sh", "--sweep", "x"]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:early-stop=1", "elsewhere.sh", "--sweep", "x"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sweeep", "x", "a.sh"], "did you mean --sweep?"),
        (["--check=USR1", "a.sh"], "did you mean --checkpoint?"),
        (["--sweep"], "--sweep needs a value"),
        (["--checkpoint", "KILL", "a.sh"], "accepted: USR1, USR2"),
        (["--direction", "up", "a.sh"], "--direction"),
        (["--early-stop=yes", "a.sh"], "--early-stop"),
        (["--array-limit", "2", "a.sh"], "need --template"),
        (["--array-limit", "0", "--template", "sweep", "x"], "whole number"),
        (["--template", "sweep", "--param", "a", "x"], "is not KEY=VALUE"),
        (["--template", "sweep", "--param-grid", "a=1", "--param-grid", "a=2", "x"], "twice"),
        (["--early-stop", "--comment=explsched:sweep=x", "a.sh"], "conflicts with"),
        (["--early-stop", f"--comment={'x' * 1002}", "a.sh"], "has 1025 bytes"),
        (["--checkpoint=USR1", "--no-requeue", "a.sh"], "--checkpoint with --no-requeue"),
        (["--template=sweep", "--wrap=true", "x"], "--template and --wrap"),
    ],
)
def test_errors_of_ours(sbatch: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sxbatch.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("sxbatch: error: ")
    assert complaint in error
    assert not sbatch.exists()


def test_an_option_that_the_sites_sbatch_has_is_not_ours(sbatch: Path, script: str) -> None:
    assert sxbatch.main(["--sweepy=1", script]) == 0
    assert sbatch.read_text().splitlines() == ["--sweepy=1", script]


@pytest.mark.parametrize("given", [["--comment", "mine"], ["--comm=mine"], []])
def test_the_users_comment_is_kept_wherever_it_comes_from(sbatch: Path, given: list[str], tmp_path: Path) -> None:
    script = tmp_path / "commented.sh"
    script.write_text("#!/bin/sh\n#SBATCH -N 1 --comment='in the script' # why\n" if not given else "#!/bin/sh\n")
    sxbatch.main(["--early-stop", *given, str(script)])
    own = "mine" if given else "in the script"
    assert sbatch.read_text().splitlines() == [f"--comment=explsched:early-stop=1 {own}", str(script)]


def test_options_of_ours_are_for_the_first_component_of_a_heterogeneous_job(sbatch: Path, tmp_path: Path) -> None:
    script = tmp_path / "two.sh"
    script.write_text("#!/bin/sh\n#SXBATCH --early-stop\n")
    words = ["--sweep=s", "--comment=a", "-N1", ":", "--comment=a", "-N2", str(script), "--lr=3"]
    assert sxbatch.main(words) == 0
    own = "--comment=explsched:sweep=s&params=lr%3D3&early-stop=1 a"
    assert sbatch.read_text().splitlines() == [own, "-N1", ":", "--comment=a", "-N2", str(script), "--lr=3"]


def test_a_script_on_path_is_read_as_sbatch_finds_it(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#SXBATCH --early-stop\n")  # beside sbatch
    monkeypatch.chdir(tmp_path / "here")
    assert sxbatch.main(["train.sh"]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:early-stop=1", "train.sh"]
    (tmp_path / "here/train.sh").write_text("#!/bin/sh\n")
    assert sxbatch.main(["train.sh"]) == 0
    assert sbatch.read_text().splitlines() == ["train.sh"]


@pytest.mark.parametrize(
    "chdir", [["-D", "job"], ["-Djob"], ["-HD", "job"], ["--chd=job"], ["-D", "x", "--chdir", "job"]]
)
@pytest.mark.parametrize(
    ("name", "sweep"),
    [("train.sh", "of-job"), ("./train.sh", "of-here"), ("here.sh", "of-path"), ("only.sh", "of-here")],
)
def test_a_script_is_sought_in_the_jobs_directory_first(
    sbatch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chdir: list[str], name: str, sweep: str
) -> None:
    """Then on PATH, and in the working directory at last, unless it begins with a dot."""
    here = tmp_path / "here"
    for path, its in {
        here / "job" / "train.sh": "of-job",
        here / "train.sh": "of-here",
        here / "here.sh": "of-here",
        here / "only.sh": "of-here",
        tmp_path / "here.sh": "of-path",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n#SXBATCH --sweep {its}\n")
    monkeypatch.chdir(here)
    assert sxbatch.main([*chdir, name]) == 0
    assert sbatch.read_text().splitlines() == [f"--comment=explsched:sweep={sweep}", *chdir, name]


def test_hyper_parameters_that_make_a_comment_too_long_for_slurm_are_left_out(sbatch: Path, script: str) -> None:
    users = "x" * 995
    assert sxbatch.main(["--sweep=s", f"--comment={users}", script, "--lr=3"]) == 0
    assert sbatch.read_text().splitlines() == [f"--comment=explsched:sweep=s {users}", script, "--lr=3"]


def test_a_variable_that_sbatch_does_not_read_is_no_comment(
    sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_COMMENT", "of others")
    assert sxbatch.main(["--early-stop", script]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:early-stop=1", script]


@pytest.mark.parametrize(
    "head",
    [
        "\t# an indented comment",
        "# a page\x0c break, a \x85 and a \u2028",
        "#SXBATCH--sweep=x",
        r"#SBATCH --mail-user='it\'s ours'",
        "#SBATCH --gres=gpu:1 \\",
        r'#SBATCH --comment="m\ine" # mine',
        r"#SBATCH --comment='m\ine' # mine",
        "#SBATCH --comment=of-the-first\n#SBATCH--comment=mine\n#SBATCH hetjob\n#SBATCH --comment=of-the-second",
    ],
)
def test_lines_of_a_script_are_read_as_sbatch_reads_them(sbatch: Path, tmp_path: Path, head: str) -> None:
    script = tmp_path / "odd.sh"
    mine = "" if "mine" in head else "#SBATCH --comment=mine\n"
    own = "" if "sweep" in head else "#SXBATCH --sweep=x\n"
    script.write_text(f"#!/bin/sh\n{head}\n{mine}{own}true\n")
    sxbatch.main([str(script)])
    assert sbatch.read_text().splitlines() == ["--comment=explsched:sweep=x mine", str(script)]


@pytest.mark.parametrize("line", ["#SBATCH --comment='mine", '#SXBATCH --sweep="x', r"#SBATCH --comment='mine\'"])
def test_a_quote_that_is_not_closed_is_told_by_its_line(
    sbatch: Path, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "open.sh"
    script.write_text(f"#!/bin/sh\n{line}\ntrue\n")
    assert sxbatch.main(["--early-stop", str(script)]) == 2
    assert "line 2 of the script: #S" in capsys.readouterr().err
    assert not sbatch.exists()


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_script_may_come_from_standard_input(sbatch: Path, tmp_path: Path, words: list[str]) -> None:
    script = b"#!/bin/sh\n#SBATCH --comment=mine\n#SXBATCH --sweep=x\necho \xe9\n"
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {sbatch}\ncat > {tmp_path}/stdin\necho 17\n')
    argv = [sys.executable, "-m", "wrappers.sxbatch", *words, "-N1"]
    subprocess.run(argv, input=script, check=True)
    assert sbatch.read_text().splitlines()[-2:] == ["--comment=explsched:sweep=x mine", "-N1"]
    assert (tmp_path / "stdin").read_bytes() == script


def test_a_generated_script_leaves_no_file_and_takes_any_name(sbatch: Path, tmp_path: Path) -> None:
    """Whatever ends sxbatch: sbatch reads the script from standard input."""
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat > {tmp_path}/stdin\nls $TMPDIR > {sbatch}\nkill -9 $PPID\n")
    (tmp_path / "tmp").mkdir()
    argv = [sys.executable, "-m", "wrappers.sxbatch", "--template=sweep", "--", "python", b"caf\xe9.py"]
    done = subprocess.run(argv, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}, check=False)
    assert (done.returncode, sbatch.read_text()) == (-signal.SIGKILL, "")
    assert b"caf\xe9.py" in (tmp_path / "stdin").read_bytes()


@pytest.mark.parametrize("word", ["--wrap=true", "-V", "--usage"])
def test_standard_input_is_left_alone_where_sbatch_does_not_read_it(
    sbatch: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sys.stdin")
    assert sxbatch.main(["--sweep=x", word]) == 0


def test_without_options_of_ours_nothing_changes(sbatch: Path, script: str) -> None:
    words = ["--comment", "mine", "-t", "5", script, "a b", ""]
    sxbatch.main(words)
    assert sbatch.read_text() == "".join(f"{word}\n" for word in words)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--swep=x", "line 2 of the script: #SXBATCH '--swep=x'"),
        ("--direction=up", "line 2 of the script"),
        ("--sweep='x", "line 2 of the script"),
        ("sweep", "line 2 of the script"),
    ],
)
def test_faults_of_script_lines_are_named(
    sbatch: Path, tmp_path: Path, line: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.sh").write_text(f"#!/bin/sh\n#SXBATCH {line}\n")
    assert sxbatch.main([str(tmp_path / "bad.sh")]) == 2
    assert complaint in capsys.readouterr().err


def test_lines_behind_the_first_command_are_text(sbatch: Path, tmp_path: Path) -> None:
    (tmp_path / "late.sh").write_text("#!/bin/sh\ncat <<X\n#SXBATCH --sweep=x\nX\n")
    sxbatch.main([str(tmp_path / "late.sh")])
    assert sbatch.read_text().splitlines() == [str(tmp_path / "late.sh")]


def test_a_pipe_is_not_read_twice(sbatch: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert sxbatch.main(["--early-stop", str(tmp_path / "pipe")]) == 0


def test_the_job_learns_its_metric_and_signal(sbatch: Path, script: str, tmp_path: Path) -> None:
    sxbatch.main(["--metric", "acc", "--checkpoint", "sigusr2", script])
    environment = (tmp_path / "env").read_text().splitlines()
    assert {"EXPLSCHED_METRIC=acc", "EXPLSCHED_CHECKPOINT=USR2"} <= set(environment)


@pytest.mark.parametrize(
    ("export", "chosen", "warnings"),
    [("NONE", "USR2", 1), ("HOME", "USR2", 1), ("ALL,X=1", "USR2", 0), ("NONE", "USR1", 0)],  # USR1: so jobs assume
)
def test_an_export_that_hides_the_signal_is_said(
    sbatch: Path, script: str, export: str, chosen: str, warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sxbatch.main([f"--checkpoint={chosen}", f"--export={export}", script])
    assert capsys.readouterr().err.count("EXPLSCHED_CHECKPOINT") == warnings


def test_a_line_of_the_script_that_hides_the_signal_is_said(
    sbatch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "bare.sh"
    script.write_text("#!/bin/sh\n#SBATCH --export=NONE\n")
    sxbatch.main(["--checkpoint=USR2", str(script)])
    sxbatch.main(["--checkpoint=USR2", "--export=ALL", str(script)])
    assert capsys.readouterr().err.count("EXPLSCHED_CHECKPOINT") == 1


def test_json_of_a_job_that_is_waited_for_and_fails(sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sbatch.parent / "sbatch").write_text("#!/bin/sh\necho 17\nexit 3\n")
    assert sxbatch.main(["--json", "--wait", "--wrap=false"]) == 3
    assert json.loads(capsys.readouterr().out)["job_id"] == 17


def test_json(sbatch: Path, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sxbatch.main(["--json", "--early-stop", script]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["job_id"], found["cluster"]) == (17, "east")
    assert sbatch.read_text().splitlines()[0] == "--parsable"
    assert sxbatch.main(["--json", "--dry-run", script]) == 0
    assert json.loads(capsys.readouterr().out)["script"] == "#!/bin/sh\ntrue\n"


def test_a_dry_run_is_one_comment_line_and_the_script(
    sbatch: Path, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sxbatch.main(["--dry-run", "--early-stop", "--comment", "a\ntouch canary\x1b[2J é'", script])
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first.startswith(
        "# EXPLSCHED_EARLY_STOP=1 sbatch $'--comment=explsched:early-stop=1 a\\x0atouch canary\\x1b[2J "
    )
    assert rest == Path(script).read_text()


def test_a_script_whose_name_begins_like_an_option(sbatch: Path) -> None:
    assert sxbatch.main(["--early-stop", "--", "-odd.sh", "-x"]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:early-stop=1", "--", "-odd.sh", "-x"]


def test_an_empty_value_sets_the_environment_aside(sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_SWEEP", "of-the-variable")
    assert sxbatch.main(["--sweep=", "--metric=acc", script]) == 0
    assert sbatch.read_text().splitlines()[0] == "--comment=explsched:metric=acc"
    assert "EXPLSCHED_SWEEP=" in (sbatch.parent / "env").read_text().splitlines()  # nor does the SPANK plugin take it


def test_a_variable_with_nonsense_is_named_and_ignored(
    sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sbatch would hand them on: a training that is told an unknown signal ends."""
    for name, value in {"DIRECTION": "up", "CHECKPOINT": "FOO", "METRIC": "acc"}.items():
        monkeypatch.setenv(f"EXPLSCHED_{name}", value)
    assert sxbatch.main([script]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:metric=acc", script]
    told = capsys.readouterr().err
    assert "EXPLSCHED_DIRECTION is ignored: found 'up', accepted: min, max" in told
    assert "EXPLSCHED_CHECKPOINT is ignored: found 'FOO'" in told
    given = (sbatch.parent / "env").read_text()
    assert [name for name in ("DIRECTION", "CHECKPOINT", "METRIC") if f"EXPLSCHED_{name}=" in given] == ["METRIC"]


def test_a_job_does_not_consent_for_those_that_it_submits(
    sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLSCHED_CHECKPOINT", "USR1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert sxbatch.main([script]) == 0
    assert sbatch.read_text().splitlines() == [script]
    monkeypatch.delenv("SLURM_JOB_ID")
    assert sxbatch.main([script]) == 0
    assert sbatch.read_text().splitlines() == [
        "--comment=explsched:checkpoint=USR1",
        "--requeue",
        "--open-mode=append",
        script,
    ]


def test_a_job_is_not_told_of_the_one_that_submits_it(
    sbatch: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As inside of a step, in the second run of a job on shards; sbatch hands on whatever it is given."""
    of_outer = {
        "EXPLSCHED_CHECKPOINT": "USR1",
        "EXPLSCHED_ELASTIC": "1-4",
        "EXPLSCHED_RENDEZVOUS_PORT": "12042",
        "EXPLSCHED_STAGES_DIRECTORY": "/run/stages",
        "EXPLSCHED_SUB_BATCHES": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_RESTART_COUNT": "1",
        "SLURM_SHARDS_ON_NODE": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    kept = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CONF": "/etc/slurm.conf", "EXPLSCHED_METRIC": "acc"}
    for name, value in {**of_outer, **kept, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    assert sxbatch.main(["--elastic=2-8", script]) == 0
    told = dict(line.split("=", 1) for line in (sbatch.parent / "env").read_text().splitlines() if "=" in line)
    assert told.items() >= kept.items()
    assert {name: told[name] for name in of_outer if name in told} == {"EXPLSCHED_ELASTIC": "2-8"}
    monkeypatch.delenv("SLURM_JOB_ID")
    assert sxbatch.main([script]) == 0
    assert "EXPLSCHED_SUB_BATCHES=2" in (sbatch.parent / "env").read_text().splitlines()


def test_sharing_a_gpu_can_be_asked_for_at_submission(sbatch: Path, script: str) -> None:
    assert sxbatch.main(["--share=best-effort", "--limit", "0.30", script]) == 0
    assert sbatch.read_text().splitlines() == ["--comment=explsched:share=best-effort&limit=0.3", script]
    assert {"EXPLSCHED_SHARE=best-effort", "EXPLSCHED_LIMIT=0.3"} <= set(
        (sbatch.parent / "env").read_text().splitlines()
    )


def test_an_sbatch_that_a_signal_ends_is_told_as_a_shell_does(sbatch: Path) -> None:
    (sbatch.parent / "sbatch").write_text("#!/bin/sh\nkill -PIPE $$\n")
    assert sxbatch.main(["--wrap", "true"]) == sxbatch.main(["--json", "--wrap", "true"]) == 128 + signal.SIGPIPE
