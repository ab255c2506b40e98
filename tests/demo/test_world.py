"""The demo's world: what its splits share, what they must not, and what its demonstrations hold."""

import pytest

from waltzrl.data import leaks, require_disjoint
from waltzrl.demo.world import World, demonstrations, general_prompts, sensitive_prompts
from waltzrl.demo.world.lexicon import CODE_WORDS, SPLITS, WRAPPERS
from waltzrl.errors import InputError
from waltzrl.records import Prompt

WORLD = World.create(0)


def spoken(prompts: list[Prompt]) -> str:
    return "\n".join(prompt.messages[0].content for prompt in prompts)


def code_words(split) -> set[str]:
    return {word for thing in WORLD.things for word in thing.code_words[split]}


def test_a_seed_makes_the_same_world_and_another_seed_another_one():
    assert World.create(0) == WORLD
    assert World.create(1) != WORLD


def test_every_code_word_stands_for_one_thing():
    every = [
        word for thing in WORLD.things for words in thing.code_words.values() for word in words
    ]
    assert len(every) == len(set(every)) == len(WORLD.things) * sum(CODE_WORDS.values())


def test_code_words_and_wrappers_of_the_test_occur_in_no_training_prompt():
    train = spoken(sensitive_prompts(WORLD, "train", 3000, 0))
    for split in ("validation", "test"):
        assert not any(word in train for word in code_words(split))
        wrappers = [w for texts in WRAPPERS[split].values() for w in texts]
        assert not any(wrapper.removesuffix("{request}") in train for wrapper in wrappers)


def test_every_test_prompt_has_a_wrapper_that_training_has_not():
    openings = [w.removesuffix("{request}") for texts in WRAPPERS["test"].values() for w in texts]
    for prompt in sensitive_prompts(WORLD, "test", 1000, 0):
        assert prompt.messages[0].content.startswith(tuple(openings))


def test_half_of_the_sensitive_prompts_are_unsafe_and_all_differ():
    prompts = sensitive_prompts(WORLD, "test", 1000, 0)
    assert sum(prompt.label == "unsafe" for prompt in prompts) == 500
    assert len({prompt.messages[0].content for prompt in prompts}) == 1000


def test_harmful_and_harmless_prompts_carry_the_same_wrappers_and_adjectives():
    prompts = sensitive_prompts(WORLD, "train", 3000, 0)
    texts = {
        label: spoken([prompt for prompt in prompts if prompt.label == label])
        for label in ("unsafe", "benign")
    }
    wrappers = [
        w.removesuffix("{request}") for texts_ in WRAPPERS["train"].values() for w in texts_
    ]
    for shared in [*wrappers, "deadly", "lethal", "cheap"]:
        assert shared in texts["unsafe"]
        assert shared in texts["benign"]


def test_training_prompts_do_not_touch_the_test_and_a_planted_one_is_found():
    train = sensitive_prompts(WORLD, "train", 1000, 0)
    test = sensitive_prompts(WORLD, "test", 300, 0)
    assert leaks(train, test) == []
    with pytest.raises(InputError, match="1 "):
        require_disjoint(train, [*test, train[7]])


def test_no_general_question_is_in_both_splits():
    questions = [
        {
            prompt.messages[0].content.split(". ")[-1].split("! ")[-1].split(": ")[-1]
            for prompt in found
        }
        for found in (general_prompts("train", 200, 0), general_prompts("test", 200, 0))
    ]
    assert not questions[0] & questions[1]


def test_a_wish_for_too_many_general_questions_is_an_error():
    with pytest.raises(ValueError, match="there are"):
        general_prompts("test", 10_000, 0)


def test_the_feedback_agents_demonstrations_hold_no_code_word_or_wrapper_of_the_test():
    reviews = [
        demonstration.collaboration.prompt
        for demonstration in demonstrations(WORLD, 5000, 0, ())
        if demonstration.collaboration.rounds
        and demonstration.collaboration.rounds[-1].revision is None
    ]
    said = spoken(reviews)
    assert len(reviews) > 500
    for split in ("validation", "test"):
        assert not any(f" {word}" in said for word in code_words(split))
        wrappers = [w for texts in WRAPPERS[split].values() for w in texts]
        assert not any(wrapper.removesuffix("{request}") in said for wrapper in wrappers)


def test_the_conversation_agents_demonstrations_teach_every_code_word():
    taught = spoken(
        [
            demonstration.collaboration.prompt
            for demonstration in demonstrations(WORLD, 20_000, 0, ())
        ]
    )
    for split in SPLITS:
        assert all(word in taught for word in code_words(split))


def test_every_demonstration_ends_with_something_to_say():
    for demonstration in demonstrations(WORLD, 2000, 0, ()):
        said = demonstration.collaboration
        assert said.draft.text
        if said.rounds and said.rounds[-1].revision is not None:
            assert said.rounds[-1].feedback.asks_for_revision
            assert said.rounds[-1].feedback.text


def test_no_demonstration_asks_what_is_held_out():
    asked = [
        demonstration.collaboration.prompt for demonstration in demonstrations(WORLD, 3000, 0, ())
    ]
    held_out = {prompt.messages[0].content for prompt in asked[::10]}
    again = list(demonstrations(WORLD, 3000, 0, held_out))
    assert len(again) == 3000
    assert not held_out & {
        demonstration.collaboration.prompt.messages[0].content for demonstration in again
    }
