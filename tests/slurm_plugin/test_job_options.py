import pytest

from sched_policy.model import Direction, Elastic, Exploration, StageProfile
from slurm_plugin.job_options import GpuSharing, JobOptionError, JobOptions, parse
from wrappers import sxbatch


def test_a_plain_comment_takes_no_part() -> None:
    assert parse("") is None
    assert parse("my own words, explsched is nice") is None


def test_all_keys() -> None:
    word = "explsched:sweep=my+sweep&metric=acc&direction=max&checkpoint=SIGUSR2&stop=1"
    exploration = Exploration("my sweep", "acc", Direction.MAX, "USR2", may_stop=True)
    assert parse(f"{word} and words") == JobOptions(exploration, guaranteed=True)


def test_class_and_sharing_take_no_part_in_a_search() -> None:
    assert parse("explsched:class=opportunistic") == JobOptions(guaranteed=False)
    sharing = GpuSharing("best-effort", limit_permille=300)
    assert parse("explsched:share=best-effort&limit=300") == JobOptions(sharing=sharing)


def test_sizes() -> None:
    assert parse("explsched:elastic=1-6") == JobOptions(elastic=Elastic(1, 6))
    assert parse("explsched:elastic=8-32/8") == JobOptions(elastic=Elastic(8, 32, 8))
    assert [request.total for request in Elastic(1, 6).requests()] == [1, 2, 4, 6]
    by_nodes = Elastic(8, 24, 8).requests()
    assert [(request.nodes, request.per_node) for request in by_nodes] == [(1, 8), (2, 8), (3, 8)]
    options = sxbatch.options_parser().parse_args(["--elastic=8-32/8"])
    assert parse(sxbatch._explsched_word(options)) == JobOptions(elastic=Elastic(8, 32, 8))


def test_stages_are_milliseconds_of_an_iteration() -> None:
    assert parse("explsched:stages=110/60/45.5/0") == JobOptions(stages=StageProfile(0.11, 0.06, 0.0455, 0.0))


def test_sxbatch_writes_what_the_daemon_reads() -> None:
    hostile = "a b&stop=1#$(x)\u00e9\n'"
    words = [f"--sweep={hostile}", "--checkpoint=USR1", "--stages=110/60/45/5"]
    options = sxbatch.options_parser().parse_args(words)
    assert parse(sxbatch._explsched_word(options)) == JobOptions(
        Exploration(hostile, checkpoint_signal="USR1"), stages=StageProfile(0.11, 0.06, 0.045, 0.005)
    )
    with pytest.raises(ValueError, match="ITERATION/IO/GPU/NET"):
        sxbatch.options_parser().parse_args(["--stages=1/2"])


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("explsched:swep=a", "unknown key 'swep'.*known: class, sweep, metric"),
        ("explsched:stop=yes", "accepted are 0 and 1"),
        ("explsched:share=all", "high and best-effort"),
        ("explsched:limit=0.3", "1 to 1000 permille"),
        ("explsched:request=1001", "1 to 1000 permille"),
        ("explsched:class=vip", "guaranteed and opportunistic"),
        ("explsched:direction=up", "min and max"),
        ("explsched:stages=1/2/3", "ITERATION/IO/GPU/NET"),
        ("explsched:stages=0/1/1/1", "ITERATION/IO/GPU/NET"),
        ("explsched:stages=1/0/0/0", "ITERATION/IO/GPU/NET"),
        ("explsched:stages=1/nan/1/1", "ITERATION/IO/GPU/NET"),
        ("explsched:stages=1/-1/1/1", "ITERATION/IO/GPU/NET"),
        ("explsched:checkpoint=KILL", "not a signal that a job can catch"),
        ("explsched:checkpoint=;rm", "not a signal"),
        ("explsched:elastic=8", "MIN-MAX GPUs on one node"),
        ("explsched:elastic=2-7/2", "both multiples of N"),
        ("explsched:elastic=1-8/0", "both multiples of N"),
        ("explsched:a", "not of the form"),
        ("explsched:sweep=a&sweep=b", "twice"),
        ("explsched:stop=1 explsched:stop=0", "2 words"),
    ],
)
def test_nonsense_is_named(comment: str, words: str) -> None:
    with pytest.raises(JobOptionError, match=words):
        parse(comment)
