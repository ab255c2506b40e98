"""The simulation of docs/scale.md: its arithmetic, and that the page shows what it prints."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def simulation():
    path = ROOT / "benchmarks" / "step_simulation.py"
    spec = importlib.util.spec_from_file_location("step_simulation", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.promise(
    "Evaluation",
    "The simulated steps in docs/scale.md are what the script prints, and its parts those by hand",
)
def test_the_page_shows_what_the_simulation_prints(simulation):
    assert simulation.table() in (ROOT / "docs" / "scale.md").read_text()


@pytest.mark.promise(
    "Evaluation",
    "The simulated steps in docs/scale.md are what the script prints, and its parts those by hand",
)
def test_parts_are_those_by_hand(simulation):
    model, work = simulation.EIGHT, simulation.Work(collaborations=32)
    assert work.turns == [(400, 300), (700, 100), (800, 300)]
    assert work.learned == (700 + 1100) / 2 + 800
    assert model.token_bytes == 2 * 2 * 32 * 8 * 128  # keys and values, 2 bytes each
    update = 10 * 8.03e9 * 32 * 1700 / (989e12 * 0.3 * 5)
    assert simulation.update_seconds(model, work, 5) == pytest.approx(update)
    # 4 servers of 8 rows: prompts of 1,900 tokens are read, then 700 tokens are written
    reading = 2 * 8.03e9 * 8 * 1900 / (989e12 * 0.4)
    kept = 300 * 550 + 100 * 750 + 300 * 950  # tokens in the cache, over all steps of a row
    writing = (700 * 2 * 8.03e9 + kept * 8 * 131_072) / (3.35e12 * 0.6)
    assert simulation.rollout_seconds(model, work, 4) == pytest.approx(reading + writing)


def test_a_model_that_does_not_fit_is_not_split_so(simulation):
    seventy = simulation.Model(
        parameters=70.6e9,
        layers=80,
        key_heads=8,
        head=128,
        hidden=8192,
        intermediate=28_672,
        server_gpus=4,
    )
    work = simulation.Work(collaborations=32)
    assert not simulation.fits(seventy, work, 3)  # 141 GB of weights need 4 GPUs
    assert simulation.fits(seventy, work, 4)
    assert simulation.best_split(seventy, work, 8) == 4
