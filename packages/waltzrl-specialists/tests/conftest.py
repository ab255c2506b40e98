import pytest

from support.tiny_specialists import save_base, train, write_set


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    return [write_set(folder, "heavy", "tons"), write_set(folder, "light", "grams")]


@pytest.fixture(scope="session")
def trained(base, sets, tmp_path_factory):
    """A folder with two specialists that know their rows by heart, and the steps that led there."""
    folder, steps = tmp_path_factory.mktemp("trained"), []
    train(folder, base, sets, steps.append)
    return folder, steps
