import pytest

from explsched.job_options import comment
from sched_policy.model import Direction, Elastic, Exploration, StageProfile
from slurm_plugin.job_options import GpuSharing, JobOptionError, JobOptions, parse
from wrappers import sxbatch


def test_a_plain_comment_takes_no_part() -> None:
    assert parse("") is None
    assert parse("my own words, explsched is nice") is None


def test_an_empty_word_takes_part_with_the_defaults() -> None:
    assert parse("explsched:") == JobOptions(Exploration(None, "loss", Direction.MIN))


def test_all_keys_of_learning() -> None:
    word = "explsched:sweep=my+sweep&metric=acc&direction=max&checkpoint=SIGUSR2&early-stop=1"
    exploration = Exploration("my sweep", "acc", Direction.MAX, "USR2", may_stop=True)
    assert parse(f"{word} and words") == JobOptions(exploration, guaranteed=True)


def test_class_and_sharing_take_no_part_in_a_search() -> None:
    assert parse("explsched:job-class=opportunistic") == JobOptions(guaranteed=False)
    assert parse("explsched:job-class=guaranteed") == JobOptions()
    sharing = GpuSharing("best-effort", limit_permille=300)
    assert parse("explsched:share=best-effort&limit=0.3") == JobOptions(sharing=sharing)


def test_sizes() -> None:
    assert parse("explsched:elastic=1-6") == JobOptions(elastic=Elastic(1, 6))
    assert parse("explsched:elastic=8-32/8") == JobOptions(elastic=Elastic(8, 32, 8))
    assert [request.total for request in Elastic(1, 6).requests()] == [1, 2, 4, 6]
    by_nodes = Elastic(8, 24, 8).requests()
    assert [(request.nodes, request.per_node) for request in by_nodes] == [(1, 8), (2, 8), (3, 8)]


def test_stages_are_milliseconds_of_an_iteration() -> None:
    assert parse("explsched:stages=110/60/45.5/0") == JobOptions(stages=StageProfile(0.11, 0.06, 0.0455, 0.0))


def test_sxbatch_writes_what_the_daemon_reads() -> None:
    hostile = "a b&early-stop=1#$(x)\u00e9'"
    words = [f"--sweep={hostile}", "--checkpoint=USR1", "--stages=110/60/45/5", "--elastic=8-32/8", "--limit=0.3"]
    given = sxbatch.job_values(sxbatch.options_parser().parse_args(words))
    assert parse(comment.write(given)) == JobOptions(
        Exploration(hostile, checkpoint_signal="USR1"),
        stages=StageProfile(0.11, 0.06, 0.045, 0.005),
        elastic=Elastic(8, 32, 8),
        sharing=GpuSharing(limit_permille=300),
    )
    with pytest.raises(ValueError, match="ITERATION/IO/GPU/NET"):
        sxbatch.options_parser().parse_args(["--stages=1/2"])


def test_nonsense_is_an_error_of_ours() -> None:
    with pytest.raises(JobOptionError, match="unknown key 'swep'"):
        parse("explsched:swep=a")
