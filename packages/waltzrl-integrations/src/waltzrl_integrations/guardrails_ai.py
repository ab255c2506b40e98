"""Guardrails AI: a validator whose fix is the revised reply.

guarded = AsyncGuard().use(RevisedReply(guard, on_fail="fix"))
await guarded.validate(text, metadata={"messages": messages})
"""

from collections.abc import Callable
from typing import Any, NoReturn

from waltzrl.errors import InputError
from waltzrl.gateway.guard import Guard, Turn
from waltzrl_integrations import drafts

with drafts.needs("Guardrails AI", "guardrails-ai>=0.11"):
    from guardrails.validator_base import (
        FailResult,
        PassResult,
        ValidationResult,
        Validator,
        register_validator,
    )


@register_validator(name="waltzrl/revised-reply", data_type="string")
class RevisedReply(Validator):
    """Reviews a text as the reply to `metadata["messages"]`; without them, to nothing.

    `on_fail="fix"` returns the revision, or the refusal, and `"exception"` ends the call.
    """

    def __init__(self, guard: Guard, on_fail: str | Callable[..., Any] | None = None) -> None:
        super().__init__(on_fail=on_fail)
        self._guard = guard

    def validate(self, value: str, metadata: dict[str, Any]) -> ValidationResult:
        return drafts.run_blocking(_validate, self._guard, value, metadata)

    async def async_validate(self, value: str, metadata: dict[str, Any]) -> ValidationResult:
        return await _validate(self._guard, value, metadata)

    def validate_stream(self, chunk: Any, metadata: dict[str, Any], **_others: object) -> NoReturn:
        """Refuse a stream, whose sentences would leave before the reply was reviewed.

        Raises:
            InputError: always.
        """
        raise InputError("waltzrl reviews whole replies; call Guardrails AI without stream=True")


async def _validate(
    guard: drafts.AnyGuard, value: str, metadata: dict[str, Any]
) -> ValidationResult:
    turns: list[Turn] = metadata.get("messages") or [{"role": "user", "content": ""}]
    text, _added = await drafts.revise(guard, turns, drafts.reply_of(value))
    if text is None:
        return PassResult()
    return FailResult(error_message="waltzrl's reviewer asks for another reply", fix_value=text)
