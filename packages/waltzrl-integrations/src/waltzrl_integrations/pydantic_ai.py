"""Pydantic AI: a guarded model.

Agent(GuardedWrapperModel("openai:qwen", guard))
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply, Role
from waltzrl_integrations import drafts

with drafts.needs("Pydantic AI", "pydantic-ai-slim>=2.0"):
    from pydantic_ai import messages as said
    from pydantic_ai.models import (
        CompletedStreamedResponse,
        Model,
        ModelRequestParameters,
        StreamedResponse,
    )
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage


class GuardedWrapperModel(WrapperModel):
    """A model whose replies the guard has reviewed, and the results of tools it reads."""

    def __init__(self, wrapped: Model | str, guard: Guard) -> None:
        super().__init__(wrapped)
        self.guard = guard

    async def request(
        self,
        messages: list[said.ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> said.ModelResponse:
        read = [await self._withhold_results(message) for message in messages]
        draft = await self.wrapped.request(read, settings, parameters)
        turns = [turn for message in read for turn in _convert_model_message(message)]
        text, added = await drafts.revise(self.guard, turns, _convert_response(draft))
        usage = draft.usage + RequestUsage(
            input_tokens=added.input_tokens, output_tokens=added.output_tokens
        )
        if text is None:
            return replace(draft, usage=usage)
        # How the draft ended, such as by a call of a tool, is not how a revision ends.
        parts = [said.TextPart(text)]
        return replace(draft, parts=parts, usage=usage, finish_reason="stop", provider_details=None)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[said.ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        run_context: object = None,
    ) -> AsyncIterator[StreamedResponse]:
        response = await self.request(messages, settings, parameters)
        yield _Pieces(response, model_request_parameters=parameters, replay_events=True)

    async def _withhold_results(self, message: said.ModelMessage) -> said.ModelMessage:
        parts = [await self._withhold_part(part) for part in message.parts]
        if all(part is before for part, before in zip(parts, message.parts, strict=True)):
            return message
        return replace(message, parts=parts)

    async def _withhold_part(self, part: said.ModelRequestPart) -> said.ModelRequestPart:
        match part:
            case said.ToolReturnPart():
                text = part.model_response_str()
            case said.RetryPromptPart(tool_name=str()):  # an error of a tool
                text = part.model_response()
            case _:
                return part
        if not await drafts.withholds(self.guard, text):
            return part
        return replace(part, content=drafts.WITHHELD)


class _Pieces(CompletedStreamedResponse):
    """A reviewed response as a stream: its texts in pieces."""

    async def _get_event_iterator(self) -> AsyncIterator[said.ModelResponseStreamEvent]:
        manager = self._parts_manager
        for index, part in enumerate(self.response.parts):
            if not isinstance(part, said.TextPart):
                yield manager.handle_part(vendor_part_id=index, part=part)
                continue
            for piece in drafts.cut_pieces(part.content):
                for event in manager.handle_text_delta(vendor_part_id=index, content=piece):
                    yield event

    def get(self) -> said.ModelResponse:
        return replace(self.response, parts=self._parts_manager.get_parts())


def _convert_model_message(message: said.ModelMessage) -> list[Message]:
    """Return the turns of a message, each of whose parts is one if it is a request."""
    if isinstance(message, said.ModelResponse):
        return drafts.turns_of("assistant", _convert_response(message))
    instructions = Message(role="system", content=message.instructions or "")
    return [instructions, *(_convert_request_part(part) for part in message.parts)]


def _convert_request_part(part: said.ModelRequestPart) -> Message:
    match part:
        case said.ToolReturnPart():
            content = part.model_response_str()
            return Message(role="tool", content=content, call_id=part.tool_call_id)
        case said.RetryPromptPart():
            return Message(role="user", content=part.model_response())
    role: Role = "system" if isinstance(part, said.SystemPromptPart) else "user"
    content = [part.content] if isinstance(part.content, str) else part.content
    return Message(role=role, content="\n".join(text for text in content if isinstance(text, str)))


def _convert_response(response: said.ModelResponse) -> Reply:
    parts = response.parts
    text = "".join(part.content for part in parts if isinstance(part, said.TextPart))
    reasoning = "".join(part.content for part in parts if isinstance(part, said.ThinkingPart))
    called = [part for part in parts if isinstance(part, said.BaseToolCallPart)]
    calls = [(part.tool_call_id, part.tool_name, part.args_as_json_str()) for part in called]
    return drafts.reply_of(text, reasoning, calls)
