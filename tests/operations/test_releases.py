from dataclasses import replace

import msgspec
import pytest

from support.small_releases import DESCRIPTION
from waltzrl.agents.calibration import CALIBRATION, UNCALIBRATED, write_calibration
from waltzrl.agents.identity import identify_agent, name_challenges, reviewer_name
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.errors import InputError
from waltzrl.evaluation.rows import EvaluationRow, write_rows
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.release import opening as releases
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.opening import GateEvaluations, propose_release
from waltzrl.operations.release.plan import load_plan
from waltzrl.policies.settings import UpstreamConfig
from waltzrl.records import Collaboration, JudgedCollaboration, Message, Prompt, Reply, Verdict
from waltzrl.store.database import open_database

PLAN = load_plan("quick")
KINDS = ("unsafe", "benign", "answer")


@pytest.fixture
def agents(tmp_path):
    """Folders of weights: a conversation agent, and two feedback agents."""
    for name in ("talk", "old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    return tmp_path


@pytest.fixture
def book(tmp_path, agents):
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    book = ReleaseBook(engine)
    serving = recipe(agents, "old")
    table = msgspec.json.encode(bundle_table(serving)).decode()
    book.add_bundle(bundle_id(serving), table, DESCRIPTION, is_base=True)
    yield book
    engine.dispose()


def recipe(agents, feedback):
    return BundleRecipe(
        upstream=UpstreamConfig(folder=str(agents / "talk")),
        stage=2,
        feedback=FeedbackConfig(model=str(agents / feedback)),
    )


def played(agents, feedback, *, of_each=60, judge="judge@1", challenges="None", **bad):
    """Write a run with so many prompts of each kind, of which so many came out badly."""
    talk, review = (
        identify_agent(str(agents / "talk"), None),
        identify_agent(str(agents / feedback), None),
    )
    said = (
        f"conversation {talk}, wording plain, feedback {review}, challenges from {challenges}, "
        "max_rounds 1"
    )
    rows = [
        row(kind, number, number < bad.get(kind, 0), said, judge)
        for kind in KINDS
        for number in range(of_each)
    ]
    folder = agents / f"run-{feedback}"
    write_rows(folder, rows)
    return folder


def row(kind, number, is_bad, said, judge):
    prompt = Prompt(
        id=f"{kind}/{number}",
        messages=(Message(role="user", content=f"question {number}"),),
        label=None if kind == "answer" else kind,
        answer="yes" if kind == "answer" else None,
    )
    verdict = Verdict(
        judge=judge,
        unsafe=kind == "unsafe" and is_bad,
        overrefuses=kind == "benign" and is_bad,
    )
    text = "no" if kind == "answer" and is_bad else "yes"
    collaboration = Collaboration(prompt=prompt, draft=Reply(text=text))
    judged = JudgedCollaboration(collaboration=collaboration, verdicts=(verdict,))
    return EvaluationRow(
        pattern="guarded", prompt_id=prompt.id, judge=judge, agents=said, judged=judged
    )


def proposed(book, agents, before, after):
    gate = GateEvaluations(before=before, after=after)
    return propose_release(book, recipe(agents, "new"), PLAN, "ada", gate)


def test_a_candidate_that_is_no_worse_is_proposed_with_its_numbers(book, agents):
    # 2 of 60 more is within chance: the paired interval reaches from -3.0 to +9.5 points.
    before, after = played(agents, "old"), played(agents, "new", unsafe=2)
    release = proposed(book, agents, before, after)
    assert release == book.current()
    assert release.candidate == bundle_id(recipe(agents, "new"))
    assert release.serving == bundle_id(recipe(agents, "old"))
    why = book.history(release.id)[0].why
    assert why.startswith("no worse offline: asr 0.0 % to 3.3 % (change -3.0 to +9.5, n 60)")


def test_an_evaluation_with_another_calibration_is_of_another_reviewer(book, agents):
    before = played(agents, "old")
    name = reviewer_name(str(agents / "new"), None, "labels_first")
    measured = replace(UNCALIBRATED, reviewer=name, challenge_from=0.9)
    write_calibration(agents / "new" / CALIBRATION, measured)
    # The threshold may be the same, and what the rules add another.
    other = name_challenges(replace(measured, rules_weight=2.0)).removeprefix("challenges from ")
    for challenges in ("None", "0.9", other):
        after = played(agents, "new", challenges=challenges)
        with pytest.raises(InputError, match=r"not made with the bundle's challenges from 0\.9@"):
            proposed(book, agents, before, after)


def test_weights_that_are_not_there_are_told_of(book, agents, caplog):
    propose_release(book, recipe(agents, "nwe"), PLAN, "ada", "a test")
    assert [record.getMessage() for record in caplog.records] == [
        f"there is no folder {agents / 'nwe'} here; it is taken for a name on the hub"
    ]


def test_the_recipe_of_the_candidate_can_be_read_back(book, agents):
    candidate = recipe(agents, "new")
    release = propose_release(book, candidate, PLAN, "ada", "a test")
    assert releases.read_stored_recipe(book, release.candidate) == candidate
    with pytest.raises(InputError, match="there is no bundle other"):
        releases.read_stored_recipe(book, "other")


@pytest.mark.parametrize(
    ("kind", "metric"), [("unsafe", "asr"), ("benign", "orr"), ("answer", "capability")]
)
def test_a_candidate_that_is_worse_in_anything_is_refused(kind, metric, book, agents):
    # 12 of 60 more leaves the interval +8.5 to +30.2 points, all of it for the worse.
    before, after = played(agents, "old"), played(agents, "new", **{kind: 12})
    with pytest.raises(InputError, match=f"worse than the bundle that serves: {metric}"):
        proposed(book, agents, before, after)
    assert book.latest() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_candidate_that_is_better_is_proposed(kind, book, agents):
    before, after = played(agents, "old", **{kind: 12}), played(agents, "new")
    assert proposed(book, agents, before, after).is_open


def test_too_few_prompts_tell_nothing(book, agents):
    before, after = played(agents, "old", of_each=33), played(agents, "new", of_each=33)
    with pytest.raises(
        InputError, match="the runs share 33 harmful and 33 harmless scored prompts"
    ):
        proposed(book, agents, before, after)


def test_runs_of_other_weights_do_not_count(book, agents):
    before, after = played(agents, "old"), played(agents, "new")
    (agents / "new" / "weights").write_text("trained on")
    with pytest.raises(InputError, match="run-new was not made with the bundle's feedback new@"):
        proposed(book, agents, before, after)


def test_runs_without_the_bundles_reviser_do_not_count(book, agents):
    reviser = str(agents / "mend")
    candidate = recipe(agents, "new")
    candidate = replace(candidate, upstream=replace(candidate.upstream, reviser=reviser))
    gate = GateEvaluations(before=played(agents, "old"), after=played(agents, "new"))
    with pytest.raises(InputError, match=r"run-new was not made with the bundle's reviser .*mend"):
        propose_release(book, candidate, PLAN, "ada", gate)


def test_runs_that_were_judged_differently_are_not_compared(book, agents):
    before, after = played(agents, "old"), played(agents, "new", judge="other@1")
    with pytest.raises(InputError, match="judged by judge@1 and other@1"):
        proposed(book, agents, before, after)


def test_a_person_may_answer_for_the_candidate_and_the_reason_is_kept(book, agents):
    gate = "the benchmark is down"
    release = propose_release(book, recipe(agents, "new"), PLAN, "ada", gate)
    move = book.history(release.id)[0]
    assert (move.by, move.why) == ("ada", "without the gate: the benchmark is down")


def test_the_next_candidate_stands_up_to_what_a_release_brought(book, agents):
    first = propose_release(book, recipe(agents, "new"), PLAN, "ada", "a test")
    for _ in range(3):
        first = book.move(first, "advance", "ada", "")
    assert first.state == "full"
    assert releases.serving_bundle(book) == first.candidate
    book.move(first, "roll_back", "ada", "")
    assert releases.serving_bundle(book) == first.serving


def test_there_is_nothing_to_stand_up_to_before_a_gateway_serves(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(InputError, match="no gateway has told this memory what it serves"):
        releases.serving_bundle(ReleaseBook(engine))
    engine.dispose()


def test_a_gate_is_two_evaluations_or_a_reason(tmp_path):
    assert releases.gate_from_options(None, None, "why") == "why"
    assert releases.gate_from_options(tmp_path, tmp_path, None) == GateEvaluations(
        before=tmp_path, after=tmp_path
    )
    for given in [(None, None, None), (tmp_path, None, None), (tmp_path, tmp_path, "why")]:
        with pytest.raises(InputError, match="--before RUN --after RUN, or else a reason"):
            releases.gate_from_options(*given)
