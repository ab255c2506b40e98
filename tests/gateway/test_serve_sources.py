"""What the options of `waltzrl serve` come to: who answers, and who reviews."""

from pathlib import Path

import pytest

from waltzrl.errors import InputError
from waltzrl.gateway.commands.serve import choose_reviewer, collect_sources
from waltzrl.gateway.settings import load_gateway

PAIR = Path(__file__).parents[2] / "packages/waltzrl-smollm2/src/waltzrl_smollm2/pair"
SERVER = {"upstream": {"url": "http://127.0.0.1:9/v1"}}


def serves(options=None, *, reviewer=None):
    """Return the bundle that `serve --pair` serves."""
    reviewers = choose_reviewer(reviewer, None, None)
    recipe, table, settings, _ = collect_sources(
        None, options or {}, [], demo=False, pair=PAIR, reviewer=reviewers
    )
    return load_gateway(recipe, table, settings, {}).bundle


def test_both_agents_of_a_pair_serve():
    bundle = serves(reviewer="feedback-agent")
    assert bundle.upstream.folder == str(PAIR / "waltzrl_conversation_stage2")
    assert bundle.feedback.model == str(PAIR / "waltzrl_feedback_stage2")


@pytest.mark.promise(
    "Do no harm",
    "A pair's manifest names the reviewer that measured better than its feedback agent, and that"
    " one serves",
)
def test_the_reviewer_that_a_pair_names_reviews():
    bundle = serves()
    assert bundle.upstream.folder == str(PAIR / "waltzrl_conversation_stage2")
    assert (bundle.stage, bundle.feedback.model) == (2, "reviewer:smollm2")


def test_only_a_pair_has_a_feedback_agent_of_its_own():
    with pytest.raises(InputError, match="stage 2 needs a feedback model"):
        load_gateway(None, SERVER | choose_reviewer("feedback-agent", None, None), [], {})


@pytest.mark.promise(
    "Do no harm", "With `--reviewer` only the conversation agent of a pair serves, and answers"
)
def test_a_reviewer_takes_the_place_of_the_pairs_feedback_agent():
    bundle = serves(reviewer="smollm2")
    assert bundle.upstream.folder == str(PAIR / "waltzrl_conversation_stage2")
    assert bundle.stage == 2
    assert (bundle.feedback.model, bundle.feedback.wording) == ("reviewer:smollm2", "labels_first")
    assert serves(reviewer="rules").stage == 1


def test_in_front_of_a_server_the_feedback_agent_of_a_pair_reviews():
    bundle = serves(SERVER)
    assert bundle.upstream.url == "http://127.0.0.1:9/v1"
    assert bundle.feedback.model == str(PAIR / "waltzrl_feedback_stage2")
    assert serves(SERVER, reviewer="feedback-agent") == bundle


@pytest.mark.promise("Bad input", "A pair that neither answers nor reviews")
def test_a_pair_with_nothing_to_do_is_refused():
    with pytest.raises(InputError, match="leave the pair nothing to do"):
        serves(SERVER, reviewer="smollm2")
