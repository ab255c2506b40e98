"""The pool: what is kept, found and refused."""

import pytest

from support.stores import our_store
from waltzrl.errors import InputError
from waltzrl_evolution import TrajectoryPool
from waltzrl_evolution.files import CandidateFiles, read_candidate
from waltzrl_evolution.pool import CandidateDecision, Trajectory

OTHER_POOL = pytest.mark.promise(
    "Evolution",
    "A pool of another version, files that were changed, and a folder of another run are refused",
)
BAD_POOL = pytest.mark.promise(
    "Bad input",
    "A pool of evolution of another version, a folder of another run, a candidate that was "
    "changed: both versions, settings or digests",
)


def trajectory(name, score=0.5, operator="revision", **more):
    known = {
        "id": name,
        "generation": int(name.partition("-")[0]),
        "operator": operator,
        "ruling": "accepted",
        "reason": "no worse",
        "time": 1.0,
        "digest": "c0ffee00deadbeef",
        "score": score,
        "shown_score": score,
    }
    return Trajectory(**known | more)


def rejected(name, ruling="unsafe", **more):
    generation = int(name.partition("-")[0])
    known = {"id": name, "generation": generation, "operator": "revision", "time": 1.0}
    return CandidateDecision(**known | {"ruling": ruling, "reason": "asr 1 % to 9 %"} | more)


@pytest.fixture
def store(sqlite_url):
    with our_store(sqlite_url) as store:
        yield store


@pytest.fixture
def pool(store):
    pool = TrajectoryPool(store, "run")
    pool.add_trajectory(trajectory("0-0", 0.75, "baseline"))
    pool.add_trajectory(trajectory("1-0", 0.2, failures={"a": 3}))
    pool.add_decision(rejected("1-1", change="adds b"))
    pool.add_trajectory(
        trajectory("2-0", 0.8, "recombination", failures={"a": 2, "b": 2}, gain=0.05, change="c")
    )
    pool.add_trajectory(trajectory("2-1", 0.9, "refinement", failures={"b": 1}, change="d"))
    return pool


def ids(trajectories):
    return [each.id for each in trajectories]


@pytest.mark.promise(
    "Requirements", "TrajectoryPool, RevisionOperator, RecombinationOperator, RefinementOperator"
)
def test_the_pool_is_queried_by_score_generation_and_operator(pool):
    assert ids(pool.get_best_n(2)) == ["2-1", "2-0"]
    assert ids(pool.get_successful()) == ["2-1", "2-0", "0-0"]
    assert ids(pool.get_failed()) == ["1-0"]
    assert ids(pool.get_by_generation(2)) == ["2-1", "2-0"]
    assert ids(pool.get_by_operator("recombination")) == ["2-0"]
    assert pool.get_statistics() == {"accepted": 4, "unsafe": 1, "best_score": 0.9}


def test_the_pair_that_fails_on_the_most_different_cases_comes_first(pool):
    # Of 2-1 (b: 1) and 2-0 (a: 2, b: 2) one failure of four is common; 0-0 has none at all.
    pairs = [ids(pair) for pair in pool.get_diverse_successful_pairs(3)]
    assert pairs == [["2-1", "0-0"], ["2-0", "0-0"], ["2-1", "2-0"]]


def test_insights_tell_gains_first_and_then_what_was_rejected(pool):
    assert pool.get_pool_insights() == [
        "c: score +0.0500",
        "d: score +0.0000",
        "adds b: rejected, unsafe: asr 1 % to 9 %",
    ]


def test_a_failure_is_common_when_two_trajectories_have_it(pool):
    assert pool.get_common_failure_patterns() == {"a": 2, "b": 2}
    assert pool.get_common_failure_patterns(least=3) == {}


@pytest.mark.promise(
    "Evolution",
    "Only what passes the gate enters the pool, and every decision is kept with its reason, in "
    "the memory and the audit log",
)
def test_only_what_passed_the_gate_enters_and_every_decision_is_kept(pool, store):
    with pytest.raises(AssertionError, match="only what passes the gate"):
        pool.add_trajectory(trajectory("3-0", ruling="unsafe"))
    again = TrajectoryPool(store, "run")
    assert ids(again.trajectories) == ids(pool.trajectories) == ["2-1", "2-0", "0-0", "1-0"]
    assert ids(again.decisions) == ["0-0", "1-0", "1-1", "2-0", "2-1"]
    assert again.decision("1-1") == rejected("1-1", change="adds b")
    assert again.trajectory("1-1") is None


def test_runs_do_not_meet_in_one_store(pool, store):
    assert TrajectoryPool(store, "other").decisions == []


def test_a_generation_sees_only_those_before_it(pool, store):
    earlier = TrajectoryPool(store, "run", before=2)
    assert ids(earlier.decisions) == ["0-0", "1-0", "1-1"]


def test_beyond_its_size_the_pool_leaves_out_the_worst_but_never_the_baseline(store):
    pool = TrajectoryPool(store, "small", max_trajectories=2)
    for name, score in (("0-0", 0.1), ("1-0", 0.5), ("1-1", 0.3), ("1-2", 0.7)):
        pool.add_trajectory(trajectory(name, score, "revision" if name > "1" else "baseline"))
    again = TrajectoryPool(store, "small", max_trajectories=2)
    assert ids(again.trajectories) == ids(pool.trajectories) == ["1-2", "1-0", "0-0"]
    assert len(again.decisions) == 4


@OTHER_POOL
@BAD_POOL
def test_a_pool_of_another_version_is_refused_with_both(pool, store):
    pool.add_decision(rejected("4-0", version=2))
    with pytest.raises(InputError, match=r"run 'run' is of version 2, .* reads version 1; start"):
        TrajectoryPool(store, "run")


@OTHER_POOL
@BAD_POOL
def test_files_are_read_as_they_were_written_or_refused(tmp_path):
    candidate = CandidateFiles(files={"a.md": "one", "b.toml": "x = 1"})
    candidate.write(tmp_path / "c")
    assert read_candidate(tmp_path / "c", candidate.digest) == candidate
    (tmp_path / "c" / "a.md").write_text("two")
    with pytest.raises(InputError, match="was changed: its digest is"):
        read_candidate(tmp_path / "c", candidate.digest)


@pytest.mark.parametrize("name", ["../a", "a/b", ".hidden", ""])
def test_no_file_of_a_candidate_leaves_its_folder(name):
    with pytest.raises(InputError, match="names have no folder"):
        CandidateFiles(files={name: ""})


def test_a_candidate_is_not_larger_than_a_megabyte():
    with pytest.raises(InputError, match=r"has 1,048,577 bytes; at most 1,048,576"):
        CandidateFiles(files={"a": "x" * (1 << 20), "b": "y"})
