"""The page about the adapters."""

from integrations_table import PAGE, page


def test_the_page_of_the_adapters_has_the_table_of_todays_tests():
    assert PAGE.read_text() == page()
