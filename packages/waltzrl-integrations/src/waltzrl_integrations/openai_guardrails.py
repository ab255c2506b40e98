"""OpenAI Guardrails: a check of outputs that brings the reply to send instead.

register_check(guard)
GuardrailsAsyncOpenAI(config={"output": {"guardrails": [{"name": "waltzrl", "config": {}}]}, ...})
"""

from typing import Any

from waltzrl.gateway.guard import Guard, read_prompt
from waltzrl_integrations import drafts

with drafts.needs("OpenAI Guardrails", "openai-guardrails>=0.3"):
    from guardrails.registry import default_spec_registry
    from guardrails.types import GuardrailResult


def register_check(guard: Guard, name: str = "waltzrl") -> None:
    """Register the check, for the stage `output`, under a name that a configuration lists.

    OpenAI Guardrails cannot change a reply: it raises `GuardrailTripwireTriggered`, whose
    `guardrail_result.info["reply"]` is the revision or the refusal to send. A reply that could not
    be reviewed raises it too, without that key.
    """

    async def check(ctx: Any, data: str, config: None) -> GuardrailResult:
        info: dict[str, Any] = {"guardrail_name": name}
        try:
            text = await _review(guard, ctx.get_conversation_history() or (), data)
        except Exception as error:  # noqa: BLE001 - an exception counts as approval there
            return GuardrailResult(tripwire_triggered=True, info=info | {"error": str(error)})
        if text is None:
            return GuardrailResult(tripwire_triggered=False, info=info)
        return GuardrailResult(tripwire_triggered=True, info=info | {"reply": text})

    default_spec_registry.register(
        name=name,
        check_fn=check,
        description="Reviews a reply with waltzrl, and revises or refuses it.",
        media_type="text/plain",
    )


async def _review(guard: Guard, history: Any, reply: str) -> str | None:
    """Return the text to send instead; None if the reply may be sent."""
    turns = [turn for turn in history if turn.get("role")]
    if turns and turns[-1]["role"] == "assistant":  # the reply itself
        turns.pop()
    conversation = read_prompt(turns or "").messages
    return (await drafts.revise(guard, conversation, drafts.reply_of(reply))).text
