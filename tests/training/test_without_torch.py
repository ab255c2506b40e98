"""What of training, and of the command line, works on a machine without PyTorch."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def python(code):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "import waltzrl.__main__",
        "from waltzrl.training.settings import ReinforcementStage, OptimizerSettings",
        "from waltzrl.training.rewards import paper_rewards",
        "from waltzrl.training.recipe import load_recipe",
        "from waltzrl.evaluation.data.opening import read_sets",
    ],
)
def test_settings_rewards_and_the_command_line_start_without_torch(code):
    ended = python(code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_opening_a_run_without_torch_says_what_to_install():
    ended = python("from waltzrl.training.opening import train")
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        "MissingExtraError: a local policy needs PyTorch: pip install 'waltzrl[train]'\n"
    )
