"""Requests that are wrong in one to three places, and some that are no requests at all."""

import json
from copy import deepcopy
from random import Random

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
VALID = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, IMAGE]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "It rains."},
            {"role": "user", "content": "And tomorrow?"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": "auto",
        "n": 1,
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["END"],
        "stream": False,
        "stream_options": {"include_usage": True},
        "user": "u",
    },
    "/v1/completions": {
        "model": "m",
        "prompt": ["Hi", "And tomorrow?"],
        "n": 2,
        "best_of": 2,
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["END"],
        "echo": False,
        "stream": False,
        "stream_options": {"include_usage": True},
        "user": "u",
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "It rains."},
            {"role": "user", "content": [{"type": "input_image", "image_url": "https://a.b/c"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 9,
        "previous_response_id": None,
        "stream": False,
        "safety_identifier": "u",
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "It rains."},
                    {"type": "image", "source": {"type": "url", "url": "https://a.b/c"}},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "stream": False,
    },
}
"""Path -> a request that is right."""

ODD = (
    None,
    True,
    False,
    0,
    -1,
    17,
    1.5,
    10**30,
    "",
    "x",
    "a\0b",
    "\u202e\U0001f30a",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    ["x"],
    [{}],
    {"type": "x"},
    {"type": []},
    {"role": {}},
    {"": {"": []}},
)
"""Values that are seldom what a field needs."""
RAW = (
    b"",
    b" ",
    b"\0",
    b"{",
    b"nul",
    b"[]",
    b"1",
    b'"x"',
    b"\xef\xbb\xbf{}",
    b'{"model":"\xff"}',
    b'{"model":"\\ud800"}',
    b'{"model":"\xed\xa0\x80"}',
    b'{"n":1e999}',
    b'{"n":' + b"9" * 5000 + b"}",
    b'{"a":NaN}',
    b'{"a":1,}',
    b"{'a':1}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"messages":[' * 300 + b"]}" * 300,
    b"POST / HTTP/1.1\r\n\r\n",
)


def malformed(seed, count):
    """Yield `count` pairs of a path and a body, the same for the same seed."""
    random = Random(seed)
    paths = list(VALID)
    for _ in range(count):
        path = random.choice(paths)
        yield path, random.choice((_mutated, _mutated, _mutated, _cut, _noise))(random, path)


def _mutated(random, path):
    """Put odd values into one to three places of a request, or take something out of it."""
    body = deepcopy(VALID[path])
    for _ in range(random.randint(1, 3)):
        holder, key = random.choice(list(_places(body)))
        if random.random() < 0.2:
            del holder[key]
        else:
            holder[key] = deepcopy(random.choice(ODD))
        if not body:
            break
    return json.dumps(body).encode()


def _places(value):
    """Yield every object or list in `value` with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _cut(random, path):
    """Change, drop or repeat a few bytes of a request."""
    raw = bytearray(json.dumps(VALID[path]).encode())
    for _ in range(random.randint(1, 4)):
        start = random.randrange(len(raw))
        end = start + random.randint(0, 8)
        raw[start:end] = random.choice(
            (b"", random.randbytes(random.randint(1, 4)), raw[start:end] * 2)
        )
    return bytes(raw)


def _noise(random, path):
    return random.choice((*RAW, random.randbytes(random.randint(0, 200))))
