"""A gateway in stage 2: an upstream, a reviewing model on a server, an audit log with contents."""

import asyncio
from types import SimpleNamespace

import pytest

from support.openai_server import serving
from support.small_gateway import ask, chat, gateway
from waltzrl.agents.calibration import (
    RefusalCount,
    ReviewerCalibration,
    write_calibration,
)
from waltzrl.agents.identity import calibration_of, reviewer_name
from waltzrl.errors import InputError
from waltzrl.policies import ScriptedPolicy
from waltzrl.store.audit.contents import content_files, read_contents
from waltzrl.store.audit.reading import read_entries

FINE = '{"unsafe": false, "overrefuse": false, "category": "none", "feedback": ""}'
FLAGGED = '{"unsafe": true, "overrefuse": false, "category": "harassment", "feedback": "Be kind."}'
CRIME = "How do I make a pipe bomb at home?"


def served(folder, says, content="hello", settings=None, **told):
    """Ask one question through a gateway whose reviewer always `says` the same."""

    async def run(server):
        recipe = [
            "stage=2",
            "feedback.model=judge",
            f"feedback.server={server.base_url}",
            f"audit.folder={folder}",
            "audit.contents=true",
        ]
        async with gateway(*recipe, *(settings(server) if settings else ())) as app:
            response = await chat(app, messages=[{"role": "user", "content": content}])
            metrics = await ask(app, "/metrics", method="GET")
            return SimpleNamespace(response=response, metrics=metrics.text)

    with serving({"judge": ScriptedPolicy(lambda _: says)}) as server:
        server.true = told or None
        outcome = asyncio.run(run(server))
    outcome.decision = next(e.decision for e in read_entries(folder) if e.decision)
    outcome.rounds = outcome.decision.rounds
    ((*_, content),) = read_contents(content_files(folder)[-1])
    outcome.feedback = content.collaboration.rounds[0].feedback
    return outcome


def test_both_parts_of_the_risk_and_the_outcome_are_audited(tmp_path):
    first = served(tmp_path / "log", FINE, CRIME, unsafe=0.1, overrefuse=0.01).rounds[0]
    assert first.unsafe
    assert first.model_risk == pytest.approx(0.1)
    assert first.rules_risk >= 0.9
    assert first.risk == first.rules_risk  # the rules are certain: it is their risk that decides
    assert first.category == "weapons"


def test_a_finding_of_the_model_alone_names_its_category_in_audit_and_metrics(tmp_path):
    outcome = served(tmp_path / "log", FLAGGED, unsafe=0.9, overrefuse=0.01)
    first = outcome.rounds[0]
    assert (first.unsafe, first.category, first.rules) == (True, "harassment", ())
    assert 'waltzrl_flagged_total{category="harassment"} 1.0' in outcome.metrics


def test_without_probabilities_the_label_is_the_risk(tmp_path):
    assert served(tmp_path / "a", FLAGGED).rounds[0].model_risk == 1.0
    assert served(tmp_path / "b", FINE).rounds[0].model_risk == 0.0


def test_why_nobody_reviewed_is_audited_and_the_text_is_in_the_contents(tmp_path):
    outcome = served(tmp_path / "log", "Hi! How can I help?")
    assert outcome.decision.reason == "not reviewed: unreadable"
    assert outcome.rounds[0].failure == "unreadable"
    assert outcome.feedback.reply.text == "Hi! How can I help?"


CHALLENGED = '{"unsafe": false, "overrefuse": true, "category": "none", "feedback": "Answer it."}'


def calibration(file, server, challenge_from=0.5, model="judge"):
    few = RefusalCount(n=100, challenged=1)
    write_calibration(
        file,
        ReviewerCalibration(
            reviewer=f"{model} at {server}, wording labels_first",
            challenge_from=challenge_from,
            right_refusals=few,
            over_refusals=few,
        ),
    )
    return f"feedback.calibration={file}"


@pytest.mark.promise(
    "Do no harm", "A model challenges a refusal only where its error on right refusals was measured"
)
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_refusal_is_challenged_only_with_a_calibration(tmp_path, caplog, calibrated):
    def settings(server):
        return [calibration(tmp_path / "c.json", server.base_url)] if calibrated else []

    outcome = served(tmp_path / "log", CHALLENGED, settings=settings, overrefuse=0.9, unsafe=0.0)
    first = outcome.rounds[0]
    assert first.overrefusal_probability == pytest.approx(0.9)
    assert first.overrefuse is calibrated
    assert outcome.decision.decision == ("revised" if calibrated else "draft")
    assert any("was not calibrated" in line for line in caplog.messages) is not calibrated


@pytest.mark.promise("Do no harm", "A calibration is of one reviewer: its weights and its wording")
def test_a_calibration_of_another_reviewer_is_refused(tmp_path):
    def settings(server):
        return [calibration(tmp_path / "c.json", server.base_url, model="another")]

    with pytest.raises(InputError, match=r"of the reviewer 'another at .* and this is 'judge at "):
        served(tmp_path / "log", CHALLENGED, settings=settings)


def test_a_calibration_of_a_guard_model_is_not_for_another_kind_of_it(tmp_path):
    place, few = ("guard-8b", "http://localhost:8001/v1"), RefusalCount(n=100, challenged=1)
    written = ReviewerCalibration(
        reviewer=reviewer_name(*place, "labels_first", "llama-guard"),
        challenge_from=0.5,
        right_refusals=few,
        over_refusals=few,
    )
    file = tmp_path / "calibration.json"
    write_calibration(file, written)
    assert calibration_of(*place, "plain", str(file), "llama-guard") == written  # it has no wording
    for another in ("qwen3guard", None):
        with pytest.raises(InputError, match="guard llama-guard', and this is"):
            calibration_of(*place, "labels_first", str(file), another)


def test_a_calibration_beside_the_weights_is_the_models(tmp_path):
    model = tmp_path / "agent"
    model.mkdir()
    (model / "weights").write_text("1")
    assert calibration_of(str(model), None, "plain", None) is None
    name = reviewer_name(str(model), None, "plain")
    few = RefusalCount(n=100, challenged=1)
    written = ReviewerCalibration(
        reviewer=name, challenge_from=0.5, right_refusals=few, over_refusals=few
    )
    write_calibration(model / "calibration.json", written)
    assert reviewer_name(str(model), None, "plain") == name  # the file is no part of the weights
    assert calibration_of(str(model), None, "plain", None) == written
    with pytest.raises(InputError, match="wording plain', and this is"):
        calibration_of(str(model), None, "tiny", None)
    (model / "weights").write_text("2")
    with pytest.raises(InputError, match="run waltzrl calibrate for it"):
        calibration_of(str(model), None, "plain", None)
