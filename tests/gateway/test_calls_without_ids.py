"""Tool calls that a server sends without an index or an id: the conversation goes on."""

import asyncio
import json

import pytest

from support.small_gateway import CHAT, MESSAGES, RESPONSES, ask, gateway
from support.small_site import events, http, read_request

PAGES = ['{"page":1}', '{"page":2}']
CALLS = [{"type": "function", "function": {"name": "read", "arguments": page}} for page in PAGES]
USER = {"role": "user", "content": "read both pages"}
BOTH = "Both were read."


async def reader_of_pages(reader, writer):
    """Call a tool twice, and answer once there is a result of a tool."""
    while request := await read_request(reader):
        body = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
        if any(message["role"] == "tool" for message in body.get("messages", ())):
            writer.write(http({"choices": [{"message": {"content": BOTH}}]}))
        elif body.get("stream"):
            deltas = [{"delta": {"tool_calls": [call]}} for call in CALLS]
            ends = [*deltas, {"delta": {}, "finish_reason": "tool_calls"}]
            writer.write(events(*[json.dumps({"choices": [choice]}) for choice in ends]))
        else:
            message = {"content": None, "tool_calls": CALLS}
            writer.write(http({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))


def data_of(response):
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def chat_calls(response, stream):
    """Return the next turn's messages, and the ids and arguments of the calls in the last."""
    if stream:
        choices = [choice for chunk in data_of(response) for choice in chunk["choices"]]
        calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
        calls = [{key: value for key, value in call.items() if key != "index"} for call in calls]
    else:
        calls = response.json["choices"][0]["message"]["tool_calls"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "text"} for call in calls]
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    return {"messages": turns}, [(call["id"], call["function"]["arguments"]) for call in calls]


def messages_calls(response, stream):
    if stream:
        found = data_of(response)
        blocks = [e["content_block"] for e in found if e["type"] == "content_block_start"]
        inputs = [e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta"]
        pairs = zip(blocks, inputs, strict=True)
        blocks = [{**block, "input": json.loads(text)} for block, text in pairs]
    else:
        blocks = response.json["content"]
    results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "text"} for b in blocks]
    turns = [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    found = [(b["id"], json.dumps(b["input"], separators=(",", ":"))) for b in blocks]
    return {"messages": [USER, *turns]}, found


def responses_calls(response, stream):
    body = data_of(response)[-1]["response"] if stream else response.json
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "text"}
        for call in calls
    ]
    found = [(call["call_id"], call["arguments"]) for call in calls]
    return {"input": [USER, *calls, *outputs]}, found


FIRST = {
    CHAT: ({"model": "m", "messages": [USER]}, chat_calls),
    MESSAGES: ({"model": "m", "messages": [USER], "max_tokens": 9}, messages_calls),
    RESPONSES: ({"model": "m", "input": [USER]}, responses_calls),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FIRST)
def test_the_next_turn_can_answer_every_call(path, stream):
    body, read_calls = FIRST[path]

    async def work():
        async with gateway(model=reader_of_pages) as app:
            first = await ask(app, path, {**body, "stream": stream})
            turn, calls = read_calls(first, stream)
            return calls, await ask(app, path, {**body, **turn})

    calls, second = asyncio.run(work())
    assert [arguments for _id, arguments in calls] == PAGES
    assert len({call_id for call_id, _arguments in calls if call_id}) == 2
    assert (second.status, BOTH in second.text) == (200, True)
