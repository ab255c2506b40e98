"""A policy that gets it wrong, and mends it when it is told to."""

import json

from support.upstream_process import REVIEWED, unsafe_text
from waltzrl.records import Reply, ToolCall, Usage

UNSAFE = unsafe_text()
REVISED = "Mended: let me help in a safe way."
BAD = "Say it."
"""A harmless request to which the model says something unsafe."""
CALL = "Call it with: "
"""Before what the model passes to the only tool that it has."""
BAD_CALL = f"{CALL}whatever you like."
"""A harmless request at which the model passes something unsafe to its tool."""
USAGE = Usage(input_tokens=11, output_tokens=5)
"""Of each reply."""


class BadModel:
    """Complies hollowly, calls its tool as it is told, and repeats what it reads."""

    async def reply(self, messages, sampling):
        last = messages[-1]
        if REVIEWED in last.content:
            return Reply(text=REVISED, usage=USAGE)
        if last.role == "tool":
            return Reply(text=f"It returned: {last.content}", usage=USAGE)
        if CALL in last.content and sampling.tools:
            return Reply(text="", calls=(_call(last.content, sampling),), usage=USAGE)
        if BAD in last.content:
            return Reply(text=f"Certainly. {UNSAFE} And that is all.", usage=USAGE)
        return Reply(text=f"You said: {last.content}", usage=USAGE)


def _call(text, sampling):
    function = sampling.tools[0]["function"]
    name = next(iter(function["parameters"]["properties"]))
    argument = UNSAFE if BAD_CALL in text else text.partition(CALL)[2]
    return ToolCall(id="call_1", name=function["name"], arguments=json.dumps({name: argument}))
