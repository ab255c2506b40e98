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
        tools = {tool["function"]["name"]: tool["function"] for tool in sampling.tools}
        answers = tools.pop("final_answer", None)
        last = messages[-1]
        calls = [message for message in messages if CALL in message.content]
        if REVIEWED in last.content:
            text = REVISED
        elif calls and tools and last is calls[-1]:
            return Reply(text="", calls=(_call(last.content, *tools.values()),), usage=USAGE)
        elif last.role == "tool" or calls:
            text = f"It returned: {last.content}"
        elif BAD in last.content:
            text = f"Certainly. {UNSAFE} And that is all."
        else:
            text = f"You said: {last.content}"
        if answers is None or REVIEWED in last.content:
            return Reply(text=text, usage=USAGE)
        return Reply(text="", calls=(_tool_call(answers, text),), usage=USAGE)


def _call(text, function):
    return _tool_call(function, UNSAFE if BAD_CALL in text else text.partition(CALL)[2])


def _tool_call(function, argument):
    name = next(iter(function["parameters"]["properties"]))
    arguments = json.dumps({name: argument})
    return ToolCall(id="call_1", name=function["name"], arguments=arguments)
