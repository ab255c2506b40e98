"""The page about the adapters."""

import pytest
from integrations_table import PAGE, page


@pytest.mark.promise(
    "Adapters for frameworks",
    "The page about the adapters shows what is tested, and its examples run",
)
def test_the_page_of_the_adapters_has_the_table_of_todays_tests():
    assert PAGE.read_text() == page()
