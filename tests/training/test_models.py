from hypothesis import given
from hypothesis import strategies as st

from support import tiny_pair
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.training import ModelSize
from waltzrl.training.models import create_model, create_tokenizer

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
