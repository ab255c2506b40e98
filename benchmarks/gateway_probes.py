"""garak and promptfoo against a badly behaved model, alone and behind the gateway.

    python benchmarks/gateway_probes.py [--tool garak] [--tool promptfoo]

Both tools run as their makers ship them, in environments of their own, and reach nothing but the
three servers. The model is `gateway/naughty_upstream.py`; one gateway has its default recipe, the
other the reviewer of waltzrl-smollm2.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from environments import BYTECODE, make_garak, make_ours, make_promptfoo, make_reviewed
from processes import start_server

HERE = Path(__file__).resolve().parent / "gateway"
MODEL, GATEWAY, REVIEWED = 9390, 9391, 9392
SIDES = {"model alone": MODEL, "behind the rules": GATEWAY, "behind smollm2": REVIEWED}
REVIEWER = ("--reviewer", "smollm2", "--set", "review_timeout_ms=120000")
"""Options of one gateway; the tools ask faster than one core can review."""
OFFLINE = {
    "OPENAICOMPATIBLE_API_KEY": "none",
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_CACHE_ENABLED": "false",
}
Found = dict[str, tuple[int, int]]
"""By probe or kind of test: how many went wrong, of how many."""


def garak(server: str, folder: Path) -> Found:
    """Return, for each probe, the attacks that succeeded."""
    recipe, report = folder / "garak.yaml", folder / "garak"
    recipe.write_text((HERE / "garak.yaml").read_text().replace("SERVER", server))
    _quietly([make_garak(), "--config", recipe, "--report_prefix", report], folder)
    found: Found = {}
    for line in Path(f"{report}.report.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["entry_type"] == "eval":
            found[entry["probe"]] = (entry["fails"], entry["total_evaluated"])
    return found


def promptfoo(server: str, folder: Path) -> Found:
    """Return, for each kind of test, those that failed."""
    out = folder / "promptfoo.json"
    command = [*make_promptfoo(), "eval", "--config", HERE / "promptfoo.yaml", "--output", out]
    surroundings = {"SERVER": server, "PROMPTFOO_CONFIG_DIR": str(folder)}
    _quietly([*command, "--no-cache", "--no-table", "--no-share"], folder, **surroundings)
    tests, wrong = Counter[str](), Counter[str]()
    for result in json.loads(out.read_text())["results"]["results"]:
        kind = result["testCase"]["description"]
        tests[kind] += 1
        wrong[kind] += not result["success"]
    return {kind: (wrong[kind], tests[kind]) for kind in tests}


TOOLS = {"garak": garak, "promptfoo": promptfoo}


def _quietly(command: list[str | Path], folder: Path, **env: str) -> None:
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            cwd=folder,
            env=BYTECODE | OFFLINE | env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode not in {0, 100}:  # promptfoo ends with 100 when a test failed
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{log.read_text()[-3000:]}")


def main() -> None:
    """Run the tools against both servers and print what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=TOOLS, action="append")
    given = parser.parse_args()
    python = make_ours()

    def serve(python: Path, port: int, *options: str) -> list[str | Path]:
        upstream = ("--upstream", f"http://127.0.0.1:{MODEL}/v1")
        return [python.with_name("waltzrl"), "serve", *upstream, "--port", str(port), *options]

    commands = {
        MODEL: [python, HERE / "naughty_upstream.py", "--port", str(MODEL)],
        GATEWAY: serve(python, GATEWAY),
        REVIEWED: serve(make_reviewed(), REVIEWED, *REVIEWER),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probes-")))
        for port, command in commands.items():
            log, ready = folder / f"{port}.log", f"http://127.0.0.1:{port}/v1/models"
            start_server(stack, command, ready, core=0, env=BYTECODE, log=log)
        for tool in given.tool or TOOLS:
            found = {}
            for side, port in SIDES.items():
                (at := folder / tool / str(port)).mkdir(parents=True)
                found[side] = TOOLS[tool](f"http://127.0.0.1:{port}", at)
            print_table(tool, found)


def print_table(tool: str, found: dict[str, Found]) -> None:
    """Print one tool's findings side by side, in Markdown."""
    print(f"\n| {tool} | " + " | ".join(found) + " |")
    print("| --- |" + " ---: |" * len(found))
    for name in next(iter(found.values())):
        numbers = [f"{wrong} of {tests}" for wrong, tests in (one[name] for one in found.values())]
        print(f"| {name} | " + " | ".join(numbers) + " |")


if __name__ == "__main__":
    main()
