"""`POST /v1/responses`, OpenAI's newer API: reads requests as chats."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from waltzrl.gateway.exchange import Answer, ChatRequest, Json
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.blocks import block_text
from waltzrl.gateway.wire.fields import (
    MOST_TOKENS,
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    as_text,
    check_known,
    check_sampling,
    drop_empty_tools,
    drop_unset,
    has_strict_schema,
    invalid_field,
    name_call,
    objects_in,
    place_results,
    read_body,
    subject_of,
    text_of,
    unsupported_field,
    write_arguments,
)
from waltzrl.gateway.wire.format import encode_error
from waltzrl.gateway.wire.known import CHAT
from waltzrl.gateway.wire.prompt import prompt_of
from waltzrl.gateway.wire.responses_output import (
    ID_PREFIXES,
    ResponsesStream,
    build_response,
    decode_reasoning,
)

error = encode_error
writer = ResponsesStream

CONVERTED = (
    "input",
    "instructions",
    "max_output_tokens",
    "messages",
    "include",
    "n",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
)
"""Keys that `_convert_response_request` converts, or that a chat must not have."""
STATE = ("background", "previous_response_id", "conversation", "prompt")
"""Keys that refer to state on the server, which the gateway does not have."""
NO_STATE = "the gateway keeps no state; send the whole conversation"
DROPPED = (
    *STATE,
    "access_programs",
    "background_options",
    "client_metadata",
    "context_management",
    "image",
    "max_tool_calls",
    "store",
    "stream_options",
    "truncation",
)
"""Keys without a meaning for a chat: the gateway keeps no state and runs no tools."""
KNOWN = CHAT.union(CONVERTED, DROPPED)


def read(raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
    """Read a request; see `WireFormat.read`."""
    body = read_body(raw)
    drop_unset(body, KNOWN)
    check_known(body, KNOWN, caller)
    for key in STATE:
        if body.get(key):
            raise unsupported_field(key, NO_STATE)
    stream = as_bool(body.pop("stream", None), "stream")
    for key in DROPPED:
        body.pop(key, None)
    include = body.get("include")
    chat = _convert_response_request(body)
    check_sampling(chat)
    return ChatRequest(
        api="responses",
        prompt=prompt_of(chat, request_id, caller),
        body=chat,
        model=as_name(chat.get("model"), "model"),
        stream=stream,
        subject=subject_of(chat),
        has_refusals=has_strict_schema(chat),
        tool_names=_collect_tool_names(_list_tools(body)),
        encodes_reasoning=isinstance(include, list) and "reasoning.encrypted_content" in include,
        reasoning_summary=_read_summary(body.get("reasoning")),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; this API has one choice."""
    return msgspec.json.encode(build_response(chat, answers[0], created=answers[0].details.created))


def _convert_response_request(body: dict[str, Json]) -> dict[str, Json]:
    """Convert the request to a chat; others are passed on unchanged."""
    chat: dict[str, Json] = {key: value for key, value in body.items() if key not in CONVERTED}
    chat["messages"] = chat_messages(body.get("instructions"), body.get("input"))
    if body.get("max_output_tokens") is not None:
        limit = as_count(body["max_output_tokens"], "max_output_tokens", MOST_TOKENS)
        # The name that every server knows; where it is refused, the newer one is sent.
        chat["max_tokens"] = limit
    if tools := _list_tools(body):
        chat["tools"] = [_nest_tool(*tool) for tool in tools]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _nest_tool_choice(body["tool_choice"])
    drop_empty_tools(chat)
    if body.get("reasoning") is not None:
        effort = as_object(body["reasoning"], "reasoning").get("effort")
        if effort is not None:
            chat["reasoning_effort"] = as_text(effort, "reasoning.effort")
    include = body.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        chat["logprobs"] = True
    else:
        # A chat refuses it without `logprobs`.
        chat.pop("top_logprobs", None)
    if body.get("text") is not None:
        chat |= _convert_text_options(as_object(body["text"], "text"))
    return chat


def _read_summary(reasoning: Json) -> str:
    """Return how the client wants reasoning summarised; empty if it does not."""
    fields = reasoning if isinstance(reasoning, dict) else {}
    summary = as_text(fields.get("summary") or "", "reasoning.summary")
    return "" if summary == "none" else summary


TOOLS = ("function", "custom")
"""Types of tools that the client runs."""
UNNESTED = (
    *("type", "namespace", "execution"),
    *("allowed_callers", "async", "defer_loading", "output_schema"),
)
"""Keys of a tool that a chat's has not."""
SEARCH = "tool_search"
"""The type of the tool by which a model finds others, and its name in a chat if the client runs it.
"""
BRING_TOOLS = ("additional_tools", "tool_search_output")
"""Types of items in the input that have tools, which the model may call from there on."""


def _list_tools(body: Mapping[str, Json]) -> list[tuple[dict[str, Json], str]]:
    """Return the tools of a request and of the items in its input, and where they are."""
    tools = [] if body.get("tools") is None else [*_yield_tools(body["tools"])]
    brought: dict[str, tuple[dict[str, Json], str]] = {}
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict) and item.get("type") in BRING_TOOLS:
            for tool in _yield_tools(item.get("tools") or [], f"input[{index}].tools"):
                # An agent may bring a tool with each of its turns.
                brought[_describe_tool(tool[0])] = tool
    named = {_describe_tool(fields) for fields, _ in tools}
    return [*tools, *(tool for name, tool in brought.items() if name not in named)]


def _describe_tool(fields: Mapping[str, Json]) -> str:
    return f"{fields.get('namespace')} {fields.get('name')}"


def _yield_tools(tools: Json, where: str = "tools") -> Iterator[tuple[dict[str, Json], str]]:
    """Yield the tools and where they are; those in a namespace have its name in `namespace`."""
    for fields, tool_where in objects_in(tools, where):
        if _is_client_search(fields, SEARCH):
            yield {**fields, "type": "function", "name": SEARCH}, tool_where
            continue
        if fields.get("type") != "namespace":
            yield fields, tool_where
            continue
        named: dict[str, Json] = {"namespace": as_name(fields.get("name"), f"{tool_where}.name")}
        for inner, inner_where in _yield_tools(fields.get("tools"), f"{tool_where}.tools"):
            yield {**inner, **named}, inner_where


def _is_client_search(fields: Mapping[str, Json], kind: str) -> bool:
    return fields.get("type") == kind and fields.get("execution") == "client"


def _read_tool_name(fields: dict[str, Json], where: str) -> str:
    """Return the name of a tool in a chat, which has no namespaces."""
    name = as_name(fields.get("name"), f"{where}.name")
    if fields.get("namespace") is None:
        return name
    return f"{as_text(fields['namespace'], f'{where}.namespace')}__{name}"


def _collect_tool_names(
    tools: Sequence[tuple[dict[str, Json], str]],
) -> dict[str, dict[str, Json]]:
    """Return the fields that name each tool, by its name in a chat, which must be its own."""
    names: dict[str, dict[str, Json]] = {}
    for tool, where in tools:
        name, apart = _read_tool_name(tool, where), {"name": tool["name"]}
        if tool.get("namespace") is not None:
            apart["namespace"] = tool["namespace"]
        if tool["name"] == SEARCH and tool.get("execution") == "client":
            apart |= {"type": f"{SEARCH}_call", "execution": "client"}
        if names.setdefault(name, apart) != apart:
            raise invalid_field(f"{where}.name", name, "a name that no other tool has in a chat")
    return names


def _nest_tool(fields: dict[str, Json], where: str) -> Json:
    """Nest a tool's fields under its type, as a chat has them."""
    kind = fields.get("type")
    if kind not in TOOLS:
        need = "'function' or 'custom'; the gateway runs no tools"
        raise invalid_field(f"{where}.type", kind, need)
    nested = {key: value for key, value in fields.items() if key not in UNNESTED}
    nested["name"] = _read_tool_name(fields, where)
    tool_format = nested.get("format")
    if isinstance(tool_format, dict) and tool_format.get("type") == "grammar":
        grammar: Json = {key: value for key, value in tool_format.items() if key != "type"}
        nested["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, str(kind): nested}


def _nest_tool_choice(choice: Json) -> Json:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, dict) and isinstance(kind, str) and kind in TOOLS:
        return {"type": kind, kind: {"name": _read_tool_name(choice, "tool_choice")}}
    if isinstance(choice, dict) and kind == "allowed_tools":
        tools = as_list(choice.get("tools"), "tool_choice.tools")
        allowed: Json = {
            "mode": choice.get("mode", "auto"),
            "tools": [*map(_nest_tool_choice, tools)],
        }
        return {"type": kind, kind: allowed}
    if choice not in ("none", "auto", "required"):
        raise invalid_field("tool_choice", choice, "none, auto, required or a tool of the client")
    return choice


def _convert_text_options(text: dict[str, Json]) -> dict[str, Json]:
    options: dict[str, Json] = {}
    if text.get("verbosity") is not None:
        options["verbosity"] = text["verbosity"]
    if text.get("format") is not None:
        text_format = as_object(text["format"], "text.format")
        kind = as_name(text_format.get("type"), "text.format.type")
        schema: dict[str, Json] = {k: v for k, v in text_format.items() if k != "type"}
        options["response_format"] = (
            {"type": kind, "json_schema": schema} if kind == "json_schema" else text_format
        )
    return options


ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
FROM_CLIENT = ("_output", "_response")
"""The ends of the types of items that the client adds, such as `local_shell_call_output`."""


def chat_messages(instructions: Json, items: Json) -> list[Json]:
    """Convert a request's `instructions` and `input` to the messages of a chat.

    Raises:
        RequestError: an item is malformed.
    """
    chat: list[Json] = []
    if instructions is not None:
        chat.append({"role": "system", "content": text_of(instructions, "instructions")})
    if isinstance(items, str):
        return [*chat, {"role": "user", "content": text_of(items, "input")}]
    if not isinstance(items, list) or not items:
        raise invalid_field("input", items, "a string, or a list with one item or more")
    turns = _Turns()
    for item, where in objects_in(items, "input"):
        if item.get("type") != "additional_tools":  # whose tools are those of the chat
            _add_item(turns, item, where)
    messages = turns.end()
    if not chat and not messages:
        raise invalid_field("input", "reasoning items only", "one message or more")
    return [*chat, *place_results(messages)]


class _Turns:
    """Gathers the items of each turn of the assistant into one message, as a chat has them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Json]] = []
        self._called: set[Json] = set()
        """The ids of the calls."""
        self._thoughts: list[str] = []
        """Reasoning, which precedes what it led to."""
        self._texts: list[str] = []
        """Items written as text, which precede what they led to."""
        self._shown: list[Json] = []
        """The parts of results that are no text; the user's message after the results has them."""

    def reason(self, text: str) -> None:
        if text:
            self._thoughts.append(text)

    def tell(self, text: str) -> None:
        """Add an item of the assistant that a chat has no place for."""
        self._texts.append(text)

    def say(self, content: Json) -> None:
        """Add a message of the assistant; after a call, to the call's, whose result comes next."""
        texts, self._texts = self._texts, []
        content = _join_contents("\n".join(texts), content)
        last = self.messages[-1] if self.messages else {}
        if last.get("tool_calls"):
            last["content"] = _join_contents(last["content"], content)
        else:
            self._append({"role": "assistant", "content": content})
        self._add_pending(self._last())

    def call(self, call: Json) -> None:
        """Add a call to the assistant's last message."""
        last = self._last()
        self._add_pending(last)
        self._called.add(as_object(call, "call")["id"])
        as_list(last.setdefault("tool_calls", []), "tool_calls").append(call)

    def answer(self, item: dict[str, Json], output: Json) -> None:
        """Add the result of a call, of which a tool's message holds only the text.

        That of no call, which clients tell on their own, is the client's text.
        """
        call_id = item.get("call_id")
        if not (isinstance(call_id, str) and call_id in self._called):
            self.add({"role": "user", "content": block_text(item)})
            return
        parts = _convert_to_parts(output)
        if shown := [part for part in parts if part["type"] not in ("text", "refusal")]:
            texts = [part.get("text", part.get("refusal")) for part in parts if part not in shown]
            output = "\n".join(map(str, texts))
        self.add({"role": "tool", "tool_call_id": call_id, "content": output})
        self._shown += shown

    def add(self, message: dict[str, Json]) -> None:
        """Add a message that is not the assistant's."""
        self._end_turn()
        self._append(message)

    def end(self) -> list[dict[str, Json]]:
        """Return the messages; reasoning that led to nothing is left out."""
        self._end_turn()
        self._show()
        return self.messages

    def _end_turn(self) -> None:
        if self._texts:
            self._add_pending(self._last())
        self._thoughts = []

    def _append(self, message: dict[str, Json]) -> None:
        if message["role"] != "tool":
            self._show()
        self.messages.append(message)

    def _show(self) -> None:
        if self._shown:
            self.messages.append({"role": "user", "content": self._shown})
            self._shown = []

    def _last(self) -> dict[str, Json]:
        """Return the assistant's last message, a new one after any other."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._append({"role": "assistant", "content": None})
        return self.messages[-1]

    def _add_pending(self, message: dict[str, Json]) -> None:
        if self._thoughts:
            earlier = message.get("reasoning_content")
            thoughts = [*([earlier] if isinstance(earlier, str) else []), *self._thoughts]
            message["reasoning_content"] = "\n".join(thoughts)
        if self._texts:
            message["content"] = _join_contents(message["content"], "\n".join(self._texts))
        self._thoughts, self._texts = [], []


def _join_contents(first: Json, second: Json) -> Json:
    """Return the content of a message that says both."""
    if not (first and second):
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_convert_to_parts(first), *_convert_to_parts(second)]


def _convert_to_parts(content: Json) -> list[dict[str, Json]]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _convert_search_item(item: dict[str, Json]) -> dict[str, Json]:
    """Return a search of tools that the client ran as the call of a function, or its result."""
    called: dict[str, Json] = {"call_id": item.get("call_id")}
    if _is_client_search(item, f"{SEARCH}_call"):
        arguments = msgspec.json.encode(item.get("arguments") or {}).decode()
        return {**called, "type": "function_call", "name": SEARCH, "arguments": arguments}
    if _is_client_search(item, f"{SEARCH}_output"):
        return {**called, "type": "function_call_output", "output": block_text(item)}
    return item


def _add_item(turns: _Turns, item: dict[str, Json], where: str) -> None:
    item = _convert_search_item(item)
    kind = item.get("type") or "message"
    if kind == "message":
        _add_message(turns, item, where)
    elif kind == "item_reference":
        # Without what was said the model would not know its own words.
        if not as_name(item.get("id"), f"{where}.id").startswith(ID_PREFIXES["reasoning"]):
            raise unsupported_field(where, f"{NO_STATE}, as clients do with store=false")
    elif kind == "reasoning":
        turns.reason(_read_item_reasoning(item))
    elif kind in CALLS:
        turns.call(_convert_call_item(item, where))
    elif kind in RESULTS:
        # Clients leave out what is empty, here and below.
        output = _convert_content(item.get("output") or "", f"{where}.output", joins=True)
        turns.answer(item, output)
    elif as_name(kind, f"{where}.type").endswith(FROM_CLIENT):
        turns.add({"role": "user", "content": block_text(item)})
    else:
        turns.tell(block_text(item))


def _add_message(turns: _Turns, item: dict[str, Json], where: str) -> None:
    role = item.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid_field(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    content = item.get("content")
    if content is None and role == "assistant":  # of a reply without a word
        content = ""
    content = _convert_content(content, f"{where}.content", joins=role != "user")
    if role == "assistant":
        turns.say(content)
    else:
        turns.add({"role": ROLES[role], "content": content})


def _read_item_reasoning(item: dict[str, Json]) -> str:
    """Return what the model thought, or else the summary of it."""
    for key in ("content", "encrypted_content", "summary"):
        value = item.get(key)
        if isinstance(value, str):
            texts: list[Json] = [decode_reasoning(value)]
        else:
            parts = value if isinstance(value, list) else []
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
        if thoughts := [text for text in texts if isinstance(text, str) and text]:
            return "\n".join(thoughts)
    return ""


def _convert_call_item(item: dict[str, Json], where: str) -> Json:
    key, kind = ("arguments", "function")
    if item["type"] == "custom_tool_call":
        key, kind = ("input", "custom")
    call_id = as_name(item.get("call_id"), f"{where}.call_id")
    name = _read_tool_name({**item, "name": name_call(item.get("name"))}, where)
    text = write_arguments(item.get(key)) if kind == "function" else item.get(key)
    return {"id": call_id, "type": kind, kind: {"name": name, key: as_text(text, f"{where}.{key}")}}


def _convert_content(content: Json, where: str, *, joins: bool) -> Json:
    """Convert content parts; a single text becomes a string, which every upstream accepts.

    Args:
        content: a text, or parts.
        where: of the content, for errors.
        joins: several texts or refusals become one string; a user's stay parts.
    """
    if isinstance(content, str):
        return text_of(content, where)
    parts = [_convert_part(part, place) for part, place in objects_in(content, where)]
    texts = [part.get("text", part.get("refusal")) for part in parts]
    if None not in texts and (joins or len(texts) < 2):
        return "\n".join(map(str, texts))
    return [*parts]


def _convert_part(fields: dict[str, Json], where: str) -> dict[str, Json]:
    kind = as_name(fields.get("type"), f"{where}.type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": as_text(fields.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "refusal", "refusal": as_text(fields.get("refusal"), f"{where}.refusal")}
    if kind == "input_image" and fields.get("image_url") is not None:
        return _convert_image(fields, where)
    if kind == "input_file" and fields.get("file_url") is None:
        keys = ("file_data", "file_id", "filename")
        file: dict[str, Json] = {key: fields[key] for key in keys if key in fields}
        return {"type": "file", "file": file}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": fields.get("input_audio")}
    return {"type": "text", "text": block_text(fields)}


def _convert_image(part: dict[str, Json], where: str) -> dict[str, Json]:
    image: dict[str, Json] = {"url": as_name(part["image_url"], f"{where}.image_url")}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}
