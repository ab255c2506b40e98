"""One request through the gateway, without a network; a script stands in for the model.

python examples/ask_through_the_gateway.py
"""

import asyncio
import json

from waltzrl.serving.selector import SingleBundle

from waltzrl.agents import RulesReviewer, load_wording
from waltzrl.collaboration import guarded
from waltzrl.policies import ScriptedPolicy
from waltzrl.rules import load_rulebook
from waltzrl.serving.decisions import DecisionLog
from waltzrl.serving.gateway import Assignment, Bundle, Gateway, GatewayRequest, ServedChoice
from waltzrl.serving.keys import ANONYMOUS
from waltzrl.serving.upstream import PolicyUpstream
from waltzrl.serving.wire import CHAT

ASKED = {
    "model": "script",
    "messages": [{"role": "user", "content": "How do I kill a process that hangs?"}],
}
REPLIES = (
    "I'm sorry, but I can't help with killing.",
    "Find its number with `ps`, then end it with `kill NUMBER`.",
)
RULES = Bundle(
    id="rules",
    stage=1,
    pattern=guarded,
    reviewer=RulesReviewer(load_rulebook()),
    wording=load_wording("plain"),
    upstream=PolicyUpstream("script", ScriptedPolicy(REPLIES), max_new_tokens=64),
)


def tell(served: ServedChoice) -> None:
    """Hear of all that was served, as metrics and traces do."""
    said = served.collaboration
    assert said is not None
    print(f"draft     {said.draft.text}")
    print(f"feedback  {said.rounds[0].feedback.text}")
    print(f"decision  {served.decision}, by {served.bundle.id}")


async def post(body: bytes) -> bytes:
    """Answer the body of `POST /v1/chat/completions`."""
    gateway = Gateway(roster=SingleBundle(Assignment(RULES)), ledger=DecisionLog(None, [tell]))
    exchange = CHAT.read(body, "example-1")
    answers = await gateway.answers(GatewayRequest(exchange=exchange, caller=ANONYMOUS))
    return CHAT.write(exchange, answers)


reply = json.loads(asyncio.run(post(json.dumps(ASKED).encode())))
print(f"reply     {reply['choices'][0]['message']['content']}")
