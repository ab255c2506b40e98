import asyncio
import logging
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import torch

from support.tiny_models import tiny_model, tiny_tokenizer
from support.vllm_server import serving
from waltzrl.agents.exports import ROLES
from waltzrl.errors import InputError, PolicyError, ScoringError
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.vllm import PINNED, VllmServers
from waltzrl.policies.weights import Weights, add_adapters, load_causal_lm
from waltzrl.records import Message
from waltzrl.training.learner import Scorer
from waltzrl.training.samples import Sample

FREELY = Sampling(max_new_tokens=12, temperature=1.0)
QUESTIONS = [
    [Message(role="user", content=text)]
    for text in ("How do I kill a process?", "bread", "The quick brown fox " * 2)
]


def trained_pair(**options):
    """Put two adapters on a base, neither of them zero."""
    pair = add_adapters(tiny_model(**options), ROLES, rank=2)
    torch.manual_seed(1)
    move(pair, *ROLES)
    return pair


def move(pair, *adapters):
    """Change adapters, as an update does."""
    for name, parameter in pair.model.named_parameters():
        if any(f".{adapter}." in name for adapter in adapters):
            parameter.data += torch.randn_like(parameter) / 4


@pytest.fixture
def start():
    """Start servers, each of a base of its own."""
    with ExitStack() as stack:
        yield lambda causal_lm=None, **options: stack.enter_context(
            serving(causal_lm or tiny_model(), **options)
        )


@asynccontextmanager
async def published(pair, folder, *servers):
    async with VllmServers([server.url for server in servers], pair, folder) as vllm:
        await vllm.publish(0, ())
        yield vllm


def policy_of(vllm, pair, adapter="conversation"):
    return vllm.policy(LocalPolicy(pair.model, pair.tokenizer, adapter))


async def replies(policy, questions=QUESTIONS, sampling=FREELY):
    return await asyncio.gather(*(policy.reply(question, sampling) for question in questions))


def assert_scored_alike(pair, adapter, said):
    """Check that our learner gives the tokens the log-probabilities that the server gave."""
    scorer = Scorer(Weights(causal_lm=pair, adapter=adapter), 4096)
    scored = scorer.score([Sample(tokens=reply.tokens) for reply in said])
    for reply, logprobs in zip(said, scored, strict=True):
        assert reply.tokens.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.promise(
    "Training",
    "A reply sampled on a server has the ids and log-probabilities of the adapter that sampled "
    "it, within 1e-4 of the learner's in float32, and its name",
)
@pytest.mark.parametrize("adapter", [None, "conversation", "feedback"])
def test_a_reply_has_the_tokens_of_the_adapter_that_sampled_it(tmp_path, start, adapter):
    pair, server = trained_pair(), start()

    async def sampled():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            return await replies(policy_of(vllm, pair, adapter))

    said = asyncio.run(sampled())
    local = LocalPolicy(pair.model, pair.tokenizer, adapter)
    for question, reply in zip(QUESTIONS, said, strict=True):
        tokens = reply.tokens
        assert tokens.prompt_ids == local.render(question)
        assert reply.text == pair.tokenizer.decode(tokens.ids, skip_special_tokens=True)
        assert len(tokens.ids) == len(tokens.logprobs) == reply.usage.output_tokens <= 12
        assert (reply.finish == "stop") == (tokens.ids[-1] in pair.end_ids)
        name = tokens.version
        assert name == "base" if adapter is None else name.startswith(f"waltzrl-{adapter}-v0-")
    assert_scored_alike(pair, adapter, said)
    others = [name for name in (None, "conversation", "feedback") if name != adapter]
    for other in others:  # the numbers tell the adapters apart
        with pytest.raises(AssertionError):
            assert_scored_alike(pair, other, said)


@pytest.mark.promise(
    "Training", "Whatever a server's defaults are, it samples from the policy itself"
)
def test_all_that_changes_the_distribution_is_pinned(tmp_path, start):
    pair, server = trained_pair(), start()

    async def sampled():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            await replies(policy_of(vllm, pair), QUESTIONS[:1])

    asyncio.run(sampled())
    body = server.completions[-1]
    assert PINNED.items() <= body.items()
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (1.0, 1.0, 12)
    assert set(body["stop_token_ids"]) == pair.end_ids
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (0, 0.0, 1.0)


@pytest.mark.promise(
    "Training",
    "Every update is published on every server under a new name, the old one is unloaded, and at "
    "the end nothing is left",
)
def test_an_update_is_sampled_under_a_new_name_on_every_server(tmp_path, start):
    pair, servers = trained_pair(), [start(), start()]

    async def two_steps():
        async with published(pair, tmp_path / "adapters", *servers) as vllm:
            before = await replies(policy_of(vllm, pair, "feedback"))
            first = [dict(server.adapters) for server in servers]
            move(pair, "feedback")
            await vllm.publish(1, ["feedback"])
            second = [dict(server.adapters) for server in servers]
            kept = {path.name for path in (tmp_path / "adapters").iterdir()}
            return before, await replies(policy_of(vllm, pair, "feedback")), first, second, kept

    before, after, first, second, kept = asyncio.run(two_steps())
    assert first[0] == first[1]
    assert second[0] == second[1]
    (conversation, feedback), names = sorted(first[0]), sorted(second[0])
    assert names == [conversation, feedback.replace("-v0-", "-v1-")]
    assert {reply.tokens.version for reply in before} == {feedback}
    assert {reply.tokens.version for reply in after} == {names[1]}
    assert kept == set(names)  # what no server needs is removed
    assert_scored_alike(pair, "feedback", after)
    with pytest.raises(AssertionError):
        assert_scored_alike(pair, "feedback", before)
    assert all(server.completions for server in servers)


@pytest.mark.promise(
    "Training",
    "Every update is published on every server under a new name, the old one is unloaded, and at "
    "the end nothing is left",
)
def test_at_the_end_the_servers_and_the_disk_are_as_before(tmp_path, start):
    pair, server = trained_pair(), start()

    async def run():
        async with published(pair, tmp_path / "adapters", server):
            assert len(server.adapters) == 2

    asyncio.run(run())
    assert server.adapters == {}
    assert sorted(server.unloaded) == sorted(server.loaded)
    assert not (tmp_path / "adapters").exists()


@pytest.mark.promise(
    "Training",
    "A server that fails is left out, another answers what it was asked, and after the next "
    "update it is tried again",
)
def test_what_a_dead_server_was_asked_another_answers(tmp_path, start, caplog):
    pair, (dying, other) = trained_pair(), (start(), start())

    async def two_steps():
        async with published(pair, tmp_path / "adapters", dying, other) as vllm:
            policy = policy_of(vllm, pair)
            policy.seed(3)
            whole = await replies(policy)
            dying.dies_after = 0
            policy.seed(3)
            alone = await replies(policy)
            left_out = [
                line
                for name, _level, line in caplog.record_tuples
                if name == "waltzrl.policies.vllm"
            ]
            dying.restart()  # it comes back without adapters
            move(pair, "conversation")
            await vllm.publish(1, ["conversation"])
            count = len(dying.completions)
            return whole, alone, left_out, await replies(policy), len(dying.completions) - count

    with caplog.at_level(logging.WARNING):
        whole, alone, left_out, after, answered = asyncio.run(two_steps())
    assert [reply.tokens for reply in whole] == [reply.tokens for reply in alone]
    assert [dying.url in line and "is left out until" in line for line in left_out] == [True]
    assert answered > 0
    assert_scored_alike(pair, "conversation", after)


@pytest.mark.promise(
    "Training",
    "A server that fails is left out, another answers what it was asked, and after the next "
    "update it is tried again",
)
def test_a_server_that_lost_its_adapters_in_a_step_is_left_out(tmp_path, start, caplog):
    pair, (restarted, other) = trained_pair(), (start(), start())

    async def run():
        async with published(pair, tmp_path / "adapters", restarted, other) as vllm:
            restarted.restart()
            return await replies(policy_of(vllm, pair))

    assert_scored_alike(pair, "conversation", asyncio.run(run()))
    assert f"{restarted.url} is left out" in caplog.text


def test_when_no_server_is_left_one_line_says_what_to_start(tmp_path, start):
    pair, server = trained_pair(), start()

    async def run():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            server.dies_after = 0
            with pytest.raises(ScoringError) as sampling:
                await replies(policy_of(vllm, pair))
            with pytest.raises(ScoringError) as publishing:
                await vllm.publish(1, ROLES)
            return str(sampling.value), str(publishing.value)

    for line in asyncio.run(run()):
        assert line.startswith("no vLLM server is left to sample (127.0.0.1:")
        assert "vllm serve" in line
        assert "\n" not in line


def refusal(pair, folder, server):
    async def run():
        async with published(pair, folder, server):
            pass

    with pytest.raises(InputError) as caught:
        asyncio.run(run())
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(server.url)


COMMAND = (
    "`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {base} --dtype float32 --enable-lora"
    " --max-lora-rank 8 --max-loras 2 --logprobs-mode processed_logprobs"
    " --no-enable-chunked-prefill`"
)


@pytest.mark.promise(
    "Training",
    "A server of another base or tokenizer, or that cannot load adapters, is refused before the "
    "first step",
)
@pytest.mark.promise(
    "Bad input",
    "A vLLM server for rollouts with another base, another tokenizer, without adapters or without "
    "log-probabilities: the server, and the command that starts it",
)
@pytest.mark.parametrize(
    ("served", "options", "complaint"),
    [
        ({"seed": 5}, {}, " has another base than the run: its log-probabilities differ by "),
        ({"tokenizer": "other"}, {}, " has another tokenizer than the run's base; "),
        ({}, {"loads_adapters": False}, " cannot load an adapter (127.0.0.1:"),
        ({}, {"leaves_out": ["logprobs"]}, " returned 16 token ids and 0 log-probabilities, "),
        ({}, {"leaves_out": ["token_ids"]}, " returned 0 token ids and 16 log-probabilities, "),
    ],
)
def test_an_unfit_server_is_refused_with_the_command_to_start(
    tmp_path, start, caplog, served, options, complaint
):
    base = tmp_path / "base"
    trained = tiny_model()
    trained.model.save_pretrained(base)
    trained.tokenizer.save_pretrained(base)
    causal_lm = tiny_model(seed=served.get("seed", 0))
    if "tokenizer" in served:
        causal_lm = replace(causal_lm, tokenizer=tiny_tokenizer())
        causal_lm.tokenizer.add_tokens(["processes"])
    pair = add_adapters(load_causal_lm(str(base), "cpu"), ROLES, rank=2)
    line = refusal(pair, tmp_path / "adapters", start(causal_lm, **options))
    assert line.startswith(complaint)
    assert COMMAND.format(base=base) in line
    assert "left out" not in caplog.text  # it is said once


@pytest.mark.promise(
    "Training",
    "A server of another base or tokenizer, or that cannot load adapters, is refused before the "
    "first step",
)
def test_an_unfit_server_is_refused_though_another_is_fit(tmp_path, start):
    fit, unfit = start(), start(tiny_model(seed=5))

    async def run():
        async with published(trained_pair(), tmp_path / "adapters", fit, unfit):
            pass

    with pytest.raises(InputError, match="another base"):
        asyncio.run(run())
    assert fit.adapters == {}


@pytest.mark.promise(
    "Training",
    "A server that fails is left out, another answers what it was asked, and after the next "
    "update it is tried again",
)
def test_a_server_that_does_not_answer_at_the_start_is_left_out(tmp_path, start, caplog):
    pair, (dead, alive) = trained_pair(), (start(), start())
    dead.dies_after = 0

    async def run():
        async with published(pair, tmp_path / "adapters", dead, alive) as vllm:
            return await replies(policy_of(vllm, pair))

    assert len(asyncio.run(run())) == len(QUESTIONS)
    assert f"{dead.url} is left out" in caplog.text


def test_a_prompt_that_is_too_long_is_its_own_failure(tmp_path, start):
    pair, server = trained_pair(), start()

    async def run():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            policy = policy_of(vllm, pair)
            with pytest.raises(PolicyError, match="maximum context length"):
                await policy.reply([Message(role="user", content="fox " * 200)], FREELY)
            return await replies(policy)

    assert len(asyncio.run(run())) == len(QUESTIONS)


def test_the_same_seed_gives_the_same_replies_in_any_order(tmp_path, start):
    pair, server = trained_pair(), start()

    async def run():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            policy = policy_of(vllm, pair)
            said = []
            for seed, questions in ((3, QUESTIONS), (3, QUESTIONS[::-1]), (4, QUESTIONS)):
                policy.seed(seed)
                said.append([reply.tokens for reply in await replies(policy, questions)])
            again = [reply.tokens for reply in await replies(policy)]
            return *said, again

    first, reversed_order, other_seed, again = asyncio.run(run())
    assert first == reversed_order[::-1]
    assert first != other_seed != again


def test_a_reply_ends_where_it_is_enough_as_that_of_a_local_policy(tmp_path, start):
    pair, server = trained_pair(), start()
    sampling = Sampling(max_new_tokens=12, temperature=1.0, seed=5, enough=lambda t: len(t) > 6)

    async def run():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            return await replies(policy_of(vllm, pair), sampling=sampling)

    local = LocalPolicy(pair.model, pair.tokenizer, "conversation")
    ours = asyncio.run(replies(local, sampling=sampling))
    for there, here in zip(asyncio.run(run()), ours, strict=True):
        assert there.tokens.ids == here.tokens.ids
        assert (there.text, there.finish) == (here.text, here.finish)


def test_tools_are_refused(tmp_path, start):
    pair, server = trained_pair(), start()

    async def run():
        async with published(pair, tmp_path / "adapters", server) as vllm:
            await policy_of(vllm, pair).reply(QUESTIONS[0], replace(FREELY, tools=({},)))

    with pytest.raises(PolicyError, match="remove them"):
        asyncio.run(run())
