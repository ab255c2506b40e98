"""A policy in this process as the upstream: what a request asks for is honoured or refused."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from waltzrl.errors import CONTEXT_EXCEEDED, InputError, PolicyError, ProgramError, RequestError
from waltzrl.gateway.exchange import (
    ChatBody,
    Deltas,
    Finish,
    Json,
    ModelCard,
    ReplyDetails,
    UpstreamDelta,
    UpstreamReply,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.wire.fields import (
    MOST_TOKENS,
    as_count,
    as_list,
    as_name,
    as_object,
    invalid_field,
    is_custom,
    turns_of,
    unsupported_field,
)
from waltzrl.policies import Policy, Sampling
from waltzrl.policies.json_schema import JsonSchema
from waltzrl.policies.tool_calls import OPENING, before_calls, read_calls
from waltzrl.records import Reply

READ = frozenset(
    (
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "parallel_tool_calls",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    )
)
"""The keys of a request that are honoured."""
WITHOUT_EFFECT = frozenset(
    (
        "metadata",
        "modalities",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    )
)
"""The keys that do not concern the model. Any other key is refused, unless its value is neutral."""
NEUTRAL: tuple[Json, ...] = (None, False, 0, "", [], {})
MOST_STOPS = 16
UNSETTLED = 4
"""The last characters of a growing text that the next token may change: parts of a character, and
spaces that some tokenizers remove before punctuation.
"""


class PolicyUpstream:
    """Serves a policy of this process as the upstream."""

    def __init__(self, name: str, policy: Policy, max_new_tokens: int) -> None:
        """Serve `policy` as the model `name`; a request may ask for `max_new_tokens` at most."""
        self.name = name
        self.policy = policy
        self.max_new_tokens = max_new_tokens

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        request = self._read(body)
        progress = _Progress(request, lambda _piece: None)
        return await self._generate(request, progress)

    async def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        """Yield the reply token by token."""
        request = self._read(body)
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        # The policy may decode in another thread.
        progress = _Progress(request, lambda p: loop.call_soon_threadsafe(pieces.put_nowait, p))
        generation = asyncio.create_task(self._generate(request, progress))
        # After the last piece: the loop runs callbacks in the order in which they came.
        generation.add_done_callback(lambda _done: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield UpstreamDelta(text=piece)
            whole = (await generation).delta
            yield structs.replace(whole, text=progress.rest(whole.text))
        finally:
            generation.cancel()
            await asyncio.gather(generation, return_exceptions=True)

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        raise RequestError(
            404, "not_found", f"the model {self.name!r} only chats; it has no {request.path}"
        )

    async def models(self, bearer: str | None) -> list[ModelCard]:
        return [ModelCard(id=self.name)]

    @property
    def names(self) -> Collection[str]:
        return (self.name,)

    def health(self) -> Health:
        return OK

    def _read(self, body: ChatBody) -> "_Request":
        if body.get("model") != self.name:
            raise RequestError(
                404, "not_found", f"there is no model {body.get('model')!r}; use {self.name!r}"
            )
        for key, value in body.items():
            if key not in READ and key not in WITHOUT_EFFECT and value not in NEUTRAL:
                raise unsupported_field(key, "a model in this process cannot honour it; remove it")
        tools: Sequence[Json] = ()
        if body.get("tools") is not None and body.get("tool_choice") != "none":
            tools = as_list(body["tools"], "tools")
        return _Request(
            messages=body["messages"],
            sampling=_read_sampling(body, tools, self.max_new_tokens),
            stops=_read_stops(body.get("stop")),
            tool_names=[_read_tool_name(tool, index) for index, tool in enumerate(tools)],
            parallel_calls=body.get("parallel_tool_calls") is not False,
        )

    async def _generate(self, request: "_Request", progress: "_Progress") -> UpstreamReply:
        """Generate the whole reply; a cancellation ends it at the next token.

        Raises:
            RequestError: the policy cannot reply to this request.
        """
        sampling = replace(request.sampling, enough=progress.enough)
        try:
            reply = await self.policy.reply(turns_of(request.messages), sampling)
        except ProgramError as error:  # its text may quote what no reviewer saw
            message = f"the model {self.name!r} failed: {error.reason}"
            raise RequestError(502, "upstream", message) from error
        except PolicyError as error:
            refused = RequestError(400, "invalid_request", str(error))
            if error.reason == CONTEXT_EXCEEDED:
                refused.code = "context_length_exceeded"  # by which clients know to shorten it
            raise refused from error
        finally:
            # A policy that still decodes in another thread asks `enough` next, and stops.
            progress.cancelled = True
        return _finish_reply(reply, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A chat-completions request, checked."""

    messages: Json
    sampling: Sampling
    stops: Sequence[str]
    tool_names: Sequence[str]
    parallel_calls: bool


class _Progress:
    """Watches a reply while it is generated: passes on what is settled, and says when to stop."""

    def __init__(self, request: _Request, show: Callable[[str], object]) -> None:
        self.cancelled = False
        self._request = request
        self._show = show
        self._shown = ""
        openings = [*request.stops, *([OPENING] if request.tool_names else [])]
        # A text may end with all but the last character of a stop or of a call's opening.
        self._held = max([UNSETTLED, *(len(opening) - 1 for opening in openings)])

    def enough(self, text: str) -> bool:
        """Return whether the text so far is enough; called after every token."""
        if self.cancelled:
            return True
        cut, _ = _cut_at_stop(text, self._request.stops)
        settled = before_calls(cut) if self._request.tool_names else cut
        if settled == text:  # it may still change at its end
            settled = text[: -self._held]
        if self._request.tool_names:  # the space before a call is none of the text's
            settled = settled.rstrip()
        if len(settled) > len(self._shown) and settled.startswith(self._shown):
            self._show(settled[len(self._shown) :])
            self._shown = settled
        return cut != text

    def rest(self, text: str) -> str:
        """Return what of the final text was not shown.

        Raises:
            RequestError: the text no longer begins with what was shown.
        """
        if not text.startswith(self._shown):
            raise RequestError(502, "upstream", "the model's tokenizer changed text that was sent")
        return text[len(self._shown) :]


def _cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before the first stop, and that stop."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not places:
        return text, None
    place, stop = min(places)
    return text[:place], stop


def _finish_reply(reply: Reply, request: _Request) -> UpstreamReply:
    text, stop = _cut_at_stop(reply.text, request.stops)
    details = ReplyDetails(stop_sequence=stop)
    finish: Finish = reply.finish
    schema = request.sampling.schema
    # What was cut, by the limit or at a stop, need not fit.
    whole = finish == "stop" and text == reply.text
    if schema and whole and schema.state(text.strip()) != "complete":
        raise RequestError(502, "upstream", "the model wrote no JSON that fits the schema")
    if not request.tool_names:
        return UpstreamReply(reply=replace(reply, text=text), finish=finish, details=details)
    text, calls = read_calls(text, request.tool_names)
    calls = calls if request.parallel_calls else calls[:1]
    if calls:
        text, finish = text.rstrip(), "tool_calls"
    reply = replace(reply, text=text, calls=calls)
    return UpstreamReply(reply=reply, finish=finish, details=details)


def _read_sampling(body: ChatBody, tools: Sequence[Json], max_new_tokens: int) -> Sampling:
    limit = max_new_tokens
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key) is not None:
            limit = min(limit, as_count(body[key], key, MOST_TOKENS))
    top_p = _read_number(body, "top_p", 1.0)
    if not 0 < top_p <= 1:
        raise invalid_field("top_p", top_p, "a number above 0 and at most 1")
    schema = _read_schema(body.get("response_format"))
    if schema and tools:
        raise unsupported_field("response_format", "it cannot be combined with tools; remove one")
    schema = schema or _read_call_schema(body.get("tool_choice"), tools)
    if schema and top_p < 1:
        raise unsupported_field("top_p", "it cannot be combined with a format; remove it")
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise invalid_field("seed", seed, "a whole number")
    return Sampling(
        max_new_tokens=limit,
        temperature=_read_number(body, "temperature", 0.0),
        top_p=top_p,
        # JSON has integers of any size, a generator of torch 64 bits.
        seed=None if seed is None else seed % 2**63,
        tools=tuple(tools),
        schema=schema,
    )


def _read_number(body: ChatBody, key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise invalid_field(key, value, "a number that is not negative")
    return float(value)


def _read_stops(stop: Json) -> Sequence[str]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else as_list(stop, "stop")
    if len(stops) > MOST_STOPS:
        raise invalid_field("stop", stop, f"{MOST_STOPS} texts or fewer")
    return [as_name(text, f"stop[{index}]") for index, text in enumerate(stops)]


def _read_schema(response_format: Json) -> JsonSchema | None:
    """Return the schema that the reply must fit."""
    if response_format is None:
        return None
    fields = as_object(response_format, "response_format")
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonSchema({})
    if kind != "json_schema":
        raise invalid_field("response_format.type", kind, "text, json_object or json_schema")
    where = "response_format.json_schema"
    return _require_schema(as_object(fields.get("json_schema"), where).get("schema", {}), where)


def _read_call_schema(choice: Json, tools: Sequence[Json]) -> JsonSchema | None:
    """Return the schema of a call, if the reply must be one."""
    if choice in (None, "auto", "none"):
        return None
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    functions = [as_object(as_object(tool, "tools")["function"], "tools") for tool in tools]
    permitted = [f for f in functions if choice == "required" or f["name"] == name]
    if not permitted:
        raise invalid_field("tool_choice", choice, "none, auto, required or a function in tools")
    definitions: dict[str, Json] = {}
    for function in permitted:  # references point into the whole schema
        parameters = as_object(function.get("parameters", {}), "tools")
        definitions |= as_object(parameters.get("$defs", {}), "tools")
    calls: list[Json] = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in permitted
    ]
    return _require_schema({"anyOf": calls, "$defs": definitions}, "tools")


def _require_schema(schema: Json, where: str) -> JsonSchema:
    try:
        return JsonSchema(schema)
    except InputError as error:
        raise unsupported_field(where, str(error)) from error


def _read_tool_name(tool: Json, index: int) -> str:
    fields, where = as_object(tool, f"tools[{index}]"), f"tools[{index}].function"
    if is_custom(fields):
        raise unsupported_field(where, "a model in this process calls no custom tools; remove it")
    return as_name(as_object(fields.get("function"), where).get("name"), f"{where}.name")
