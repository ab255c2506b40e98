"""Cases of a policy: requests and replies, and what it is expected to do with them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.errors import InputError, RequestError
from waltzrl.foundation.background import gather_all
from waltzrl.foundation.jsonl import read_objects
from waltzrl.gateway.exchange import ChatRequest, GatewayRequest
from waltzrl.gateway.gateway import Gateway
from waltzrl.gateway.keys import ANONYMOUS
from waltzrl.gateway.named_policies import OWN
from waltzrl.gateway.opening import open_gateway
from waltzrl.gateway.reviews import NO_MODEL
from waltzrl.gateway.settings import GatewayRecipe
from waltzrl.gateway.wire import CHAT
from waltzrl.records import Decision, Feedback, Reply

Treatment = Literal["pass", "revise", "refuse"]
"""What becomes of a reply: it is sent, revised or refused."""
TREATMENTS: Mapping[Decision, Treatment] = {
    "draft": "pass",
    "revised": "revise",
    "refused": "refuse",
}
CASES_AT_ONCE = 8


class PolicyCase(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One line of a file of cases."""

    messages: list[dict[str, object]] = []
    """The conversation as a chat has it."""
    prompt: str = ""
    """The request alone, in the place of `messages`."""
    reply: str | None = None
    """The draft; None asks the upstream for one, and revises it if need be."""
    expect: Treatment
    model: str = NO_MODEL
    """That is asked for a draft."""
    line: int = 0
    """The number of its line; not for the file."""

    def __post_init__(self) -> None:
        if bool(self.messages) == bool(self.prompt):
            raise ValueError("need messages, or the text of a prompt")

    @property
    def turns(self) -> list[dict[str, object]]:
        return self.messages or [{"role": "user", "content": self.prompt}]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What a policy did with a case."""

    case: PolicyCase
    got: Treatment | None
    """None if nobody could review it."""
    feedback: Feedback | None
    """The feedback on the draft; None where nobody was asked."""
    failure: str = ""
    """The reason why there is no reply or no review."""

    @property
    def passed(self) -> bool:
        return self.got == self.case.expect


def read_cases(path: Path) -> list[PolicyCase]:
    """Read a file of cases.

    Raises:
        InputError: it cannot be read, has no cases, or a line is no case; names the line.
    """
    cases = list(_yield_cases(path))
    if not cases:
        raise InputError(
            f"{path} has no cases; write one JSON object a line, such as "
            '{"prompt": "...", "reply": "...", "expect": "revise"}'
        )
    return cases


def _yield_cases(path: Path) -> Iterator[PolicyCase]:
    for number, fields in read_objects(path):
        try:
            case = msgspec.convert({**fields, "line": number}, PolicyCase)
            _read_chat(case)
        except (msgspec.ValidationError, RequestError) as error:
            raise InputError(f"{path}:{number}: {error}") from None
        yield case


def _read_chat(case: PolicyCase) -> ChatRequest:
    """Return a case as the request of a client.

    Raises:
        RequestError: 400, naming the field.
    """
    body = {"model": case.model, "messages": case.turns}
    return CHAT.read(msgspec.json.encode(body), f"case-{case.line}", ANONYMOUS)


async def run_cases(
    recipe: GatewayRecipe, policy: str, cases: Sequence[PolicyCase]
) -> list[CaseResult]:
    """Serve cases by one policy of a gateway; nothing is recorded.

    Args:
        recipe: of the gateway.
        policy: the name of the policy; `OWN` for the gateway's own settings.
        cases: in any order.

    Returns:
        The results, in the order of the cases.

    Raises:
        InputError: the recipe has no such policy, or cannot be opened.
    """
    if policy != OWN and policy not in recipe.policies:
        raise InputError(
            f"the recipe has no policy {policy!r}; it has "
            f"{', '.join(recipe.policies) or 'none: write [policies.NAME]'}"
        )
    at_once = asyncio.Semaphore(CASES_AT_ONCE)
    async with open_gateway(replace(recipe.unrecorded, budget=None)) as app:

        async def run(case: PolicyCase) -> CaseResult:
            async with at_once:
                return await _run_case(app.gateway, policy, case)

        return await gather_all(map(run, cases))


async def _run_case(gateway: Gateway, policy: str, case: PolicyCase) -> CaseResult:
    request = GatewayRequest(chat=_read_chat(case), caller=ANONYMOUS, policy=policy)
    try:
        if case.reply is None:
            answer = await gateway.choice(request, 0)
        else:
            request = msgspec.structs.replace(request, only_review=True)
            answer = await gateway.review(request, Reply(text=case.reply))
    except RequestError as error:
        return CaseResult(case=case, got=None, feedback=None, failure=str(error))
    rounds = answer.collaboration.rounds
    feedback = rounds[0].feedback if rounds else None
    if case.reply is None or feedback is None:
        return CaseResult(case=case, got=TREATMENTS[answer.decision], feedback=feedback)
    acts = gateway.selector.assigned(request).bundle.acts
    got = find_treatment(feedback) if acts else "pass"
    return CaseResult(case=case, got=got, feedback=feedback, failure=feedback.failure)


def find_treatment(feedback: Feedback) -> Treatment | None:
    """Return what the gateway would do with a draft; None if nobody could review it."""
    if not feedback.well_formed:
        return None
    if feedback.asks_for_revision:
        return "revise"
    return "refuse" if feedback.refuses else "pass"
