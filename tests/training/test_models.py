import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import tiny_pair
from support.tiny_models import tiny_model
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.errors import InputError
from waltzrl.policies.compute import ComputeSettings, resolve_compute
from waltzrl.training.models import create_model, create_tokenizer, make_roles, open_base
from waltzrl.training.settings import AgentSettings, ModelSettings, ModelSize

TOKENIZER = create_tokenizer(tiny_pair.TEXTS)


@given(st.text())
def test_any_text_survives_the_tokenizer(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids) == text


def test_known_words_are_one_token_each_and_others_are_bytes():
    def count(text):
        return len(TOKENIZER(text, add_special_tokens=False)["input_ids"])

    assert count("How do I kill a process?") == 7
    assert count(" zebra") == len(" zebra")


def test_the_frame_of_a_feedback_is_a_few_tokens():
    says = write_feedback(reasoning="", unsafe=True, overrefuse=False, text="How do I")
    assert len(TOKENIZER(says, add_special_tokens=False)["input_ids"]) <= 8


def test_the_same_seed_makes_the_same_model_whatever_the_order_of_the_texts():
    size = ModelSize(hidden=32, layers=1, heads=2, context=64)
    one, other = (
        create_model(texts, size, seed=1) for texts in (tiny_pair.TEXTS, tiny_pair.TEXTS[::-1])
    )
    assert one.tokenizer.get_vocab() == other.tokenizer.get_vocab()
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    assert all((mine == theirs).all() for mine, theirs in pairs)
    assert one.end_ids == {one.tokenizer.eos_token_id}


def test_a_disk_without_room_for_a_created_base_is_one_line(tmp_path):
    size = ModelSize(hidden=32, layers=1, heads=2, context=64)
    settings = ModelSettings(base=size, layout="two-models")
    compute = resolve_compute(ComputeSettings(device="cpu", threads=1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*base: .*File too large.*; free"):
            open_base(settings, tmp_path / "base", tiny_pair.TEXTS, compute, seed=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_one_model_in_both_roles_is_one_set_of_weights_with_a_frozen_reference():
    settings = ModelSettings(base="somewhere", layout="one-model")
    agents = AgentSettings(max_new_tokens=4, wording="tiny")
    compute = resolve_compute(ComputeSettings(device="cpu", threads=1))
    team = make_roles(settings, agents, tiny_model(), compute, seed=0)
    models = {id(weights.causal_lm.model) for weights in team.weights.values()}
    assert len(models) == 1
    assert team.conversation.policy.model is team.feedback.policy.model
    for role in team.roles.values():
        assert id(role.reference.causal_lm.model) not in models
        assert not any(p.requires_grad for p in role.reference.causal_lm.model.parameters())


@pytest.mark.promise("Training", "A feedback has a limit of its own where one is set")
def test_a_feedback_has_a_limit_of_its_own():
    settings = ModelSettings(base="somewhere", layout="two-models")
    agents = AgentSettings(max_new_tokens=8, feedback_max_new_tokens=3, wording="tiny")
    compute = resolve_compute(ComputeSettings(device="cpu", threads=1))
    team = make_roles(settings, agents, tiny_model(), compute, seed=0)
    assert team.conversation.sampling.max_new_tokens == team.initial.sampling.max_new_tokens == 8
    assert team.feedback.sampling.max_new_tokens == 3
