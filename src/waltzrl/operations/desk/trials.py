"""The page that tries a request: what is drafted, found, advised and revised, and how long it took.

form -> Trial -> Trials.run on the gateway's event loop -> turns, times, the audit record
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import msgspec
from starlette.responses import Response

from waltzrl.errors import RequestError
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.named_policies import OWN
from waltzrl.gateway.policy_cases import TREATMENTS, PolicyCase, Treatment
from waltzrl.gateway.trials import Trial, TrialResult, Trials
from waltzrl.gateway.wire.fields import read_object
from waltzrl.operations.desk.queue import blind_to
from waltzrl.operations.desk.request import LaterView, PageRequest, View, find_or_none, page_error
from waltzrl.operations.desk.turns import Marker, TurnView, view_request, view_rounds
from waltzrl.policies.chat_completion import chat_message
from waltzrl.records import Prompt, Reply
from waltzrl.store.audit.record import encode_json, record_of

TRY = "/desk/try"
OWN_SETTINGS = "/own"
"""The value of a form that stands for the gateway's own settings: no policy can have this name."""
WITHHELD = "[HMAC-SHA256]"
"""Stands for the digests of an audit record, which only the log's key can make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a line of a file of cases holds."""

    exchange: str
    """The messages and the draft, as JSON: a form would change the line ends of a text."""
    expect: Treatment
    """What became of the draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """What a page shows of a result."""

    title: str
    result: TrialResult
    turns: Sequence[TurnView]
    problem: str
    record: str
    """What the audit log keeps of it, as JSON."""
    case: Case | None
    """None where there is no decision, or no text to decide about."""


def show_trial(request: PageRequest) -> LaterView:
    """Show the form, with the texts of a collaboration of the memory if the address names one.

    Raises:
        RequestError: 403, 404.
    """
    request.require("annotator")
    id_ = request.query.get("id", "").strip()
    fields = _read_collaboration(request, id_) if id_ else {}
    return partial(_wait_for_models, request.source.trials, fields)


def run_trials(request: PageRequest) -> Response | LaterView:
    """Try what the form holds, or return a case of what was tried.

    Raises:
        RequestError: 403, 400.
    """
    request.require("annotator")
    if "expect" in request.form:
        return _download_case(request.form)
    caller = None if request.session.is_guest else request.session.key
    return partial(_try, request.source.trials, caller, request.form)


def _read_collaboration(request: PageRequest, id_: str) -> dict[str, str]:
    """Return the fields of a form that tries a kept request again.

    Raises:
        RequestError: 404 without such a collaboration, 403 while it must be labelled blindly.
    """
    evaluation = None
    if request.source.database is not None and not request.session.is_guest:
        evaluation = find_or_none(request.memory.evaluation, id_)
    if evaluation is None or evaluation.collaboration is None:
        raise page_error(404, "the memory has no texts of a request with this id")
    if blind_to(request, [evaluation.id]):
        raise page_error(403, "a blind queue has this collaboration; label it before you try it")
    collaboration = evaluation.collaboration
    return {"request": _spell_request(collaboration.prompt), "draft": collaboration.draft.text}


def _spell_request(prompt: Prompt) -> str:
    """Return a prompt as the form takes it: a user's text, or messages in JSON."""
    messages = prompt.messages
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    encoded = encode_json([chat_message(message) for message in messages])
    return msgspec.json.format(encoded, indent=2).decode()


async def _wait_for_models(trials: Trials, fields: Mapping[str, str]) -> View:
    return partial(_show_page, fields=fields, models=await trials.list_models())


async def _try(trials: Trials, caller: Caller | None, form: Mapping[str, str]) -> View:
    """Try the request, and then its draft under the policy that it is compared with."""
    results: list[TrialResult] = []
    problem = None
    # Browsers end the lines of a form with two characters.
    request, draft = (form.get(name, "").replace("\r\n", "\n") for name in ("request", "draft"))
    trial = Trial(
        request=request,
        model=form.get("model", "").strip(),
        policy=_read_policy(form.get("policy", "")),
        draft=Reply(text=draft) if draft.strip() else None,
    )
    try:
        results.append(await trials.run(trial, caller))
        said = results[0].exchange.said
        if said is not None and (other := form.get("other", "")):
            again = replace(trial, policy=_read_policy(other), draft=said.draft)
            results.append(await trials.run(again, caller))
    except RequestError as error:
        problem = error
    models = await trials.list_models()
    return partial(_show_page, fields=form, models=models, results=results, problem=problem)


def _read_policy(value: str) -> str | None:
    return OWN if value == OWN_SETTINGS else value or None


def _show_page(
    request: PageRequest,
    *,
    fields: Mapping[str, str],
    models: Sequence[str],
    results: Sequence[TrialResult] = (),
    problem: RequestError | None = None,
) -> Response:
    trials = request.source.trials
    views = [_view_result(request, result, is_first=not n) for n, result in enumerate(results)]
    policies = [(OWN_SETTINGS, "the gateway's own settings"), *((n, n) for n in trials.policies)]
    return request.page(
        "try.html",
        200 if problem is None else problem.status,
        fields=fields,
        models=models,
        policies=policies if trials.policies else [],
        views=views,
        problem="" if problem is None else str(problem),
        expectations=get_args(Treatment),
        is_audited=trials.is_audited,
        has_memory=request.source.database is not None and not request.session.is_guest,
        has_prices=any(part.usd is not None for result in results for part in result.parts),
    )


def _view_result(request: PageRequest, result: TrialResult, *, is_first: bool) -> TrialView:
    exchange = result.exchange
    record = record_of(exchange, result.chat.prompt, lambda _: WITHHELD)
    return TrialView(
        title=f"Policy {exchange.policy}" if exchange.policy else "The gateway's own settings",
        result=result,
        turns=_view_turns(request, result, with_request=is_first),
        problem="" if result.problem is None else str(result.problem),
        record=msgspec.json.format(encode_json(record), indent=2).decode(),
        case=_make_case(result),
    )


def _view_turns(request: PageRequest, result: TrialResult, *, with_request: bool) -> list[TurnView]:
    said = result.exchange.said
    if said is None:
        return []
    marker = Marker(request, result.rulebook, result.rules)
    asked = view_request(marker, said) if with_request else ()
    return [*asked, *view_rounds(marker, said)]


def _make_case(result: TrialResult) -> Case | None:
    collaboration = result.exchange.collaboration
    if collaboration is None or collaboration.draft.calls:
        return None
    exchange = {"messages": result.chat.body["messages"], "reply": collaboration.draft.text}
    return Case(exchange=encode_json(exchange).decode(), expect=TREATMENTS[collaboration.decision])


def _download_case(form: Mapping[str, str]) -> Response:
    """Return a case as a file of one line.

    Raises:
        RequestError: 400, the form is not that of a page of ours.
    """
    exchange = read_object(form.get("case", "").encode())
    try:
        case = msgspec.convert({**exchange, "expect": form["expect"]}, PolicyCase)
    except msgspec.ValidationError as error:
        raise page_error(400, f"this is no case: {error}") from None
    line = msgspec.json.encode(case) + b"\n"
    headers = {
        "content-disposition": 'attachment; filename="case.jsonl"',
        "cache-control": "no-store",
    }
    return Response(line, headers=headers, media_type="application/x-ndjson")
