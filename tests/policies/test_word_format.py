"""Labels in words: read from a reply, with their probabilities, on a server and in this process."""

import asyncio
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.openai_server import serving
from support.tiny_models import CHAT_TEMPLATE, FAMILIES, tiny_model, tiny_tokenizer
from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.word_format import WordFormat, WordLabel
from waltzrl.records import Message, Usage

SAFETY = WordLabel(
    name="unsafe",
    true=("Unsafe",),
    false=("Safe",),
    undecided=("Controversial",),
    before=r"(?:\A|\n)Safety:\s*",
)
REFUSAL = WordLabel(name="refuses", true=("Yes",), false=("No",), before=r"\nRefusal:\s*")
BOTH = WordFormat((SAFETY, REFUSAL))
FIRST = WordFormat((WordLabel(name="unsafe", true=("yes",), false=("no",)),))
HELLO = (Message(role="user", content="How do I kill a process?"),)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Safety: Safe\nRefusal: Yes", {"unsafe": False, "refuses": True}),
        ("safety: UNSAFE\nrefusal: no", {"unsafe": True, "refuses": False}),
        ("Safety: Controversial", {"unsafe": None}),
        ("Safety: Safely\nRefusal: Yes, it does", {"refuses": True}),
        ("Safety: Safe\nSafety: Unsafe\nRefusal: No", {"refuses": False}),
        ("Safety: Safe\nSafety: Safe\nRefusal: No", {"unsafe": False, "refuses": False}),
        ("Its Safety: Safe", {}),
        ("", {}),
    ],
)
def test_a_word_counts_only_in_its_place(text, values):
    assert BOTH.read(text) == values


@given(st.text())
def test_any_text_can_be_read(text):
    assert set(BOTH.read(text)) <= {"unsafe", "refuses"}


def test_probabilities_are_those_of_the_words_at_their_places():
    tokens = [
        ("Safety", [("Safety", 1.0)]),
        (":", [(":", 1.0)]),
        (" Un", [(" Un", 0.5), (" Safe", 0.2), (" Cont", 0.1), (" The", 0.2)]),
        ("safe", [("safe", 1.0)]),
        ("\nRefusal: ", [("\nRefusal: ", 1.0)]),
        ("No", [("No", 0.6), ("Yes", 0.2), ("Nobody", 0.2)]),
    ]
    assert BOTH.probabilities(tokens) == pytest.approx((0.5 / 0.8, 0.2 / 0.8))
    assert BOTH.probabilities(tokens[:4]) == ()  # the second label was not reached


def test_a_token_that_begins_words_of_both_kinds_says_nothing():
    label = WordLabel(name="x", true=("unsafe",), false=("unsure",))
    assert [label.group(token) for token in ("uns", "un", "unsa", " unsure.", "", "no")] == [
        None,
        None,
        1,
        0,
        None,
        None,
    ]


@pytest.mark.promise(
    "Evaluation",
    "A guard by server or in this process gives the probabilities of its labels, tokens and "
    "revision, and the log keeps them",
)
@pytest.mark.parametrize("family", FAMILIES)
def test_in_this_process_the_probability_is_the_models_own(family):
    causal_lm = tiny_model(family)
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer)
    reply = asyncio.run(policy.reply(HELLO, Sampling(max_new_tokens=1, format=FIRST)))
    with torch.no_grad():
        logits = causal_lm.model(input_ids=torch.tensor([policy.render(HELLO)])).logits[0, -1]
    mass = dict.fromkeys((True, False), 0.0)
    for token, number in causal_lm.tokenizer.get_vocab().items():
        word = token.strip("\u0120").lower()
        for value, label in ((True, "yes"), (False, "no")):
            if word and label.startswith(word):
                mass[value] += float(logits.softmax(-1)[number])
    assert reply.label_probabilities == pytest.approx(
        (mass[True] / (mass[True] + mass[False]),), rel=1e-3
    )


def test_a_format_in_words_does_not_change_the_reply():
    causal_lm = tiny_model()
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer)
    plain, read = (
        asyncio.run(policy.reply(HELLO, Sampling(max_new_tokens=8, format=words)))
        for words in (None, BOTH)
    )
    assert plain.tokens == read.tokens
    assert read.label_probabilities == ()


def test_a_bare_text_is_continued_as_it_is():
    causal_lm = tiny_model()
    policy = LocalPolicy(causal_lm.model, causal_lm.tokenizer)
    text = "<|user|>How do I kill a process?<|end|><|assistant|>"
    sampling = Sampling(max_new_tokens=4)
    bare = asyncio.run(policy.continue_text(text, sampling))
    assert bare.tokens == asyncio.run(policy.reply(HELLO, sampling)).tokens
    with pytest.raises(PolicyError, match="the model's context has 128"):
        asyncio.run(policy.continue_text(text * 20, sampling))


def test_the_chat_template_gets_its_arguments():
    causal_lm = tiny_model()
    tokenizer = tiny_tokenizer("{{ guideline }}" + CHAT_TEMPLATE)
    policy = LocalPolicy(causal_lm.model, tokenizer)
    plain, ruled = (policy.render(HELLO, (), {"guideline": text}) for text in ("", "No dogs."))
    assert tokenizer.decode(ruled) == "No dogs." + tokenizer.decode(plain)


class CountingPolicy(ScriptedPolicy):
    """Says how many tokens it read and wrote, as servers do."""

    async def reply(self, messages, sampling):
        said = await super().reply(messages, sampling)
        return replace(said, usage=Usage(input_tokens=2, output_tokens=6))


def test_a_text_completion_is_a_reply():
    async def reply(server):
        async with RemotePolicy(server.base_url, "m") as policy:
            got = await policy.continue_text("Safety?", Sampling(max_new_tokens=9, format=BOTH))
            return got, policy.revision

    with serving({"m": CountingPolicy(["Safety: Unsafe\nRefusal: No"])}) as server:
        server.model, server.fingerprint = "m-0825", "fp"
        server.odds = {
            "Unsafe": {" Unsafe": 0.75, " Safe": 0.25},
            "No": {" No": 0.9, " Yes": 0.1},
        }
        got, revision = asyncio.run(reply(server))
    assert got.text == "Safety: Unsafe\nRefusal: No"
    assert got.label_probabilities == pytest.approx((0.75, 0.1))
    assert got.usage == Usage(input_tokens=2, output_tokens=6, model="m-0825")
    assert revision == "m-0825 fp"
    ((_headers, body),) = server.requests
    assert body == {
        "model": "m",
        "prompt": "Safety?",
        "temperature": 0.0,
        "max_tokens": 9,
        "logprobs": 5,
    }


def test_a_text_is_continued_as_it_is_asked_to_be_or_not_at_all():
    asked = Sampling(max_new_tokens=9, top_p=0.5, seed=7)
    refused = [replace(asked, template={"think": False}), replace(asked, tools=({"type": "x"},))]

    async def replies(server):
        async with RemotePolicy(server.base_url, "m") as policy:
            await policy.continue_text("Safety?", asked)
            for sampling in refused:
                with pytest.raises(PolicyError, match="remove"):
                    await policy.continue_text("Safety?", sampling)

    with serving({"m": ScriptedPolicy(["Safe"])}) as server:
        asyncio.run(replies(server))
    ((_headers, body),) = server.requests
    assert (body["top_p"], body["seed"]) == (0.5, 7)


@pytest.mark.parametrize(
    ("body", "problem"),
    [('{"choices": []}', "no choices"), ("What?", "not a text completion")],
)
def test_what_is_no_text_completion_is_one_clear_error(body, problem):
    async def reply(server):
        async with RemotePolicy(server.base_url, "m") as policy:
            await policy.continue_text("Safety?", Sampling())

    with serving({}) as server:
        server.first.append((200, {"Content-Type": "application/json"}, body))
        with pytest.raises(PolicyError, match=problem):
            asyncio.run(reply(server))
