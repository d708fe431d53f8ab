"""Hyper-parameters, however they are spelt."""

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explsched.parameters import LONGEST, listed, of_command, of_pairs, of_text, of_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1", 0.1), ("1e-3", 0.001), ("16", 16.0), ("True", True), ("false", False), ("adam", "adam"), ("", "")],
)
def test_what_a_person_types(text: str, value: object) -> None:
    assert of_text(text) == value
    assert type(of_text(text)) is type(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_what_is_not_finite_stays_text(text: str) -> None:
    assert of_text(text) == text


def test_variables_of_a_program() -> None:
    numpy = pytest.importorskip("numpy")
    values = [16, numpy.float32(0.5), numpy.int64(3), True, "adam", float("nan"), [1, 2], 10**400, "x" * 999]
    expected = [16.0, 0.5, 3.0, True, "adam", "nan", "[1, 2]", str(10**400)[:LONGEST], "x" * LONGEST]
    assert [of_value(value) for value in values] == expected


def test_a_tensor_that_is_no_number_becomes_text() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor([0.5]), torch.zeros(2), torch.empty(1, device="meta")]
    assert [of_value(tensor) for tensor in tensors] == [
        0.5,
        "tensor([0., 0.])",
        "tensor(..., device='meta', size=(1,))",
    ]


@pytest.mark.parametrize("spelt", [of_text, of_value])
def test_a_name_of_a_file_that_is_no_utf8_becomes_readable(spelt: Callable[[str], object]) -> None:
    assert spelt(os.fsdecode(b"caf\xe9")) == "caf?"


def test_a_command_line_is_read_and_secrets_are_not() -> None:
    words = ["python", "train.py", "--lr=0.1", "--opt=sgd=fast", "-x=1", "--lr=0.2", "--wandb-token=abc"]
    assert of_command([*words, "--API_KEY=abc", "--1=2", "--=3"]) == {"lr": 0.2, "opt": "sgd=fast"}


def test_numbers_of_tokens_and_tokenizers_are_no_secrets() -> None:
    words = ["--max_tokens=4096", "--tokenizer=gpt2", "--access_tokens=abc", "--secret_tokens=1", "--token=1"]
    assert of_command(words) == {"max_tokens": 4096.0, "tokenizer": "gpt2"}


def test_a_value_may_be_a_word_of_its_own() -> None:
    words = ["torchrun", "--verbose", "train.py", "--lr", "0.1", "--decay", "-1e-3", "--opt", "adam", "--nesterov"]
    words += ["--width", "64", "--data", "/data/a", "--host", "a.example.org", "--api-key", "abc", "--empty=", "--last"]
    expected = {"lr": 0.1, "decay": -0.001, "opt": "adam", "width": 64.0, "empty": ""}
    assert of_command(words) == expected


@pytest.mark.parametrize(
    "before",
    [
        ["torchrun", "--nproc-per-node=2", "--rdzv-id", "8", "--rdzv-endpoint=localhost:21008", "train.py"],
        ["nohup", "/opt/bin/accelerate", "launch", "--main_process_port", "29501", "-m", "train"],
        ["python", "-m", "torch.distributed.run", "--master-port=29501", "/home/a/train.py"],
        ["srun", "--ntasks=2", "python", "-u", "train.py"],
        ["srun", "-n", "2", "--unbuffered", "python3.11", "-W", "ignore", "train.py"],
        ["srun", "--cpus-per-task", "8", "stdbuf", "-oL", "torchrun", "--rdzv-id=8", "--standalone", "train.py"],
        [
            "apptainer",
            "exec",
            "--nv",
            "a.sif",
            "torchrun",
            "--log-dir",
            "/data/a",
            "--rdzv-endpoint",
            "a:1",
            "train.py",
        ],
        ["srun", "python", "-m", "torch.distributed.run", "--rdzv-id", "8", "-m", "train"],
        ["mpirun", "-np", "4", "--bind-to", "none", "python", "-m", "train"],
        ["python", "train.py", "--engine=x"],
        ["python", "-m", "train", "--engine", "x"],
    ],
)
def test_what_a_launcher_is_told_is_no_hyper_parameter(before: list[str]) -> None:
    own = {"engine": "x"} if before[-1].endswith("x") else {}
    assert of_command([*before, "--lr=0.1", "--config", "torchrun", "--file", "conf.py"]) == {
        **own,
        "lr": 0.1,
        "config": "torchrun",
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("./train --lr=0.1 --file conf.py --engine srun", {"engine": "srun"}),
        ("./train --lr=0.1 --engine srun --file conf.py", {"engine": "srun"}),
        ("torchrun --no-python --nnodes=2 train.sh --lr=0.1", {"nnodes": 2.0}),
        ("torchrun --no-python ./train --lr=0.1 --config conf.py", {}),
        ("srun ./train --lr=0.1 --config conf.py --wd=0.2", {"wd": 0.2}),
        (
            "srun ./train --lr=0.1 --module resnet conf.py --interpreter python x.py",
            {"module": "resnet", "interpreter": "python"},
        ),
        ("--lr=0.1 --strategy deepspeed --config conf.py --wd=0.2", {"strategy": "deepspeed", "wd": 0.2}),
        ("bash train.sh --launcher torchrun --lr=0.1 --config configs/a.py", {"launcher": "torchrun"}),
        ("nohup bash train.sh --launcher torchrun --lr=0.1 configs/a.py", {"launcher": "torchrun"}),
    ],
)
def test_where_no_launcher_is_seen_to_start_python_nothing_is_hidden(line: str, found: dict[str, object]) -> None:
    assert of_command(line.split()) == {"lr": 0.1, **found}


def test_the_last_of_both_spellings_counts() -> None:
    assert of_command(["--lr", "0.1", "--lr=0.2", "--on", "true", "--lr", "0.3"]) == {"lr": 0.3, "on": True}


@pytest.mark.parametrize("text", ["lr", "lr=1,", "=1", "l r=1", "lr=1,width"])
def test_what_are_no_pairs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        of_pairs(text)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9.-]{0,8}", fullmatch=True), st.booleans() | st.integers(-999, 999)))
def test_what_is_listed_can_be_read_again(parameters: dict[str, float | bool]) -> None:
    if parameters:
        assert of_pairs(listed(parameters)) == parameters
