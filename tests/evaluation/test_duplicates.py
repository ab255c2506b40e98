import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl.evaluation.data.duplicates import (
    HASHES,
    NEAR,
    Leak,
    jaccard,
    leaks,
    near_duplicates,
    normalise_text,
    require_disjoint,
    signature,
    split_into_shingles,
    text_of,
)
from waltzrl.records import Message, Prompt

QUESTION = "Please tell me how the harbour pilots of the last century found their way at night"
OTHER = "Which mushrooms grow under old beech trees after a week of rain in early October"


def prompt(text, name="p"):
    return Prompt(id=name, messages=(Message(role="user", content=text),))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("  Kill  a\tPROCESS!? ", "kill a process"),
        ("\ufb01re\u2014\uff21\uff4carm", "fire alarm"),
        ("snake_case, don't", "snake case don t"),
        ("Straße", "strasse"),
        ("?!", ""),
        ("\U0001f600 \U0001f680!", "\U0001f600\U0001f680"),
        ("Hi \U0001f600", "hi"),
    ],
)
def test_normalising_keeps_letters_and_digits(text, form):
    assert normalise_text(text) == form


@given(st.text())
def test_case_and_punctuation_never_make_a_prompt_new(text):
    assert normalise_text(f"{normalise_text(text).upper()}!") == normalise_text(
        normalise_text(text).upper()
    )
    assert normalise_text(normalise_text(text)) == normalise_text(text)


def test_shingles_are_words_and_neighbouring_pairs():
    assert split_into_shingles("To be, to see") == {"to", "be", "see", "to be", "be to", "to see"}


@pytest.mark.promise("Equations", "`waltzrl.evaluation.data.duplicates.jaccard`")
def test_jaccard_is_shared_over_all():
    # {a, b, "a b"} and {b, c, "b c"} share b: 1 of 5.
    assert jaccard(split_into_shingles("a b"), split_into_shingles("b c")) == pytest.approx(0.2)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.data.duplicates.signature`")
@given(
    shared=st.integers(0, 60),
    left=st.integers(0, 60),
    right=st.integers(0, 60),
    start=st.integers(0, 10**6),
)
def test_minhash_estimates_jaccard(shared, left, right, start):
    one = frozenset(f"w{start + n}" for n in range(shared + left + 1))
    two = frozenset(f"w{start + n}" for n in range(shared)) | {f"v{n}" for n in range(right + 1)}
    agreeing = sum(a == b for a, b in zip(signature(one), signature(two), strict=True))
    # A binomial share of 64 has a standard error of at most 1 / 16; six of them never happen.
    assert agreeing / HASHES == pytest.approx(jaccard(one, two), abs=6 / 16)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.data.duplicates.signature`")
def test_minhash_is_unbiased_over_many_pairs():
    # 30 of 90 shared in each of 200 pairs: the mean of 12,800 agreements has an error of 0.0042.
    agreed = 0
    for pair in range(200):
        words = [f"{pair}-{n}" for n in range(90)]
        one, two = signature(frozenset(words[:60])), signature(frozenset(words[30:]))
        agreed += sum(a == b for a, b in zip(one, two, strict=True))
    assert agreed / (200 * HASHES) == pytest.approx(1 / 3, abs=0.02)


def test_signatures_are_the_same_on_every_machine():
    assert signature(frozenset({"bomb", "a bomb"}))[:2] == (302591631, 158050931)


def test_prompts_that_differ_in_case_are_duplicates():
    first, second, third = prompt("Hi there!", "a"), prompt("hi  THERE", "b"), prompt("Ho", "c")
    repeated = Leak(train=first, test=second, similarity=1.0)
    assert near_duplicates([first, second, third]) == [repeated]


def test_an_equal_prompt_leaks_with_similarity_one():
    train, test = prompt(QUESTION, "train/1"), prompt(QUESTION.upper() + "?", "test/1")
    found = leaks([prompt(OTHER, "train/0"), train], [test])
    assert found == [Leak(train=train, test=test, similarity=1.0)]


@pytest.mark.parametrize(
    "edited",
    [
        QUESTION.replace("harbour", "seaport"),
        QUESTION.removeprefix("Please "),
        f"{QUESTION}, thank you",
        QUESTION.replace("century", "centuries"),
    ],
)
def test_a_slightly_edited_prompt_leaks(edited):
    assert len(leaks([prompt(OTHER), prompt(QUESTION)], [prompt(edited)])) == 1


def test_the_closest_training_prompt_is_named():
    near, nearer = prompt(f"{QUESTION} or fog", "near"), prompt(f"{QUESTION} too", "nearer")
    assert leaks([near, nearer], [prompt(QUESTION)])[0].train is nearer


def test_the_same_words_in_another_question_are_no_leak():
    assert leaks([prompt("How do I kill a Python process?")], [prompt("Kill a python? How?")]) == []


def test_the_threshold_decides():
    # One of nine words differs, in the middle: 8 words and 6 pairs are shared, of 20 in all.
    one, two = prompt("a b c d e f g h i"), prompt("a b c d X f g h i")
    assert [leak.similarity for leak in leaks([one], [two])] == [NEAR]
    # One of eight: 12 of 18.
    assert leaks([prompt("a b c d e f g h")], [prompt("a b c d X f g h")]) == []


def test_a_shared_system_message_is_no_leak():
    def told(text):
        system = Message(role="system", content="You are helpful and brief and kind. " * 9)
        return Prompt(id="p", messages=(system, Message(role="user", content=text)))

    assert leaks([told(QUESTION)], [told(OTHER)]) == []
    assert text_of(told(OTHER)) == OTHER


def test_prompts_without_a_word_are_compared_too():
    assert len(leaks([prompt("???")], [prompt("!!!"), prompt(OTHER)])) == 1
    smile = prompt("\U0001f600\U0001f600", "smile")
    leaked = leaks([prompt("???"), smile], [smile, prompt("\U0001f680"), prompt("1 + 1")])
    assert leaked == [Leak(train=smile, test=smile, similarity=1.0)]


def test_nothing_leaks_from_or_into_nothing():
    assert leaks([], [prompt(QUESTION)]) == []
    assert leaks([prompt(QUESTION)], []) == []


def test_the_gate_names_the_first_pair_and_how_many():
    train = [prompt(QUESTION, "train/7"), prompt(OTHER, "train/8")]
    test = [prompt("Why?", "test/1"), prompt(f"{QUESTION}!", "test/2"), prompt(OTHER, "test/3")]
    with pytest.raises(InputError) as caught:
        require_disjoint(train, test)
    assert str(caught.value).startswith(
        "2 of 3 test prompts are in the training prompts; first: test 'test/2' is train 'train/7' "
        "(similarity 1.00): 'Please tell me how"
    )


@pytest.mark.promise("Equations", "`waltzrl.evaluation.data.duplicates.require_disjoint`")
def test_the_gate_lets_disjoint_sets_pass():
    require_disjoint([prompt(QUESTION)], [prompt(OTHER)])
