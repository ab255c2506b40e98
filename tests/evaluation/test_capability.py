import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.evaluation.capability import gives_answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("paris", "The capital of France is Paris."),
        ("New York", "It is NEW  YORK, of course"),
        ("café", "A cafe\u0301 is meant."),
        ("7", "7"),
        ("7", "3 plus 4 is 7."),
        ("7", "3 plus 4 is 7.00"),
        ("1234", "That makes $1,234."),
        ("1,234", "That makes 1234 apples"),
        ("-3", "The sum is -3"),
        ("-3", "The sum is \N{MINUS SIGN}3"),
        ("12", "The answer is 12, because 5 + 7 has 5 and 7."),
        ("12", "The answer is 5. No, the answer is 12, or rather 6 twice."),
        ("18", "16 - 7 = 9, 9 * 2 = 18\n#### 18"),
        ("5", "It weighs 5kg"),
        ("B", "B"),
        ("B", "(B) Mercury"),
        ("B", "The answer is (B)."),
        ("B", "Not A, since that is a gas. Answer: B"),
        ("B", "I think **B** fits"),
        ("B", "Answer: I think B."),
        ("B", "The answer, I believe, is B."),
        ("B", "My answer: I'd say (B)"),
        ("I", "The answer is I."),
        ("I", "Answer: I"),
    ],
)
def test_these_replies_are_correct(answer, text):
    assert gives_answer(answer, text)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("paris", "Parish councils"),
        ("hot", "It is a photo."),
        ("7", "17"),
        ("7", "It is 7 or 8"),
        ("7", "I cannot help with that."),
        ("7", "0.7"),
        ("1234", "1,2345"),
        ("B", "Both are fine"),
        ("A", "A good question, but I cannot say"),
        ("B", "A or B"),
        ("B", "The answer is C, though B is close"),
        ("", "anything"),
    ],
)
def test_these_replies_are_not(answer, text):
    assert not gives_answer(answer, text)


@given(st.integers(-(10**9), 10**9))
def test_a_number_is_found_with_and_without_separators(number):
    assert gives_answer(str(number), f"The answer is {number:,}.")
    assert gives_answer(f"{number:,}", f"So we get {number}")
    assert not gives_answer(str(number), f"So we get {number + 1}")


@given(st.text(max_size=60), st.text(max_size=10))
def test_no_text_breaks_it(text, answer):
    assert gives_answer(answer, text) in {True, False}
