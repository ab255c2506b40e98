"""Opens a judge by its name."""

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import cast

from waltzrl.agents.identity import identify_agent
from waltzrl.agents.opening import installed_reviewers, open_reviewer
from waltzrl.errors import InputError
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.judges.answers import AnswerCache
from waltzrl.evaluation.judges.formats import FORMATS, JudgeFormat, check_model
from waltzrl.evaluation.judges.harm import HarmJudge
from waltzrl.evaluation.judges.judge import Judge, LabelledSetJudge, LabelRefusalJudge
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.evaluation.judges.refusal import RefusalDetector
from waltzrl.evaluation.judges.saved import SavedJudge
from waltzrl.foundation.files import cache_folder
from waltzrl.foundation.plugins import find_plugin
from waltzrl.policies.opening import local_policy, remote_policy

OFFLINE_JUDGES: dict[str, Callable[[], Judge]] = {
    "refusal": LabelRefusalJudge,
    "harm": HarmJudge,
}
"""Judges that need nothing but their name."""
JUDGE_NAMES = (
    f"{', '.join(OFFLINE_JUDGES)}, smollm2 (package waltzrl-smollm2), saved:FILE, labelled:SET, or "
    f"KIND:MODEL@URL or KIND:FOLDER with the KIND {', '.join(FORMATS)}"
)
CACHE_VARIABLE = "WALTZRL_JUDGE_CACHE"

# The first @ divides, because a URL may hold one behind a user and a password.
_MODEL_AT_SERVER = re.compile(r"(.+?)@(\S*://.*|[^@]+)")


@asynccontextmanager
async def open_judge(
    name: str, *, judges_prompts: bool = False, cached: bool = False
) -> AsyncIterator[Judge]:
    """Open a judge by its name, which docs/evaluation.md explains.

    Args:
        name: one of `JUDGE_NAMES`.
        judges_prompts: the judge says whether a prompt is harmful, not its label; see `LLMJudge`.
        cached: keep the answers of a model on disk, and do not ask the same again.

    Raises:
        InputError: the name or the server's address is invalid, the model has another format, or a
            file is damaged.
        MissingExtraError: a model in this process needs torch.
    """
    # `refusal+KIND:MODEL` finds refusals by the detector, where the model is not asked for them.
    rest = name.removeprefix("refusal+")
    kind, _, place = rest.partition(":")
    model_and_server = split_model_and_server(place) if kind in FORMATS else None
    if model_and_server is None:
        if judges_prompts:
            raise _silent_on_prompts(name)
        yield _open_offline(name)
        return
    asked = FORMATS[kind]
    if judges_prompts and "prompt_harmful" not in asked.labels:
        raise _silent_on_prompts(name)
    async with AsyncExitStack() as stack:
        answers = stack.enter_context(answers_on_disk()) if cached else None
        model, server = model_and_server
        if server is None:
            judge_model = _local_model(asked, model, answers)
        else:
            check_model(asked, model)
            policy = await stack.enter_async_context(remote_policy(server, model))
            judge_model = JudgeModel(policy, model, identify_agent(model, server), answers)
        refusals = RefusalDetector() if name != rest else None
        yield LLMJudge(asked, judge_model, judges_prompts=judges_prompts, refusals=refusals)


def judge_place(name: str) -> tuple[str, str | None]:
    """Return a judge's model and the URL of its server; None for a judge in this process."""
    kind, _, place = name.removeprefix("refusal+").partition(":")
    return (split_model_and_server(place) if kind in FORMATS else None) or ("", None)


def split_model_and_server(place: str) -> tuple[str, str | None] | None:
    """Split `MODEL@URL`; a folder, or a model on the hub, has no server. None if it is neither."""
    if place and ("@" not in place or Path(place).exists()):
        return place, None
    at_server = _MODEL_AT_SERVER.fullmatch(place)
    return None if at_server is None else (at_server[1], at_server[2])


def _local_model(asked: JudgeFormat, folder: str, answers: AnswerCache | None) -> JudgeModel:
    """Load a model into this process; its revision is the hash of its files."""
    check_model(asked, Path(folder).resolve().name)
    policy = local_policy(folder)
    model_type = policy.model.config.model_type
    if asked.model_type not in {"", model_type}:
        raise InputError(
            f"{folder} is no model for {asked.name!r}: its architecture is {model_type!r}, need "
            f"{asked.model_type!r}; name a model of that kind, or another kind of judge"
        )
    if asked.in_template not in str(policy.tokenizer.chat_template):
        raise InputError(
            f"{folder} is no model for {asked.name!r}: its chat template does not hold "
            f"{asked.in_template!r}; name a model of that kind, or another kind of judge"
        )
    policy.revision = identify_agent(folder, None)
    return JudgeModel(policy, policy.revision, policy.revision, answers)


def _open_offline(name: str) -> Judge:
    if (make_judge := OFFLINE_JUDGES.get(name)) is not None:
        return make_judge()
    if name in installed_reviewers():
        return open_reviewer(name)
    if make_judge := cast("Callable[[], Judge] | None", find_plugin("waltzrl.judges", name)):
        return make_judge()
    kind, _, place = name.partition(":")
    if kind == "saved" and place:
        return SavedJudge.load(Path(place))
    if kind == "labelled" and place:
        return LabelledSetJudge(read_sets([place]))
    raise InputError(
        f"there is no judge {name!r}; use {JUDGE_NAMES}; a model behind a server is, for example, "
        "llm:guard@http://localhost:8000/v1"
    )


@contextmanager
def answers_on_disk() -> Iterator[AnswerCache | None]:
    """Open the file of judges' answers that the environment names; None if it says `off`.

    Raises:
        InputError: the file cannot be used.
    """
    place = os.environ.get(CACHE_VARIABLE)
    if place == "off":
        yield None
        return
    with AnswerCache(Path(place) if place else cache_folder() / "judge-answers.sqlite") as kept:
        yield kept


def _silent_on_prompts(name: str) -> InputError:
    return InputError(
        f"the judge {name!r} does not say whether a prompt is harmful; leave out "
        "--judge-prompts, or judge_prompts in a recipe"
    )
