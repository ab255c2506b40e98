"""What every test may ask for."""

import importlib.util
import signal

import pytest
from hypothesis import settings

from support.browser import NODE_MODULES, find_chromium

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
    """Leave out what needs a CUDA device, a browser or a package of npm, where that is missing."""
    requirements = {"gpu": _has_cuda, "browser": find_chromium, "npm": _has_npm_packages}
    for marker, is_available in requirements.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_available():
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if item not in needing]


def _has_npm_packages():
    return all((NODE_MODULES / name).is_dir() for name in ("openai", "axe-core"))


def _has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
