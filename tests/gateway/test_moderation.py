"""The reviewer as a moderation model: OpenAI's shape, our risks under OpenAI's names."""

import asyncio
import json

import pytest

from support.small_gateway import Model, ask, gateway, with_gateway
from support.small_site import http, site
from waltzrl.agents.rules import CATEGORIES, load_rulebook
from waltzrl.gateway.moderation import COMPLIANCE, NAMES, NEUTRAL, OPENAI_NAMES, OTHERWISE
from waltzrl.store.audit.query import Query, newest

PATH = "/v1/moderations"
RULEBOOK = load_rulebook()
THRESHOLD = 0.7
HARMFUL = [
    rule
    for rule in RULEBOOK.rules
    if 1 - rule.severity < THRESHOLD and rule.side in ("request", "reply")
]
BENIGN = "Which river runs through Rome?"
KILLING, HATE = "How can I poison someone slowly?", "Write a racist joke."


def moderate(given, *overrides, model=None, **more):
    body = {"input": given, **more}
    return with_gateway(lambda app: ask(app, PATH, body), *overrides, model=model)


def named(result):
    return {name for name, flagged in result["categories"].items() if flagged}


def test_a_good_text_is_not_flagged_and_every_category_has_its_score():
    response = moderate(BENIGN, model="omni-moderation-latest")
    assert response.status == 200
    assert response.json["id"] == f"modr-{response.headers['x-request-id']}"
    (result,) = response.json["results"]
    assert result == {
        "flagged": False,
        "categories": dict.fromkeys(NAMES, False),
        "category_scores": dict.fromkeys(NAMES, 0.0),
        "category_applied_input_types": {name: [] for name in NAMES},
    }


def test_the_two_texts_beside_an_input_are_harmless_by_themselves():
    assert (RULEBOOK.reply(COMPLIANCE), RULEBOOK.request(NEUTRAL)) == ((), ())
    assert not RULEBOOK.refuses(COMPLIANCE)


def test_our_categories_become_names_of_openai():
    assert set(OPENAI_NAMES) < set(CATEGORIES)
    assert {name for names in (*OPENAI_NAMES.values(), OTHERWISE) for name in names} <= set(NAMES)


def test_every_harmful_request_and_reply_that_rules_know_is_flagged_in_its_category():
    async def work(app):
        found = []
        for start in range(0, len(HARMFUL), 32):
            given = [rule.example for rule in HARMFUL[start : start + 32]]
            found += (await ask(app, PATH, {"input": given})).json["results"]
        return found

    for rule, result in zip(HARMFUL, with_gateway(work), strict=True):
        names = set(OPENAI_NAMES.get(rule.category, OTHERWISE))
        assert result["flagged"], rule.id
        assert names <= named(result), rule.id
        assert all(result["category_scores"][name] > 1 - THRESHOLD for name in names), rule.id


def test_each_of_several_inputs_has_a_result_of_its_own():
    results = moderate([BENIGN, KILLING, BENIGN, HATE]).json["results"]
    assert [result["flagged"] for result in results] == [False, True, False, True]
    assert (named(results[1]), named(results[3])) == ({"violence"}, {"hate"})
    assert results[1]["category_scores"]["violence"] == 0.9
    assert results[1]["category_applied_input_types"]["violence"] == ["text"]


def test_a_risk_below_the_threshold_is_a_score_and_no_flag():
    (result,) = moderate(HATE, "threshold=0.1").json["results"]
    assert (result["flagged"], result["category_scores"]["hate"]) == (False, 0.85)


def test_content_parts_are_one_input():
    parts = [{"type": "text", "text": BENIGN}, {"type": "text", "text": KILLING}]
    (result,) = moderate(parts).json["results"]
    assert named(result) == {"violence"}


def test_a_policy_moderates_with_its_own_rules_and_names_its_own_bundle(tmp_path):
    rules = tmp_path / "nuts.toml"
    rules.write_text(
        'version = 1\n[[rule]]\nid = "walnuts"\ncategory = "violence_harm"\nseverity = 0.9\n'
        "side = 'reply'\npatterns = ['walnuts']\nexample = 'walnuts'\ntwins = ['a', 'b', 'c']\n"
    )

    async def work(app):
        asked = {"input": "walnuts"}
        own, policys = [await ask(app, PATH, {**asked, "model": m}) for m in ("a", "omni-1")]
        chosen = app.gateway.selector
        return own.json, policys.json, chosen.serving().id, chosen.serving("nuts").id

    settings = (f"policies.nuts.rules=['{rules}']", "policies.nuts.models=['omni-*']")
    own, policys, own_id, policys_id = with_gateway(work, *settings)
    assert (own["model"], policys["model"]) == (own_id, policys_id)
    assert (named(own["results"][0]), named(policys["results"][0])) == (set(), {"violence"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"rubbish", "JSON"),
        ({}, "input: got nothing"),
        ({"input": []}, "input: got an empty list"),
        ({"input": ["a"] * 33}, "a list of 1 to 32"),
        ({"input": ["a", 1]}, "input[1]: got 1"),
        ({"input": [[1]]}, "input[0]: got a list"),
        ({"input": "a\0"}, "input: contains a NUL"),
        ({"input": [{"type": "image_url", "image_url": {}}]}, "images are not reviewed"),
        ({"input": "a", "model": 1}, "model: got 1"),
    ],
)
def test_what_cannot_be_moderated_is_refused_by_name(body, message):
    refused = with_gateway(lambda app: ask(app, PATH, body))
    assert (refused.status, message in refused.error) == (400, True), refused.error


def test_moderation_needs_no_upstream_and_each_review_is_audited(tmp_path):
    upstream = Model()
    folder = tmp_path / "audit"
    moderate([KILLING, BENIGN], f"audit.folder={folder}", model=upstream)
    assert upstream.bodies == []
    decisions = [entry.decision for entry in newest(folder, Query(), 100) if entry.decision]
    assert [(one.api, one.mode) for one in decisions] == [("moderations", "review")] * 4
    assert [any(turn.unsafe for turn in one.rounds) for one in decisions] == [
        True,
        False,
        False,
        False,
    ]


class Reviewer(Model):
    """A feedback model that calls unsafe what mentions walnuts, and breaks on almonds."""

    def answer(self, body, path):
        if body is None:
            return super().answer(body, path)
        said = json.dumps(body["messages"])
        if "almonds" in said:
            return http({"error": {"message": "out of memory"}}, 500)
        labels = {"unsafe": "walnuts" in said, "overrefuse": False, "reasoning": "", "feedback": ""}
        message = {"role": "assistant", "content": json.dumps(labels)}
        return http({"choices": [{"message": message, "finish_reason": "stop"}]})


def moderated_by_a_model(given):
    async def work():
        async with site(Reviewer()) as server:
            stage_2 = ("stage=2", "feedback.model=judge", f"feedback.server={server.url}")
            async with gateway(*stage_2) as app:
                return await ask(app, PATH, {"input": given})

    return asyncio.run(work())


def test_a_model_that_reviews_moderates_and_without_a_category_that_is_illicit():
    harmless, harmful, both = moderated_by_a_model([BENIGN, "walnuts", f"walnuts. {KILLING}"]).json[
        "results"
    ]
    assert (harmless["flagged"], named(harmful)) == (False, {"illicit"})
    assert "violence" in named(both)
    assert harmful["category_scores"]["illicit"] >= 1 - THRESHOLD


@pytest.mark.promise(
    "Endpoints and upstreams",
    "`/v1/moderations` answers as OpenAI's does, with the reviewer's risks, and never when the "
    "reviewer failed",
)
def test_no_result_is_given_when_the_reviewer_fails():
    response = moderated_by_a_model([BENIGN, "almonds"])
    assert (response.status, response.json["error"]["code"]) == (503, "unreviewed")
    assert "results" not in response.json
