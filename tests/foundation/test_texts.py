"""How texts and numbers are shown to people."""

import pytest

from waltzrl.foundation.texts import make_visible, number


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (1e-9, "under 0.0001"),
        (0.01234, "0.0123"),
        (0.5, "0.5"),
        (3.14159, "3.14"),
        (20.0, "20"),
        (812.4, "812"),
        (999.7, "1,000"),
        (12_345.0, "12,300"),
        (4_520_000.0, "4.5 million"),
        (3e10, "30.0 billion"),
        (1e300, "over a trillion"),
    ],
)
def test_numbers_have_three_digits_and_no_exponents(value, written):
    assert number(value) == written


def test_characters_that_hide_or_reorder_are_drawn_and_others_stay():
    assert make_visible("a\u202eb\u200bc\x07") == "a\ufffdb\ufffdc\ufffd"
    assert make_visible("caf\xe9\n\tok\r\nend") == "caf\xe9\n\tok\nend"
