"""What git and Docker leave out: keys, and files that hold people's data."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECRET = (
    *("keys.toml", "team/keys.toml", "secrets/openai", ".env", "deploy/compose/.env"),
    *(".env.local", "backups/monday/manifest.json", "memory.db", "runs-2/memory.db-wal"),
    *("tls.pem", "certificates/tls.pem", "audit.key", "deploy/compose/secrets/keys.toml"),
)
MEANT_FOR_GIT = (
    *("deploy/compose/example.env", "deploy/compose/secrets/.gitignore", "recipes/gateway.toml"),
    "src/waltzrl/gateway/commands/keys.py",
)


@pytest.fixture(scope="module")
def unignored(tmp_path_factory):
    """The files that `git add .` would take in a new checkout that has all of both kinds."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in (*SECRET, *MEANT_FOR_GIT):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name in (".gitignore", "deploy/compose/secrets/.gitignore"):
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    list_untracked = ["git", "-C", folder, "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(list_untracked, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_git_takes_no_secret_and_no_database(unignored):
    assert set(SECRET) & set(unignored) == set()


def test_git_takes_what_is_meant_for_it(unignored):
    assert set(unignored) == {*MEANT_FOR_GIT, ".gitignore"}


def test_an_image_is_built_without_secrets_and_databases():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"**/.env*", "**/keys.toml", "**/secrets", "**/backups", "**/*.db*"} < set(lines)
    assert {"**/*.key", "**/*.pem"} < set(lines)
    last_taken = max(place for place, line in enumerate(lines) if line.startswith("!"))
    assert all(lines.index(line) > last_taken for line in lines if line.startswith("**"))
