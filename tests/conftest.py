"""What every test may ask for."""

import importlib.util
import signal
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["support.databases"]

settings.register_profile("patient", deadline=None)  # a busy machine is not a failed test
settings.load_profile("patient")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and every process that
# a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Let pass what a library we use does to another: PEFT 0.21 with transformers 5.23."""
    line = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
    config.addinivalue_line("filterwarnings", line)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Every tensor test runs on the CPU, and again on the GPU where there is one."""
    return request.param


def pytest_collection_modifyitems(config, items):
    """Leave out what needs a CUDA device, or a package of npm's, where that is missing."""
    for marker, is_there in (("gpu", _has_cuda), ("npm", _has_npm_packages)):
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_there():
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if item not in needing]


def _has_npm_packages():
    packages = Path(__file__).parents[1] / ".venv/npm/node_modules"
    return all((packages / name).is_dir() for name in ("openai", "axe-core"))


def _has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
