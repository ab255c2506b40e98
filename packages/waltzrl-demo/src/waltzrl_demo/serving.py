"""Settings of `waltzrl serve --demo`: a model and its reviewer in one process, without a server."""

import random
from dataclasses import replace
from pathlib import Path

from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.errors import InputError
from waltzrl.evaluation.harm import draw_prompts
from waltzrl.evaluation.scenarios import Kind, Scenario
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.foundation.validation import Table
from waltzrl.gateway.guard import Guard
from waltzrl.gateway.guard_opening import GuardSettings, open_guard
from waltzrl.records import Prompt
from waltzrl_demo.arms import MAX_NEW_TOKENS, SERVED
from waltzrl_demo.world import World
from waltzrl_demo.world.judge import WorldJudge
from waltzrl_demo.world.replies import reply_text
from waltzrl_demo.world.requests import RequestReader, draw_request
from waltzrl_verify.opening import VerificationSettings
from waltzrl_verify.stage2_suite import Stage2Target

TRAINED = Path("runs/demo")
"""The folder of `waltzrl demo`."""
PAIR = f"{SERVED}/agents"
"""The folder of the pair that the demo's table calls WaltzRL, relative to a seed's."""
HARMFUL_KINDS = ("weapons", "malware", "frauds")
"""The kinds of the things in the unsafe scenarios, in turn."""
VERIFIED = 40
"""The number of prompts that `waltzrl verify --demo` reviews."""


def demo_settings(folder: Path) -> Table:
    """Return gateway settings for the pair that `waltzrl demo` trained, of the first seed.

    Raises:
        InputError: there is no trained pair.
    """
    agents = _find_trained_seed(folder) / PAIR
    options = {"wording": "tiny", "max_new_tokens": MAX_NEW_TOKENS}
    return {
        "stage": 2,
        "upstream": {"folder": str(agents / CONVERSATION), **options},
        "feedback": {"model": str(agents / FEEDBACK), "self_test": False, **options},
    }


def serve_options() -> tuple[Table, str]:
    """Return gateway settings for `waltzrl serve --demo`, and what to tell the user.

    Raises:
        InputError: there is no trained pair.
    """
    prompts = read_prompts(_find_trained_seed(TRAINED) / "data" / "test.jsonl")
    harmful = next(prompt for prompt in prompts if prompt.label == "unsafe")
    return demo_settings(TRAINED), (
        f"the demo's model knows only the demo's language; try: {harmful.messages[-1].content} "
        "(with the package waltzrl-smollm2, the demo speaks English)"
    )


def open_demo_guard(folder: Path, settings: GuardSettings) -> Guard:
    """Load the pair that `waltzrl demo` trained, of the first seed.

    Raises:
        InputError: there is no trained pair.
        MissingExtraError: torch is missing.
    """
    tiny = replace(settings, wording="tiny", max_new_tokens=MAX_NEW_TOKENS)
    return open_guard(pair=_find_trained_seed(folder) / PAIR, settings=tiny)


def demo_scenarios(folder: Path) -> list[Scenario]:
    """Return fifty scenarios in the demo's language, in the requirement's mix.

    Their wrappers and code words are those of the held-out prompts. The first unsafe ones ask for
    weapons and for malware.

    Raises:
        InputError: there is no trained pair.
    """
    seed = int(_find_trained_seed(folder).name.removeprefix("seed-"))
    world, draw = World.create(seed), random.Random(f"scenarios/{seed}")
    scenarios: list[Scenario] = []
    counts: dict[Kind, int] = {"safe": 30, "borderline": 15, "unsafe": 5}
    for kind, count in counts.items():
        while sum(scenario.kind == kind for scenario in scenarios) < count:
            worded = draw_request(draw, world, "test", "operation", ("test",))
            request, thing = worded.request, worded.request.tasks[0].thing
            asked = HARMFUL_KINDS[len(scenarios) % len(HARMFUL_KINDS)]
            wanted = request.label == "unsafe" and thing.kind == asked
            if kind != "unsafe":
                # What is borderline only sounds harmful.
                wanted = request.label == "benign" and worded.frightening is (kind == "borderline")
            if wanted:
                name = f"world/test/{len(scenarios)}"
                scenarios.append(
                    Scenario(
                        kind=kind,
                        prompt=worded.to_prompt(name, thing.kind),
                        hollow_answer=reply_text(draw, request, (True,)),
                    )
                )
    return scenarios


def demo_verification(folder: Path, most_milliseconds: float) -> VerificationSettings:
    """Return what `waltzrl verify` checks the demo's pair with, in its language.

    Raises:
        InputError: there is no trained pair.
    """
    data = _find_trained_seed(folder) / "data"
    question = read_prompts(data / "general-test.jsonl")[0]
    return VerificationSettings(
        sets={"demo": draw_prompts(read_prompts(data / "test.jsonl"), VERIFIED)},
        most_milliseconds=most_milliseconds,
        greeting=(question, question.answer or ""),
        english=False,
    )


def demo_target(folder: Path, guard: Guard, most_milliseconds: float) -> Stage2Target:
    """Return what `waltzrl verify stage2` checks: the demo's pair, judged as in its table.

    Raises:
        InputError: there is no trained pair.
    """
    seed = _find_trained_seed(folder)
    world = World.create(int(seed.name.removeprefix("seed-")))
    draw, reader = random.Random("verify"), RequestReader(world)

    def hollow_answer(prompt: Prompt) -> str:
        request = reader.read(prompt.request)
        assert request is not None, "a prompt of the world has a request"
        return reply_text(draw, request, (True,) * len(request.tasks))

    return Stage2Target(
        guard=guard,
        prompts=read_prompts(seed / "data" / "test.jsonl"),
        judge=WorldJudge(world),
        hollow_answer=hollow_answer,
        most_milliseconds=most_milliseconds,
    )


def _find_trained_seed(folder: Path) -> Path:
    trained = sorted(path for path in folder.glob("seed-*") if (path / PAIR / FEEDBACK).is_dir())
    if not trained:
        raise InputError(
            f"{folder} holds no trained pair; run `make demo` first, which takes some minutes, "
            "or name a model with --upstream"
        )
    return trained[0]
