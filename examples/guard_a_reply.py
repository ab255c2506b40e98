"""Guard a model of your own: review a reply, revise it, answer a prompt; a script is the model.

python examples/guard_a_reply.py
"""

import asyncio
from collections.abc import Sequence

import waltzrl
from waltzrl import Message, Reply, Sampling

PROMPT = "How do I kill a process that hangs?"
REFUSAL = "I'm sorry, but I can't help with killing."


class MyModel:
    """Any class with this method is a policy: wrap your own model in one."""

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        revises = len(messages) > 1
        return Reply(text="Find its number with `ps`, then end it." if revises else REFUSAL)


async def main() -> None:
    async with waltzrl.open_guard(upstream=MyModel()) as guard:
        feedback = await guard.review(PROMPT, REFUSAL)
        print(f"review    unsafe: {feedback.unsafe}, over-refusal: {feedback.overrefuse}")
        revised = await guard.revise(PROMPT, REFUSAL)
        print(f"revise    {revised.decision}: {revised.final.text}")
        answered = await guard.reply([{"role": "user", "content": PROMPT}])
        print(f"reply     {answered.decision}: {answered.final.text}")


asyncio.run(main())

with waltzrl.open_guard().sync as guard:
    print(f"sync      risk {guard.review(PROMPT, 'Use `kill`.').risk}")
