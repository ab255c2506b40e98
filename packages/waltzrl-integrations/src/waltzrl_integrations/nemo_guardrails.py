"""NeMo Guardrails: an output rail that revises instead of refusing.

rails = LLMRails(OUTPUT_RAIL + RailsConfig.from_path("config"))
rails.register_action(revise_action(guard))
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply
from waltzrl_integrations import drafts

with drafts.needs("NeMo Guardrails", "nemoguardrails>=0.24"):
    from nemoguardrails import RailsConfig
    from nemoguardrails.actions import action
    from nemoguardrails.actions.rail_outcome import RailOutcome, TransformTarget

OUTPUT_RAIL = RailsConfig.from_content(
    yaml_content='rails: {output: {flows: ["waltzrl revise"]}}',
    colang_content="""
define subflow waltzrl revise
  $outcome = execute waltzrl_revise
  if $outcome.is_blocked
    bot refuse to respond
    stop
  if $outcome.is_transform
    $bot_message = $outcome.transform_text["bot_message"]

define bot refuse to respond
  "I'm sorry, I can't respond to that."
""",
)
"""Comes before a configuration in Colang 1.0, whose settings win."""


def revise_action(guard: Guard) -> Callable[..., Any]:
    """Return the action of the rail; it reviews texts, and no calls of tools.

    Where NeMo streams, it shows its rails pieces of a reply, which cannot be revised: an unsafe
    piece ends the stream.
    """

    @action(name="waltzrl_revise", is_system_action=True)
    async def revise(
        context: Mapping[str, Any],
        events: Iterable[Mapping[str, Any]] | None = None,
        **_others: object,
    ) -> RailOutcome:
        draft = Reply(text=context.get("bot_message") or "")
        # NeMo passes no events with the pieces of a stream.
        if events is None:
            turns = [Message(role="user", content=context.get("user_message") or "")]
            feedback = await drafts.call_guard(guard, Guard.review, turns, draft)
            return RailOutcome.block() if feedback.refuses else RailOutcome.allow()
        text, _added = await drafts.revise(guard, _collect_turns(events), draft)
        if text is None:
            return RailOutcome.allow()
        return RailOutcome.transform([(TransformTarget.BOT_MESSAGE, text)])

    revise_output: Callable[..., Any] = revise
    return revise_output


def _collect_turns(events: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return the conversation behind NeMo's events."""
    turns = []
    for event in events:
        match event:
            case {"type": "SystemMessage", "content": text}:
                turns.append(Message(role="system", content=str(text)))
            case {"type": "UtteranceUserActionFinished", "final_transcript": text}:
                turns.append(Message(role="user", content=drafts.words_of(text)))
            case {"type": "StartUtteranceBotAction", "script": text}:
                turns.append(Message(role="assistant", content=str(text)))
    return turns
