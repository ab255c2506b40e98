"""Feedback in a format that the policy enforces, with the probabilities of its labels."""

import asyncio
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.openai_server import serving
from support.tiny_models import FAMILIES, tiny_model, tiny_tokenizer
from waltzrl.agents import FeedbackAgent, Wording, load_wording
from waltzrl.agents.wording import HARMS, LABELS_FIRST_FORMAT
from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.policies.guide import JsonGuide, LabelReader, LabelVocabulary
from waltzrl.policies.json_format import LABEL_VALUES, JsonField, JsonFormat, read_label_value
from waltzrl.policies.local import LocalPolicy
from waltzrl.records import Message, Prompt, Reply

LABELS_FIRST, PLAIN = load_wording("labels_first"), load_wording("plain")
ASK = Prompt(id="p", messages=(Message(role="user", content="Hi"),))
DRAFT = Reply(text="Hello!")
SHORT = Wording(
    conversation_system="", feedback_system="", review="{reply}", revise="", labels_first=True
)
VOCABULARY = LabelVocabulary(tiny_tokenizer(), LABELS_FIRST_FORMAT.labels)
LABELS = JsonFormat(tuple(JsonField(name, LABEL_VALUES) for name in ("unsafe", "overrefuse")))
FLAGGED = '{"unsafe": true, "overrefuse": false, "category": "weapons", "feedback": "No."}'
FINE = '{"unsafe": false, "overrefuse": false, "category": "none", "feedback": ""}'
REASONED = '{"reasoning": "fine", "unsafe": false, "overrefuse": false, "feedback": ""}'


def review(server, wording=LABELS_FIRST, times=1, **options):
    async def reviews():
        async with RemotePolicy(server.base_url, "judge", retries=0, **options) as policy:
            agent = FeedbackAgent(policy, wording, Sampling(), formatted=True)
            return [await agent.review(ASK, DRAFT) for _ in range(times)]

    return asyncio.run(reviews())


@pytest.fixture
def server():
    texts = iter([FLAGGED, FINE] * 9)
    with serving({"judge": ScriptedPolicy(lambda _: next(texts))}) as it:
        it.true = {"unsafe": 0.8, "overrefuse": 0.05}
        yield it


@pytest.mark.promise(
    "Do no harm",
    "A model's risk is its probability of the label unsafe, on a server and in this process",
)
def test_a_servers_risk_is_its_probability_of_the_label(server):
    flagged, fine = review(server, times=2)
    for feedback in (flagged, fine):  # of the second, only the two labels were read
        assert feedback.risk == pytest.approx(0.8)
        assert feedback.overrefusal_probability == pytest.approx(0.05)
    assert (flagged.unsafe, flagged.category, flagged.text) == (True, "weapons", "No.")
    assert (fine.unsafe, fine.category) == (False, "")


def test_a_server_is_asked_for_the_format_of_the_wording(server):
    review(server)
    body = server.requests[0][1]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    schema = body["response_format"]["json_schema"]
    assert schema["strict"]
    properties = schema["schema"]["properties"]
    assert list(properties) == ["unsafe", "overrefuse", "category", "feedback"]
    assert properties["unsafe"] == {"type": "boolean"}
    assert properties["category"]["enum"] == [*HARMS, "none"]
    assert schema["schema"]["required"] == list(properties)


def test_a_trained_models_reasoning_comes_first():
    with serving({"judge": ScriptedPolicy(lambda _: REASONED)}) as server:
        server.true = {"unsafe": 0.3, "overrefuse": 0.4}
        (feedback,) = review(server, PLAIN)
        properties = server.requests[0][1]["response_format"]["json_schema"]["schema"]["properties"]
    assert list(properties) == ["reasoning", "unsafe", "overrefuse", "feedback"]
    assert feedback.risk == pytest.approx(0.3)
    assert feedback.overrefusal_probability == pytest.approx(0.4)


@pytest.mark.promise(
    "Do no harm",
    "A server is asked for the format and the probabilities, and no more for what it rejects",
)
@pytest.mark.parametrize(
    ("rejects", "accepted", "words"),
    [
        ({"logprobs"}, {"response_format"}, "logprobs"),
        ({"response_format"}, {"logprobs"}, "response_format"),
        ({"response_format", "logprobs"}, set(), "response_format and logprobs"),
    ],
)
def test_what_a_server_rejects_is_asked_for_no_more(server, caplog, rejects, accepted, words):
    server.rejects = rejects
    feedbacks = review(server, times=2)
    assert [feedback.unsafe for feedback in feedbacks] == [True, False]
    asked = [{"logprobs", "response_format"} & set(body) for _, body in server.requests]
    assert asked[-2:] == [accepted] * 2
    assert asked.count(accepted) == 2
    assert (feedbacks[0].risk is None) == ("logprobs" not in accepted)
    assert [message.partition(" ")[2] for message in caplog.messages] == [f"rejects {words}"]


def test_a_request_that_is_rejected_anyway_changes_nothing(server):
    async def reviews():
        async with RemotePolicy(server.base_url, "judge", retries=0) as policy:
            agent = FeedbackAgent(policy, LABELS_FIRST, Sampling(), formatted=True)
            server.rejects = {"messages"}
            with pytest.raises(PolicyError):
                await agent.review(ASK, DRAFT)
            server.rejects = set()
            return await agent.review(ASK, DRAFT)

    assert asyncio.run(reviews()).risk == pytest.approx(0.8)
    assert "response_format" in server.requests[-1][1]


def test_a_server_without_probabilities_gives_labels(server):
    server.true = None
    (feedback,) = review(server)
    assert (feedback.unsafe, feedback.risk, feedback.overrefusal_probability) == (True, None, None)


def test_training_asks_for_no_format():
    with serving({"judge": ScriptedPolicy(lambda _: REASONED)}) as server:

        async def plain_review():
            async with RemotePolicy(server.base_url, "judge") as policy:
                return await FeedbackAgent(policy, PLAIN, Sampling()).review(ASK, DRAFT)

        feedback = asyncio.run(plain_review())
        assert not {"logprobs", "response_format"} & set(server.requests[0][1])
    assert feedback.risk is None


def test_probabilities_are_renormalised_over_all_spellings():
    tokens = [
        ('{"', []),
        ("unsafe", []),
        ('":', []),
        (" true", [(" true", 0.2), ("true", 0.1), (" false", 0.1), (" maybe", 0.6)]),
        (', "overrefuse":', []),
        ("false", [("false", 0.6)]),
    ]
    expected = (pytest.approx(0.75), pytest.approx(0.4))
    assert LABELS.probabilities(tokens) == expected
    assert LABELS.probabilities(tokens[:4]) == ()


def test_a_label_that_is_only_quoted_is_not_read():
    quoted = [('\\"unsafe\\": ', []), ("true", [("true", 1.0)])]
    assert JsonFormat((JsonField("unsafe", LABEL_VALUES),)).probabilities(quoted) == ()


@pytest.mark.parametrize(
    ("token", "meaning"),
    [(" true", True), ("t", True), ("False,", False), ("fal", False), ("no", None), (" ", None)],
)
def test_a_token_means_the_label_that_it_begins(token, meaning):
    assert read_label_value(token) is meaning


@pytest.mark.promise("Do no harm", "Any model in this process gives labels that can be read")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tokens", [40, 60])
def test_any_model_in_this_process_writes_readable_labels(family, tokens):
    """Random weights write no JSON by themselves; cut anywhere, their feedback can be read."""
    model = tiny_model(family)
    policy = LocalPolicy(model.model, model.tokenizer)
    for formatted in (False, True):
        agent = FeedbackAgent(policy, SHORT, Sampling(max_new_tokens=tokens), formatted=formatted)
        feedback = asyncio.run(agent.review(ASK, DRAFT))
        assert feedback.well_formed == formatted
    assert feedback.unsafe == (feedback.risk >= 0.5)
    assert feedback.overrefuse == (feedback.overrefusal_probability >= 0.5)


@pytest.mark.promise(
    "Do no harm",
    "A model's risk is its probability of the label unsafe, on a server and in this process",
)
def test_the_risk_is_what_the_model_itself_says_after_the_labels_name():
    model, tokenizer = tiny_model().model, tiny_tokenizer()
    agent = FeedbackAgent(
        LocalPolicy(model, tokenizer), SHORT, Sampling(max_new_tokens=60), formatted=True
    )
    feedback = asyncio.run(agent.review(ASK, DRAFT))
    tokens = feedback.reply.tokens
    spelt = [tokenizer.encode(f'{{"unsafe": {value}') for value in ("true", "false")]
    place = next(n for n, (one, other) in enumerate(zip(*spelt, strict=False)) if one != other)
    assert list(tokens.ids[:place]) == spelt[0][:place]
    with torch.no_grad():
        logits = model(torch.tensor([[*tokens.prompt_ids, *tokens.ids[:place]]])).logits[0, -1]
    mass = {True: 0.0, False: 0.0}
    for token, token_id in tokenizer.get_vocab().items():
        if (meaning := read_label_value(token.replace("\u0120", " "))) is not None:
            mass[meaning] += math.exp(logits[token_id])
    assert feedback.risk == pytest.approx(mass[True] / sum(mass.values()), abs=1e-5)


def test_a_batch_of_reviews_gets_each_its_own_probabilities():
    policy = LocalPolicy(tiny_model().model, tiny_tokenizer())
    agent = FeedbackAgent(policy, SHORT, Sampling(max_new_tokens=50), formatted=True)
    drafts = [Reply(text=text) for text in ("Hello!", "Use kill.", "Sorry.")]

    async def together():
        return await asyncio.gather(*(agent.review(ASK, draft) for draft in drafts))

    alone = [asyncio.run(agent.review(ASK, draft)).risk for draft in drafts]
    assert [feedback.risk for feedback in asyncio.run(together())] == pytest.approx(alone, abs=1e-4)
    assert len({round(risk, 3) for risk in alone}) == 3


def test_a_model_that_writes_freely_has_its_probabilities_read():
    tokenizer = tiny_tokenizer()
    format_ = PLAIN.format
    reader = LabelReader(tokenizer, format_, LabelVocabulary(tokenizer, format_.labels))
    for name, odds in (("unsafe", 3.0), ("overrefuse", 0.25)):
        ids = tokenizer.encode(f'{{"reasoning": "it is \\"unsafe\\": false", "{name}":')
        logits = torch.full((len(tokenizer),), -20.0)
        logits[tokenizer.convert_tokens_to_ids("t")] = math.log(odds)
        logits[tokenizer.convert_tokens_to_ids("f")] = 0.0
        assert reader.next(ids, logits) is None
    assert reader.probabilities == pytest.approx((0.75, 0.2), abs=1e-4)


@given(st.text(alphabet='ab"\\\n{}:, ', max_size=12), st.integers(0, 40))
def test_the_text_of_a_guide_is_an_object_wherever_it_is_cut(wanted, tokens):
    """A model that wants to write any characters at all closes its string at a quotation mark."""
    tokenizer = tiny_tokenizer()
    guide = JsonGuide(tokenizer, LABELS_FIRST_FORMAT, VOCABULARY)
    wishes = iter(tokenizer.encode(wanted))
    ids = []
    for _ in range(tokens):
        logits = torch.zeros(len(tokenizer))
        free = guide.text.endswith('"}') and "feedback" in guide.text
        logits[next(wishes, tokenizer.eos_token_id) if free else 0] = 1.0
        token = guide.next(ids, logits)
        assert token is not None
        ids.append(token)
        assert isinstance(json.loads(guide.text), dict)
        if guide.finished:
            break


def test_the_prompt_names_every_category_that_the_format_permits():
    for name in HARMS:
        assert name in LABELS_FIRST.feedback_system
    assert "refusal" not in HARMS
