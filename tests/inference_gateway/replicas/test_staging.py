"""A model is on the node's disk once, whole, and as its source is."""

import codecs
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference_gateway.replicas.gang import Gang, Stage, StagingError, filled

OTHER = 20001
"""A uid that nobody has."""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    source = tmp_path / "shared" / "model"
    (source / "deep").mkdir(parents=True)
    (source / "weights").write_bytes(b"w" * 1000)
    (source / "deep" / "more").write_text("m")
    return Stage(source, tmp_path / "local")


def inodes(stage: Stage) -> list[int]:
    return [path.stat().st_ino for path in sorted(stage.copy.rglob("*"))]


def test_it_is_copied_once(stage: Stage) -> None:
    assert stage.bring() == stage.copy
    assert stage.copy.name == "model", "servers name a model by its directory"
    assert (stage.copy / "deep" / "more").read_text() == "m"
    before = inodes(stage)
    stage.bring()
    assert inodes(stage) == before


def test_two_replicas_of_a_node_copy_once(stage: Stage) -> None:
    code = "import sys; from pathlib import Path; from inference_gateway.replicas.gang import Stage;"
    code += "Stage(Path(sys.argv[1]), Path(sys.argv[2])).bring()"
    copies = [subprocess.Popen([sys.executable, "-c", code, stage.source, stage.target]) for _ in range(4)]
    assert [copy.wait(60) for copy in copies] == [0] * 4
    before = inodes(stage)
    stage.bring()
    assert inodes(stage) == before


def test_a_changed_source_and_a_torn_copy_are_copied_anew(stage: Stage) -> None:
    stage.bring()
    (stage.source / "weights").write_bytes(b"x" * 1001)
    stage.bring()
    assert (stage.copy / "weights").read_bytes() == b"x" * 1001
    (stage.copy.parent / ".model.staged").unlink()
    (stage.copy.parent / ".model.new").mkdir()
    (stage.copy / "weights").write_bytes(b"half")
    stage.bring()
    assert (stage.copy / "weights").read_bytes() == b"x" * 1001
    assert sorted(path.name for path in stage.copy.parent.iterdir()) == [".model.lock", ".model.staged", "model"]


def test_models_of_the_same_name_do_not_replace_each_other(tmp_path: Path) -> None:
    stages = [Stage(tmp_path / model / "fp8", tmp_path / "local") for model in ("llama", "qwen")]
    for stage in stages:
        stage.source.mkdir(parents=True)
        (stage.source / "weights").write_text(stage.source.parent.name)
    copies = [stage.bring() for stage in stages]
    assert [(copy / "weights").read_text() for copy in copies] == ["llama", "qwen"]
    assert {copy.name for copy in copies} == {"fp8"}


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Without root's rights: for root nothing is read-only."""
    codecs.lookup("ascii")  # others may not be allowed to load modules
    if os.getuid() != 0:
        yield
        return
    os.setresuid(OTHER, OTHER, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_model_in_read_only_directories_is_replaced_as_often_as_it_changes(open_tmp: Path) -> None:
    directory = Path(tempfile.mkdtemp(dir=open_tmp))
    os.chown(directory, OTHER if os.getuid() == 0 else -1, -1)
    stage = Stage(directory / "model", directory / "local")
    deep = stage.source / "deep"
    with ordinary_user():
        deep.mkdir(parents=True)
        for version in ("1", "two", "three"):
            (deep / "weights").write_text(version)
            deep.chmod(0o555)
            assert (stage.bring() / "deep" / "weights").read_text() == version
            deep.chmod(0o755)
        (stage.copy / "deep").chmod(0o755)  # for who removes it after the test


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("one")
    assert Stage(tmp_path / "m.gguf", tmp_path / "local").bring().read_text() == "one"


def test_what_cannot_be_copied_is_said(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StagingError, match="No such file"):
        Stage(stage.source / "none", stage.target).bring()
    stage.target.chmod(0o777)
    with pytest.raises(StagingError, match="others may write there"):
        stage.bring()
    stage.target.chmod(0o700)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=10))
    with pytest.raises(StagingError, match="MiB are needed for .*model, 0 are free"):
        stage.bring()


def test_half_a_copy_takes_no_room(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    half = stage.copy.parent / ".model.new"
    half.mkdir(parents=True)
    stage.target.chmod(0o700)
    (half / "weights").write_bytes(b"w" * 600)  # of a copy that was killed

    def usage(_path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1500 - sum(path.stat().st_size for path in half.rglob("*") if path.is_file()))

    monkeypatch.setattr("shutil.disk_usage", usage)
    assert (stage.bring() / "weights").stat().st_size == 1000

    def fill_the_disk(_source: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    (stage.source / "weights").write_bytes(b"x")
    monkeypatch.setattr("shutil.copytree", fill_the_disk)
    with pytest.raises(StagingError, match="No space"):
        stage.bring()
    assert not half.exists()


def test_a_node_with_room_for_one_copy_gets_the_next_one_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(_path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1500 - sum(path.stat().st_size for path in stage.copy.rglob("*") if path.is_file()))

    monkeypatch.setattr("shutil.disk_usage", usage)
    stage.bring()
    (stage.source / "weights").write_bytes(b"x" * 1400)
    assert (stage.bring() / "weights").stat().st_size == 1400
    (stage.source / "weights").write_bytes(b"y" * 1600)
    with pytest.raises(StagingError, match="are needed"):
        stage.bring()
    assert (stage.copy / "weights").stat().st_size == 1400, "its removal would not make room enough"


def test_the_nodes_of_a_gang_are_told_where_to_meet(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    gang = Gang(3, "10.0.0.1", 29000)
    words = ["x", "--rank={rank}/{nodes}", "{leader}:{leader_port}", "{other}"]
    assert filled(words, gang.placeholders(2)) == ["x", "--rank=2/3", "10.0.0.1:29000", "{other}"]
    told = gang.environment(2)
    assert (told["EXPLSCHED_RANK"], told["PET_NODE_RANK"], told["MASTER_ADDR"]) == ("2", "2", "10.0.0.1")
    command = gang.workers(words, {"{port}": "1=2"}, stage)
    assert command[:4] == ["srun", "--relative=1", "--nodes=2", "--ntasks=2"]
    assert {"--cpus-per-task=6", "--kill-on-bad-exit=1", "--value={port}=1=2"} <= set(command)
    assert command[-5:] == ["--", *words]
