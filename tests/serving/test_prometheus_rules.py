"""The alerts in deploy/ are valid, and fire when they should: promtool plays their tests."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.promtool

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "--lint-fatal", "prometheus-rules.yml"),
        ("test", "rules", "prometheus-rules.test.yml"),
    ],
)
def test_promtool_accepts(promtool, arguments):
    done = subprocess.run(
        [promtool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_rejects_an_alert_that_does_not_fire(promtool, tmp_path):
    rules = (DEPLOY / "prometheus-rules.yml").read_text()
    assert rules.count("ratio_1h > 0.05") == 1
    (tmp_path / "prometheus-rules.yml").write_text(rules.replace("> 0.05", "> 0.5"))
    tests = tmp_path / "prometheus-rules.test.yml"
    tests.write_text((DEPLOY / tests.name).read_text())
    done = subprocess.run(
        [promtool, "test", "rules", tests], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "WaltzRLHighUnsafeRate" in done.stdout + done.stderr
