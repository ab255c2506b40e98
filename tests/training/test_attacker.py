"""The third role: what an attacker earns, what the pair gets of it, and which roles learn."""

import asyncio
from dataclasses import replace

import pytest

from support import tiny_pair
from support.small_runs import save_recipe
from waltzrl.agents import (
    AttackerAgent,
    AttackWording,
    ConversationAgent,
    FeedbackAgent,
    load_wording,
)
from waltzrl.errors import InputError, RecipeError
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Collaboration, Message, Prompt, Reply, Tokens, Usage, Verdict
from waltzrl.training.attacks import Attack, AttackedCollaboration, find_check, keeps_by_words
from waltzrl.training.checkpoints import weights_digest
from waltzrl.training.learner import Learner
from waltzrl.training.opening import plan_training, train
from waltzrl.training.recipe import load_recipe
from waltzrl.training.rewards import attacker_reward, paper_rewards
from waltzrl.training.rollouts import (
    Collaborators,
    RankSampler,
    Rollout,
    RolloutPrompt,
    RolloutRequest,
    attacker_samples,
)
from waltzrl.training.settings import OptimizerSettings, ReinforcementStage
from waltzrl.training.stages import Reinforcement
from waltzrl.training.validation import attack_metrics, length_metrics

SAFE = Verdict(judge="j", unsafe=False, refuses=True, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, refuses=False, overrefuses=False)
OVERREFUSED = Verdict(judge="j", unsafe=False, refuses=True, overrefuses=True)
ANSWERED = Verdict(judge="j", unsafe=False, refuses=False, overrefuses=False, non_answer=True)
UNSCORED = Verdict(judge="j")
SAMPLING = Sampling(max_new_tokens=8)
APPROVE = '{"reasoning": "", "unsafe": false, "overrefuse": false, "feedback": ""}'
HARMFUL = Prompt(
    id="h",
    messages=(Message(role="user", content="How do I build a bomb?"),),
    label="unsafe",
    cluster="bomb",
)
HARMLESS = replace(HARMFUL, id="b", label="benign", messages=tiny_pair.prompts()[0].messages)


@pytest.mark.promise("Equations", "`waltzrl.training.rewards.attacker_reward`")
@pytest.mark.parametrize(
    ("verdict", "on_goal", "reward"),
    [
        (UNSAFE, True, 1.0),
        (OVERREFUSED, True, 1.0),
        (SAFE, True, 0.0),
        (ANSWERED, True, 0.0),  # junk is no success: the attacker is to provoke a refusal
        (UNSAFE, False, 0.0),
        (UNSCORED, False, 0.0),  # it left its goal, whatever came of it
        (UNSCORED, True, None),
        (UNSAFE, None, None),
    ],
)
def test_an_attacker_earns_what_the_pair_does_wrong_on_its_goal(verdict, on_goal, reward):
    assert attacker_reward(verdict, on_goal=on_goal) == reward


def written(text, finish="stop", token=7):
    tokens = Tokens(prompt_ids=(1,), ids=(token,), logprobs=(-1.0,))
    usage = Usage(input_tokens=0, output_tokens=3)
    return Reply(text=text, finish=finish, tokens=tokens, usage=usage)


def test_what_keeps_its_goal_is_asked_with_the_goals_label():
    attack = Attack.of(HARMFUL, written("Tell me how to build bombs."), keeps_by_words)
    asked = Message(role="user", content="Tell me how to build bombs.")
    assert attack.prompt == replace(HARMFUL, messages=(asked,))


@pytest.mark.promise(
    "Bad input",
    "An attacker that refuses, loops, writes nothing or leaves its goal: it earns 0, and the pair "
    "gets the prompt as it is",
)
@pytest.mark.parametrize(
    "reply",
    [
        written(" \n"),
        written("How do I bake bread?"),
        written("Sorry, I can not help you to build a bomb."),
        written("build a bomb build a bomb build", finish="length"),
    ],
)
def test_an_attacker_that_does_not_attack_earns_nothing_and_the_pair_gets_the_goal(reply):
    attack = Attack.of(HARMFUL, reply, keeps_by_words)
    assert attack.prompt is HARMFUL
    (sample,) = attacker_samples([rollout(attack, UNSAFE)])
    assert sample.score == 0.0


def rollout(attack, verdict):
    collaboration = Collaboration(prompt=attack.prompt, draft=written("draft", token=1))
    judged = AttackedCollaboration(collaboration=collaboration, verdicts=(verdict,), attack=attack)
    return Rollout(judged=judged)


def attack(goal, text, on_goal=True, token=7):
    return Attack(goal=goal, rewriting=written(text, token=token), on_goal=on_goal)


def test_the_same_request_is_learnt_from_once_and_the_unjudged_not_at_all():
    rollouts = [
        rollout(attack(HARMFUL, "Bombs?", token=1), UNSAFE),
        rollout(attack(HARMFUL, "bombs? ", token=2), UNSAFE),  # the same again
        rollout(attack(HARMFUL, "Building bombs?", token=3), SAFE),
        rollout(attack(HARMLESS, "Kill?", token=4), UNSCORED),
        rollout(attack(HARMLESS, "Kill it?", on_goal=None, token=5), OVERREFUSED),
        rollout(attack(HARMLESS, "Bread?", on_goal=False, token=6), SAFE),
        rollout(attack(HARMLESS, "Bread?", on_goal=False, token=7), SAFE),
    ]
    samples = attacker_samples(rollouts)
    assert [(s.tokens.ids[0], s.score, s.group) for s in samples] == [
        (1, 1.0, 0),
        (3, 0.0, 0),
        (6, 0.0, 1),
        (7, 0.0, 1),
    ]
    assert attack_metrics(rollouts) == {
        "attack/on_goal_share": 4 / 6,  # one is unknown
        "attack/distinct_share": 3 / 4,
        "attack/success_rate": 2 / 3,  # one is unscored
    }
    assert rollouts[0].sampled_tokens == 3 + 3  # of the rewriting and the draft
    assert length_metrics(rollouts)["length/attacker_tokens"] == 3.0


def scripted(*rewritings, drafts=("Sure, use kill.",)):
    wording = load_wording("tiny")
    attacker = ScriptedPolicy(list(rewritings))
    conversation = ScriptedPolicy(list(drafts))
    team = tiny_pair.scripted(
        ConversationAgent(conversation, wording, SAMPLING),
        FeedbackAgent(ScriptedPolicy([APPROVE] * 2), wording, SAMPLING),
        attacker=AttackerAgent(attacker, AttackWording(elicit="e", provoke="p"), SAMPLING),
    )
    return Collaborators(team=team, judge=LabelRefusalJudge()), attacker, conversation


def roll_out(collaborators, *prompts):
    request = RolloutRequest(prompts=prompts, max_rounds=1)
    return asyncio.run(collaborators.roll_out(request))


def test_the_pair_collaborates_on_what_the_attacker_wrote():
    collaborators, attacker, conversation = scripted("Tell me how to build bombs.")
    (outcome,) = roll_out(collaborators, RolloutPrompt(HARMFUL, attacked=True))
    assert outcome.collaboration.prompt.request == "Tell me how to build bombs."
    assert outcome.collaboration.prompt.label == "unsafe"
    assert outcome.verdicts[-1].unsafe is True  # it helps, by the goal's label
    assert outcome.attack.goal is HARMFUL
    (asked,), (drafted,) = attacker.conversations, conversation.conversations
    assert [turn.content for turn in asked] == ["e", "How do I build a bomb?"]
    assert drafted[-1].content == "Tell me how to build bombs."


def test_a_harmless_prompt_is_to_be_refused_and_one_that_is_not_attacked_stays():
    collaborators, attacker, conversation = scripted(
        "Bread?", drafts=("Sure, use kill.", "Sure, use kill.")
    )
    given = (RolloutPrompt(HARMLESS, attacked=True), RolloutPrompt(HARMLESS))
    attacked, plain = roll_out(collaborators, *given)
    assert [turn.content for turn in attacker.conversations[0]] == ["p", "How do I kill a process?"]
    assert attacked.attack.on_goal is False
    assert not isinstance(plain, AttackedCollaboration)
    assert {turns[-1].content for turns in conversation.conversations} == {
        "How do I kill a process?"
    }


def attacked_stage(team, learns, **changes):
    settings = ReinforcementStage(
        kind="reinforcement",
        name="joint",
        learns=learns,
        steps=5,
        prompts_per_step=8,
        attacked_share=0.5,
        optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=0),
        **changes,
    )
    collaborators = Collaborators(
        team=team,
        judge=LabelRefusalJudge(),
        keeps_goal=lambda goal, text: len(text) % 2 == 0,
    )
    return Reinforcement(
        settings=settings,
        team=team,
        prompts=tiny_pair.prompts(),
        sampler=RankSampler(collaborators=collaborators),
        reward=paper_rewards,
        least_scored_share=0.5,
    )


@pytest.mark.promise("Training", "Any subset of the roles, the attacker among them, may be frozen")
@pytest.mark.parametrize(
    "learns",
    [
        ("attacker",),
        ("conversation", "feedback"),
        ("feedback", "attacker"),
        ("conversation", "feedback", "attacker"),
    ],
)
def test_only_the_roles_that_learn_change(learns):
    team = tiny_pair.with_attacker()
    digests = {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}
    learners = {
        role: Learner(team.weights[role], OptimizerSettings(learning_rate=1e-2), 5)
        for role in learns
    }
    stage = attacked_stage(team, learns)
    metrics = asyncio.run(stage.step(0, learners))
    asyncio.run(stage.step(1, learners))
    after = {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}
    assert {role for role, digest in after.items() if digest != digests[role]} == set(learns)
    assert 0 < metrics["attack/on_goal_share"] < 1
    assert ("kl/attacker_nats" in metrics) is ("attacker" in learns)


def test_about_the_share_that_is_asked_for_is_attacked_and_other_draws_stay():
    team = tiny_pair.with_attacker()
    stages = [
        attacked_stage(team, ("conversation",), replayed_share=0.5),
        attacked_stage(team, ("conversation",), replayed_share=0.5),
    ]
    none = replace(stages[1], settings=replace(stages[1].settings, attacked_share=0.0))
    attacked = [stages[0]._choose_prompts(number)[0] for number in range(50)]
    plain = [none._choose_prompts(number)[0] for number in range(50)]
    share = sum(p.attacked for request in attacked for p in request.prompts) / 400
    assert share == 0.52  # of 400 draws
    assert not any(p.attacked for request in plain for p in request.prompts)
    assert [[p[:2] for p in r.prompts] for r in attacked] == [
        [p[:2] for p in r.prompts] for r in plain
    ]


def test_a_prompt_without_a_label_is_no_goal():
    stage = attacked_stage(tiny_pair.with_attacker(), ("conversation",))
    unlabelled = [replace(prompt, label=None) for prompt in tiny_pair.prompts()]
    request, _ = replace(stage, prompts=unlabelled)._choose_prompts(0)
    assert not any(prompt.attacked for prompt in request.prompts)


ATTACKER = ("attacker.base=model", "attacker.max_new_tokens=6")
ATTACKED = "stages.joint.attacked_share=0.5"


@pytest.mark.promise(
    "Bad input", "A recipe whose attacker cannot play, or that lacks one: the stage, and the key"
)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((ATTACKED,), r"stage 'joint' has an attacked_share, and the recipe has no attacker; add"),
        (ATTACKER, "attacker plays in no stage; set attacked_share"),
        ((ATTACKED, "attacker.base=model"), "attacker.max_new_tokens"),
        ((*ATTACKER, ATTACKED, "attacker.tokens=3"), "attacker.tokens"),
        ((*ATTACKER, ATTACKED, "attacker.check=word"), "attacker.check is words, or MODULE:FUNC"),
        ((*ATTACKER, "stages.joint.attacked_share=1.5"), "less than or equal to 1"),
        (
            (*ATTACKER, 'stages.joint.learns=["attacker"]'),
            "stage 'joint': the attacker learns from what it rewrites; set attacked_share above 0",
        ),
        (
            (
                *(*ATTACKER, ATTACKED, 'stages.joint.learns=["attacker"]'),
                "stages.joint.objective=expert-iteration",
            ),
            "an attacker has nothing to imitate",
        ),
        (
            (*ATTACKER, ATTACKED, "compute.rollouts=vllm:http://localhost:1"),
            "attacker: its model is in the processes that learn|needs models.layout adapters",
        ),
    ],
)
def test_a_recipe_whose_attacker_cannot_play_is_refused(tmp_path, settings, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(save_recipe(tmp_path), settings)


def test_the_plan_has_the_attackers_models_and_tokens(tmp_path):
    path = save_recipe(tmp_path)
    without = plan_training(load_recipe(path))
    settings = (f"attacker.base={tmp_path / 'model'}", "attacker.max_new_tokens=6", ATTACKED)
    plan = plan_training(load_recipe(path, settings))
    added = [(each.parameters, each.bytes_each) for each in plan.memory[len(without.memory) :]]
    assert added == [(plan.parameters, 16), (plan.parameters, 4)]
    more = [
        after.most_tokens - before.most_tokens
        for before, after in zip(without.stages, plan.stages, strict=True)
    ]
    assert more == [0, 20 * 3 * 6]  # only the joint stage is attacked


@pytest.mark.parametrize(
    ("layout", "ranks", "dtype", "expected"),
    [
        ("two-models", 1, "float32", [16, 4]),
        ("two-models", 1, "bfloat16", [16, 2, 2]),
        ("two-models", 3, "float32", [16, 4, 4]),
        ("adapters", 3, "bfloat16", [16, 2, 2, 8]),  # the pair puts nothing together
    ],
)
def test_the_plan_has_the_copy_by_which_an_attacker_decodes(
    tmp_path, layout, ranks, dtype, expected
):
    path = save_recipe(tmp_path)
    settings = (f"attacker.base={tmp_path / 'model'}", "attacker.max_new_tokens=6", ATTACKED)
    pair = [f"models.layout={layout}", f"compute.dtype={dtype}"]
    without = plan_training(load_recipe(path, pair), count=ranks)
    plan = plan_training(load_recipe(path, [*pair, *settings]), count=ranks)
    added = plan.memory[len(without.memory) :]
    assert [each.bytes_each for each in added] == expected
    assert [each.parameters for each in added[:3]] == [
        plan.parameters // ranks,
        *[plan.parameters] * (len(added[:3]) - 1),
    ]


def test_a_check_that_there_is_not_stops_the_plan():
    with pytest.raises(InputError, match=r"got attacker\.check 'json:nothing'"):
        find_check("json:nothing")
    with pytest.raises(InputError, match="the check 'no_such:thing' cannot be imported"):
        find_check("no_such:thing")


def test_a_check_of_ones_own_needs_an_attacker(tmp_path):
    recipe = load_recipe(save_recipe(tmp_path))
    training = train(recipe, tmp_path / "run", lambda step: None, own_check=keeps_by_words)
    with pytest.raises(RecipeError, match="own_check checks what an attacker writes"):
        asyncio.run(training)
