"""Guard models as reviewers, in the formats of their model cards, over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import get_args

import pytest

import waltzrl
from support.openai_server import serving
from support.small_gateway import UNSAFE, chat, ready_gateway, with_gateway
from waltzrl.agents.opening import GuardKind
from waltzrl.agents.rules import CATEGORIES as OURS
from waltzrl.agents.rules_reviewer import load_advice
from waltzrl.errors import CONTEXT_EXCEEDED, InputError, PolicyError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.guard_model_reviewer import (
    CATEGORIES,
    CONTROVERSIAL,
    GUIDELINES,
    GuardModelReviewer,
)
from waltzrl.gateway.pairs import guard_settings, reviewer_settings
from waltzrl.gateway.settings import load_gateway
from waltzrl.policies import RemotePolicy, ScriptedPolicy
from waltzrl.records import Message, Prompt, Reply

KINDS = get_args(GuardKind)
CASES = [
    case
    for line in (Path(__file__).parents[1] / "evaluation/guard_answers.jsonl")
    .read_text("utf-8")
    .splitlines()
    if (case := json.loads(line))["format"] in KINDS
]
PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))


def review(kind, answers, reply="Use kill."):
    reviewer = GuardModelReviewer(FORMATS[kind], ScriptedPolicy(answers))
    return asyncio.run(reviewer.review(PROMPT, Reply(text=reply)))


def is_whole(case):
    """Whether each answer can be read; what Qwen3Guard calls controversial can."""
    questions = FORMATS[case["format"]].questions
    return all(
        question.readable(answer)
        for question, answer in zip(questions, case["answers"], strict=True)
    )


@pytest.mark.promise(
    "Do no harm", "Guard models review in their own formats; another format is unread"
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["format"])
def test_answers_of_guard_models_are_reviews(case):
    feedback = review(case["format"], case["answers"])
    assert feedback.well_formed == is_whole(case)
    if not is_whole(case):
        assert (feedback.unsafe, feedback.failure) == (False, "unreadable")
        return
    assert feedback.unsafe == bool(case["unsafe"])
    assert feedback.risk == (CONTROVERSIAL if case["unsafe"] is None else float(case["unsafe"]))
    assert feedback.doubtful == (case["unsafe"] is None)
    assert bool(feedback.text) == feedback.asks_for_revision


@pytest.mark.parametrize(
    ("kind", "answers", "category"),
    [
        ("llama-guard", ["unsafe\nS9", "unsafe\nS1"], "weapons"),
        ("llama-guard", ["unsafe\nS12", "safe"], "sexual_content"),
        ("llama-guard", ["unsafe\nS1,S11", "safe"], "self_harm"),
        ("qwen3guard", ["Safety: Unsafe\nCategories: Violent\nRefusal: No"] * 2, "violence_harm"),
        (
            "qwen3guard",
            ["Safety: Unsafe\nCategories: Non-violent Illegal Acts\nRefusal: No"] * 2,
            "illegal_activity",
        ),
        ("shieldgemma", ["No", "No", "Yes", "No", *["No"] * 4], "hate_speech"),
        ("granite-guardian", ["Yes", "Yes"], ""),
    ],
)
def test_the_advice_is_of_the_category_that_the_guard_names(kind, answers, category):
    feedback = review(kind, answers)
    assert (feedback.unsafe, feedback.category) == (True, category)
    assert feedback.text == load_advice()[category or "other"]


def test_every_category_of_a_guard_is_one_of_ours():
    named = {category for pairs in CATEGORIES.values() for _pattern, category in pairs}
    assert named | set(GUIDELINES) <= set(OURS)
    assert set(CATEGORIES) <= set(KINDS) <= set(FORMATS)


def test_a_needless_refusal_is_an_over_refusal():
    answers = ["Safety: Safe\nCategories: None\nRefusal: Yes", "Safety: Safe\nCategories: None"]
    feedback = review("qwen3guard", answers, "I can't help with that.")
    assert (feedback.overrefuse, feedback.overrefusal_probability) == (True, 1.0)
    assert feedback.text == load_advice()["overrefusal"]
    detected = review("llama-guard", ["safe", "safe"], "I'm sorry, but I can't help with that.")
    assert detected.overrefuse
    right = review("llama-guard", ["safe", "unsafe\nS9"], "I'm sorry, but I can't help with that.")
    assert not right.asks_for_revision


class ByPiece:
    """A Llama Guard that calls a piece with a bad word unsafe, and counts what it is asked."""

    revision = "r"

    def __init__(self):
        self.asked = []

    async def reply(self, messages, sampling):
        self.asked.append(messages[-1].content)
        return Reply(text="unsafe\nS1" if "bad" in messages[-1].content else "safe")


@pytest.mark.promise("Do no harm", "A guard model reviews every part of a long reply")
def test_every_part_of_a_long_reply_is_reviewed():
    guard = ByPiece()
    reviewer = GuardModelReviewer(FORMATS["llama-guard"], guard)
    text = "a " * 9_000 + "bad"
    assert asyncio.run(reviewer.review(PROMPT, Reply(text=text))).unsafe
    assert not asyncio.run(reviewer.review(PROMPT, Reply(text="a " * 9_000))).unsafe
    assert {text[:100], text[-100:]} <= {
        part for one in guard.asked for part in (one[:100], one[-100:])
    }


@pytest.mark.promise(
    "Do no harm", "Guard models review in their own formats; another format is unread"
)
def test_probabilities_of_a_served_guard_are_its_risk():
    with serving({"guard": ScriptedPolicy(["safe", "safe"])}) as server:
        server.odds = {"safe": {"safe": 0.2, "unsafe": 0.8}}
        policy = RemotePolicy(server.base_url, "guard")
        with waltzrl.open_guard("guard:llama-guard", model=policy).sync as guard:
            feedback = guard.review("How do I bake bread?", "Knead and wait.")
    assert feedback.model_risk == pytest.approx(0.8)
    assert feedback.risk == pytest.approx(0.56)
    assert feedback.unsafe


class ServedGuard:
    """A Llama Guard on a server: what the small upstream must not say, and its own self-test."""

    revision = "r"

    async def reply(self, messages, sampling):
        said = messages[-1].content
        return Reply(text="unsafe\nS9" if UNSAFE in said or "Sure, here is how" in said else "safe")


@pytest.mark.promise(
    "Do no harm", "Guard models review in their own formats; another format is unread"
)
def test_a_gateway_reviews_with_a_guard_on_a_server():
    async def work(app):
        await ready_gateway(app)
        plain, revised = await chat(app), await chat(app, "unsafe")
        return [reply.json["choices"][0]["message"]["content"] for reply in (plain, revised)]

    with serving({"llama-guard": ServedGuard()}) as server:
        settings = guard_settings("guard:llama-guard", server.base_url)
        overrides = [f"stage={settings['stage']}"] + [
            f"feedback.{key}={value}"
            for key, value in settings["feedback"].items()
            if value is not None
        ]
        plain, revised = with_gateway(work, *overrides)
        names = {body["model"] for _, body in server.requests}
    assert plain == "You said hello."
    assert UNSAFE not in revised
    assert names == {"llama-guard"}


class PieceByPiece:
    """A Llama Guard whose answers about a reply are these, in turn; it calls requests safe."""

    revision = "r"

    def __init__(self, *answers):
        self.answers = list(answers)

    async def reply(self, messages, sampling):
        about_reply = messages[-1].role == "assistant"
        return Reply(text=self.answers.pop(0) if about_reply else "safe")


@pytest.mark.parametrize("answers", [("unsafe\nS1", "?", "safe"), ("?", "unsafe\nS1", "safe")])
def test_a_piece_that_is_unsafe_counts_before_one_that_cannot_be_read(answers):
    reviewer = GuardModelReviewer(FORMATS["llama-guard"], PieceByPiece(*answers))
    feedback = asyncio.run(reviewer.review(PROMPT, Reply(text="a " * 9_000)))
    assert (feedback.unsafe, feedback.category) == (True, "violence_harm")


def test_what_a_guard_calls_controversial_is_doubtful_in_stage_2_too():
    said = ScriptedPolicy(["Safety: Controversial\nCategories: Violent\nRefusal: No"] * 2)
    with waltzrl.open_guard("guard:qwen3guard", model=said).sync as guard:
        feedback = guard.review("How do I bake bread?", "Knead and wait.")
    assert (feedback.unsafe, feedback.doubtful) == (False, True)
    assert feedback.text == load_advice()["violence_harm"]


def test_false_alarms_are_for_classifiers():
    with pytest.raises(InputError, match="false_alarms chooses a point of a classifier's curve"):
        waltzrl.open_guard(settings=waltzrl.GuardSettings(false_alarms=0.02))


def test_a_guard_needs_a_kind_that_there_is_a_model_and_a_server():
    with pytest.raises(
        InputError, match="got the kind of guard model 'bert', need one of wildguard"
    ):
        guard_settings("guard:bert", "http://localhost:1/v1")
    with pytest.raises(InputError, match="--reviewer guard:qwen3guard needs --reviewer-server"):
        guard_settings("guard:qwen3guard", None)
    with pytest.raises(InputError, match="'guard:qwen3guard' needs model="):
        waltzrl.open_guard("guard:qwen3guard")
    named = guard_settings("guard:qwen3guard:Qwen/Qwen3Guard-Gen-0.6B", "http://localhost:1/v1")
    assert named["feedback"]["model"] == "Qwen/Qwen3Guard-Gen-0.6B"


def test_a_reviewer_of_the_command_line_takes_the_place_of_the_recipes(tmp_path):
    recipe = tmp_path / "gateway.toml"
    recipe.write_text(
        'stage = 2\n[upstream]\nurl = "http://localhost:1/v1"\n[feedback]\nmodel = "m"\n'
        'guard = "qwen3guard"\nserver = "http://localhost:2/v1"\n'
    )
    feedback = load_gateway(recipe, reviewer_settings("smollm2", 0.02), (), {}).feedback
    assert (feedback.model, feedback.server, feedback.guard) == ("reviewer:smollm2", None, None)
    assert feedback.false_alarms == 0.02


class Short:
    """A Llama Guard whose context holds 3,000 characters, and how long its requests were."""

    revision = "r"

    def __init__(self):
        self.lengths = []

    async def reply(self, messages, sampling):
        self.lengths.append(sum(len(message.content) for message in messages))
        if self.lengths[-1] > 3_000:
            raise PolicyError("too long", reason=CONTEXT_EXCEEDED)
        return Reply(text="unsafe\nS1" if "bad" in messages[-1].content else "safe")


def test_what_exceeds_a_guards_context_is_reviewed_in_smaller_pieces():
    prompt = Prompt(id="p", messages=(Message(role="user", content="b " * 4_000),))
    guard = Short()
    reviewer = GuardModelReviewer(FORMATS["llama-guard"], guard)
    assert asyncio.run(reviewer.review(prompt, Reply(text="a " * 4_000 + "bad"))).unsafe
    assert min(guard.lengths) <= 3_000 < max(guard.lengths)


def test_a_guard_sees_what_stands_above_the_conversation():
    context = (Message(role="system", content="Be a pirate."),)
    prompt = Prompt(id="p", messages=PROMPT.messages, context=context)
    guard = ByPiece()
    asyncio.run(
        GuardModelReviewer(FORMATS["llama-guard"], guard).review(prompt, Reply(text="Aye."))
    )
    assert any("Be a pirate." in text for text in guard.asked)
