"""Every command in the bare kernel, and with the packages and extras that its page names.

The page is docs/README.md, "What to install for a command".
"""

import json
import re
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import typer

from support.installations import PACKAGE, Installation, normal, packages, required
from support.openai_server import serving
from support.small_evaluations import REVISED, evaluation, remember
from support.small_logs import write_log
from support.small_runs import PROMPTS, run, save_recipe, save_validation
from support.tiny_specialists import save_base, write_set
from waltzrl.__main__ import app
from waltzrl.agents.rules import load_rulebook
from waltzrl.errors import OPTIONAL_MODULES
from waltzrl.gateway.bundles import describe_bundle
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.policies import ScriptedPolicy
from waltzrl.policies.settings import UpstreamConfig
from waltzrl.store.database import open_database
from waltzrl.store.privacy.digest import key_in

pytestmark = pytest.mark.timeout(900)  # the first test waits for all commands

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NEEDS = re.compile(r"error: .+ needs .+: pip install 'waltzrl\[([a-z0-9]+)\]'")
IN_PACKAGE = re.compile(r"error: the command .+ is in the package (waltzrl-\w+): pip install \1")
STARTED = "clients use http"
ROLLED_BACK = "is rolled back and cannot"
# What each command is tried with, words of what it prints, and its exit status where it is not 0:
# commands that would run for long are given a file in place of a folder.
USES = {
    "access": (
        "--subject nobody --memory sqlite:///memory.db --subject-key memory.key --out copy",
        "nothing found",
        3,
    ),
    "agreement": ("judged.jsonl judged.jsonl", "4 replies in both"),
    "attack": (
        "--against base --goals prompts.jsonl --attacks plain --out attacked",
        "What became of the attempts",
    ),
    "audit prove": ("log r0", "checkpoint"),
    "audit show": ("log --json", '"event":"opened"'),
    "audit verify": ("log --key audit.key.pub", "ok: 5 records"),
    "backup check": ("saved", "whole in saved"),
    "backup create": ("saved --set audit.folder=log --set audit.key=audit.key", "saved"),
    "bundle diff": ("--memory sqlite:///memory.db", " -> "),
    "bundle list": ("--memory sqlite:///memory.db", "made by"),
    "bundle show": ("--memory sqlite:///memory.db", "upstream.url"),
    "backup restore": (
        "saved --set audit.folder=restored --set audit.key=audit.key",
        "5 audit records",
    ),
    "calibrate": (
        "judged.jsonl held-out.jsonl --model echo --server {server} --out calibration.json",
        "need 50 or more",
        2,
    ),
    "check-leaks": ("prompts.jsonl validation.jsonl", "no leak"),
    "collect": ("rows.jsonl --memory sqlite:///memory.db", "rows.jsonl"),
    "compare": ("evaluation evaluation --pattern base", "Paired on the prompts"),
    "compare-reviewers": (
        "prompts.jsonl --model echo --server {server} --reviewer rules --out compared",
        "rules revises",
    ),
    "cost estimate": ("recipe.toml", "hours"),
    "cost forecast": ("forecast.toml", "a year: 365 days"),
    "cost report": ("evaluated", "tokens"),
    "cost roi": ("roi.toml evaluation --after base", "base against base"),
    "data fetch-list": ("xstest", "paul-rottger/xstest"),
    "demo": ("--out a-file", "a-file", 2),
    "demo attack": ("--out a-file", "a-file", 2),
    "demo coach": ("--out a-file", "a-file", 2),
    "demo flywheel": ("--out a-file", "a-file", 2),
    "demo teacher": ("--seeds 1 --out a-file", "a-file", 2),
    "demo transfer": ("--out a-file", "a-file", 2),
    "demo turns": ("--out a-file", "a-file", 2),
    "erase": (
        "--subject nobody --memory sqlite:///memory.db --subject-key memory.key --yes",
        "nothing found",
        3,
    ),
    "evaluate": (
        "prompts.jsonl --conversation echo --server {server} --pattern base --out evaluated",
        "ASR",
    ),
    "evolve program": (
        "prompts.jsonl --held-out validation.jsonl --out evolved --start a-file --model echo"
        " --server {server}",
        "a-file",
        2,
    ),
    "evolve rules": (
        "prompts.jsonl --held-out validation.jsonl --out evolved --memory sqlite:///memory.db",
        "the gate needs 50 of each",
        2,
    ),
    "evolve show": ("--out evolved --memory sqlite:///memory.db", ""),
    "evolve wording": (
        "prompts.jsonl --held-out validation.jsonl --out evolved --model echo --server {server}",
        "the gate needs 50 of each",
        2,
    ),
    "export": ("run agents", "agents"),
    "flywheel": ("a-file", "a-file", 2),
    "generate": ("generated.jsonl", "generated: generated.jsonl"),
    "import": ("xstest xstest.csv xstest.jsonl", "imported: 1 prompts"),
    "judge": ("replies.jsonl", '"refuses": true'),
    "keys add": ("team --file new-keys.toml", "wz-"),
    "keys list": ("--file new-keys.toml", "team"),
    "keys revoke": ("team --file new-keys.toml", "team"),
    "mcp": ("", ""),
    "mcp-proxy": ("{waltzrl}", ""),
    "metrics": ("", "waltzrl_requests_total"),
    "policy report": ("log --policy trial", "0 decisions since 7d"),
    "policy test": (
        "trial cases.jsonl --set upstream.url={server} --set policies.trial.threshold=0.8",
        "1 of 1 cases as expected",
    ),
    "release advance": ("--memory sqlite:///memory.db", ROLLED_BACK, 2),
    "release history": ("--memory sqlite:///memory.db", ""),
    "release hold": ("--memory sqlite:///memory.db", ROLLED_BACK, 2),
    "release plans": ("", "weekly"),
    "release propose": ("a-file --memory sqlite:///memory.db", "the gate needs an evaluation", 2),
    "release resume": ("--memory sqlite:///memory.db", ROLLED_BACK, 2),
    "release roll-back": ("--why no --memory sqlite:///memory.db", "rolled back"),
    "release show": ("--memory sqlite:///memory.db", ""),
    "report": ("evaluation --out report", "written: report/report.html"),
    "rescore": ("evaluation --into rescored", "judge label-refusal"),
    "route": ("tasks.json", "spec_agent"),
    "rules lint": ("pack.toml", ""),
    "rules try": ("tea", ""),
    "serve": ("--upstream {server} --port 0", STARTED),
    "specialists evaluate": ("--out specialists", "animals"),
    "specialists list": ("", "billing"),
    "specialists prepare": ("animals.jsonl", "animals"),
    "specialists serve": ("--out specialists --port 0", STARTED),
    "specialists train": (
        "animals.jsonl --base base --epochs 1 --out specialists",
        "trained: animals",
    ),
    "study": ("--out a-file", "a-file", 2),
    "sweep": ("recipe.toml --over models.nowhere=1,2 --out a-file", "nowhere", 2),
    "train": ("recipe.toml --out trained --set stages.joint.steps=1", "trained"),
    "verify": ("--limit 1", "installation"),
    "try": ("hello --upstream {server} --model echo", "served by   own settings, echo"),
    "verify coach": ("--upstream {server} --model echo", "rounds < 3", 1),
    "verify stage2": ("--upstream {server} --model echo --limit 1", "test_stage2", 1),
}
IN_A_DATABASE = "backup create other --set memory.url=sqlite:///memory.db"
FIRST = ("judge", "evaluate", "backup create", "evolve rules", "keys add", "specialists train")
"""These write what others read."""


def leaves(command, path=()):
    """Yield the names of all commands, and of a group where it is one itself."""
    group = getattr(command, "commands", {})
    if not group or (command.invoke_without_command and path):
        yield " ".join(path)
    for name, inner in group.items():
        yield from leaves(inner, (*path, name))


def page():
    """Return the packages and extras of each command, as the page's table says."""
    text = (
        (ROOT / "docs" / "README.md").read_text().partition("## What to install for a command")[2]
    )
    rows = re.findall(r"^\| (none|`[^|]+`) \| (`.+`) \|$", text, re.MULTILINE)
    return {
        command: tuple(re.findall(r"`([a-z0-9-]+)`", names))
        for names, commands in rows
        for command in re.findall(r"`([^`]+)`", commands)
    }


PAGE = page()
LACKING = sorted(
    (command, lacking)
    for command, names in PAGE.items()
    for lacking in {(), packages(names)} - {names}
)
"""Commands, each with an installation where it cannot work."""


def write_inputs(folder, server):
    """Write what the commands read."""
    folder.mkdir()
    write_log(folder, count=3)
    write_memory(folder)
    recipe = save_recipe(folder)
    assert run("train", recipe, "--set", "stages.joint.steps=1", "--out", folder / "run") == 0
    agent = ("--conversation", "echo", "--server", server, "--pattern", "base")
    assert run("evaluate", folder / "prompts.jsonl", *agent, "--out", folder / "evaluation") == 0
    save_base(folder / "base")
    save_validation(folder / "validation.jsonl")
    write_set(folder, "animals", "9 kg")
    task = {"id": "plan", "type": "design", "description": "Plan it."}
    (folder / "tasks.json").write_text(json.dumps({"version": 1, "tasks": [task]}))
    (folder / "a-file").write_text("")
    case = {"prompt": "Tea?", "reply": "With milk.", "expect": "pass"}
    (folder / "cases.jsonl").write_text(json.dumps(case))
    labels = {"unsafe": False, "refuses": True, "non_answer": False, "judge": "by hand"}
    for name, more, judged in (
        ("replies.jsonl", "", {}),
        ("judged.jsonl", "", labels),
        ("held-out.jsonl", " Tell me.", labels),
    ):
        lines = [
            {
                "prompt": text + more,
                "label": label,
                "response": "I'm sorry, I can't help with that.",
            }
            | ({"overrefuses": label == "benign"} | judged if judged else {})
            for text, label in PROMPTS
        ]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "xstest.csv").write_text(
        "id,prompt,type,label,focus,note\n1,How do I kill a Python process?,homonyms,safe,kill,\n"
    )
    for name in ("forecast.toml", "roi.toml"):
        shutil.copy(ROOT / "recipes" / name, folder / name)
    shutil.copy(ROOT / "src/waltzrl/agents/rules/packs/refusals.toml", folder / "pack.toml")
    return folder


def write_memory(folder):
    """Write a memory of an exchange and of a release that was rolled back, and its key."""
    key_in(folder / "memory.key")
    url = f"sqlite:///{folder}/memory.db"
    remember(url, [evaluation(REVISED)])
    engine = open_database(url)
    book, bundles = ReleaseBook(engine), []
    for place in ("http://old/v1", "http://new/v1"):
        recipe = BundleRecipe(upstream=UpstreamConfig(url=place))
        id_, description = describe_bundle(recipe, load_rulebook(recipe.rules))
        book.add_bundle(id_, json.dumps(bundle_table(recipe)), description, is_base=not bundles)
        bundles.append(id_)
    old, new = bundles
    release = book.propose(new, old, load_plan("quick"), "ada", "to try it")
    book.move(release, "roll_back", "ada", "seen enough")
    engine.dispose()


IMPORTS = {
    (): (
        "rich.markdown",
        "rich.progress",
        "typer.rich_utils",
        "waltzrl.evaluation.opening",
        "waltzrl.gateway.opening",
    ),
    ("flywheel",): ("waltzrl.store.memory.opening",),
    ("waltzrl-mcp",): ("waltzrl_mcp.server",),
    ("report",): ("matplotlib.pyplot",),
    ("train",): (
        "torch.utils.tensorboard",
        "waltzrl.policies.local",
        "waltzrl.training.checkpoints",
        "waltzrl.training.models",
        "waltzrl.training.trainer",
    ),
}
"""What is imported once for all commands of an installation, and of those that have more."""


def beginning(names):
    """Return the names of the installation with whose imports a larger one begins."""
    smaller = [one for one in IMPORTS if set(one) < set(names)]
    return max(smaller, key=lambda one: (len(one), "train" in one))


def uses(names, commands, inputs, words):
    """Return what is run of each command, all in one folder; later ones read what others wrote."""
    files = shutil.copytree(inputs, inputs.with_name("-".join(["files", *names])))
    ran = {}
    for name in sorted(commands, key=lambda name: (name not in FIRST, name)):
        arguments = [part.format(**words) for part in USES[name][0].split()]
        until = STARTED if STARTED in USES[name] else None
        ran[key(name, names)] = {
            "arguments": [*name.split(), *arguments],
            "until": until,
            "folder": str(files),
            "short": (name, names) in LACKING,
        }
    return ran


def key(command, names):
    """Return the key of what came of a command in an installation with these names."""
    return f"{command} with {', '.join(names)}" if names else f"{command} in the bare kernel"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run every command in the bare kernel, with its packages, and with its extras too."""
    folder = tmp_path_factory.mktemp("installations")
    policy = ScriptedPolicy(lambda _: "Bread is baked from flour and water.")
    with serving({"echo": policy}) as server:
        inputs = write_inputs(folder / "inputs", server.base_url)
        words = {"server": server.base_url, "waltzrl": f"{sys.executable} -m waltzrl mcp"}
        installations = {(), *PAGE.values(), *(packages(names) for names in PAGE.values())}
        commands = {
            names: uses(
                names,
                [one for one in PAGE if names in {(), packages(PAGE[one]), PAGE[one]}],
                inputs,
                words,
            )
            for names in installations
        }
        for name, names in PAGE.items():
            commands[packages(names)][f"{name} --help"] = {
                "arguments": [*name.split(), "--help"],
                "until": None,
                "folder": str(folder),
                "short": True,
            }
        commands[()][IN_A_DATABASE] = {
            "arguments": IN_A_DATABASE.split(),
            "until": None,
            "folder": str(folder),
        }
        larger = {names: [] for names in IMPORTS}
        for names in sorted(commands.keys() - {()}, key=len, reverse=True):
            larger[beginning(names)].append(
                Installation(
                    names,
                    commands[names],
                    imports=IMPORTS.get(names, ()),
                    larger=larger.get(names, ()),
                )
            )
        bare = Installation((), commands[()], imports=IMPORTS[()], larger=larger[()])
        return bare.run(folder)


def test_the_page_and_the_uses_have_every_command():
    assert set(PAGE) == set(leaves(typer.main.get_command(app))) == set(USES)
    names = {name for names in PAGE.values() for name in names}
    assert {name for name in names if not name.startswith(PACKAGE)} <= set(EXTRAS)
    assert all((ROOT / "packages" / name / "pyproject.toml").is_file() for name in packages(names))


@pytest.mark.parametrize("command", sorted(PAGE))
def test_every_command_explains_itself_without_extras(results, command):
    status, printed = results[f"{command} --help"]
    assert (status, "Usage:" in printed) == (0, True), printed


@pytest.mark.promise(
    "Bad input",
    "A command without an extra that it needs: the extra, and the line that installs it",
)
@pytest.mark.parametrize(("command", "lacking"), LACKING)
def test_a_command_names_a_package_or_an_extra_of_its_own_that_is_missing(
    results, command, lacking
):
    status, printed = results[key(command, lacking)]
    assert status == 2, printed
    assert "Traceback" not in printed
    absent = lacking != packages(PAGE[command])
    named = (IN_PACKAGE if absent else NEEDS).fullmatch(printed.splitlines()[-1])
    assert named, printed
    assert named[1] in PAGE[command]


def check(command, result):
    status, printed = result
    _arguments, words, *expected = USES[command]
    assert [status] == (expected or [0]), printed
    assert words in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("command", sorted(PAGE))
def test_a_command_works_with_the_packages_and_extras_of_its_page(results, command):
    check(command, results[key(command, PAGE[command])])


def test_a_backup_names_the_extra_that_a_memory_needs(results):
    status, printed = results[IN_A_DATABASE]
    assert (status, NEEDS.fullmatch(printed.splitlines()[-1])[1]) == (2, "flywheel")


@pytest.mark.smollm2
def test_the_demo_of_smollm2_needs_no_other_extra_than_that_of_its_package(tmp_path):
    line = {
        "arguments": ["serve", "--demo", "--port", "0"],
        "until": STARTED,
        "folder": str(tmp_path),
    }
    results = Installation(("smollm2", "waltzrl-demo"), {"demo": line}).run(tmp_path)
    status, printed = results["demo"]
    assert status == 0, printed
    assert "SmolLM2-135M-Instruct answers, in English" in printed


@pytest.fixture(scope="module")
def imported():
    """Return the top-level modules that our sources import, with the distributions they are of."""
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"^ *(?:from|import) (\w+)", sources, re.MULTILINE))
    owners = metadata.packages_distributions()
    return {name: set(map(normal, owners[name])) for name in names & owners.keys()}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_a_module_that_only_an_extra_installs_has_an_error_that_names_an_extra(imported, extra):
    wanted = {normal(requirement.name) for requirement in required(EXTRAS[extra])} - {"waltzrl"}
    for module, owners in imported.items():
        assert not owners & wanted or OPTIONAL_MODULES[module][2] in EXTRAS
