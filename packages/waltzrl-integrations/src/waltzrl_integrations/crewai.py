"""CrewAI: a guarded LLM for agents, and a guardrail for tasks.

Agent(role="...", goal="...", backstory="...", llm=GuardedCrewLLM(LLM(model="qwen"), guard))
Task(description="...", expected_output="...", guardrail=task_guardrail(guard))
"""

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from waltzrl.gateway.guard import Guard
from waltzrl.records import Reply
from waltzrl_integrations import drafts

with drafts.needs("CrewAI", "crewai>=1.15"):
    from crewai import BaseLLM, TaskOutput
    from crewai.events.types.llm_events import LLMCallType
    from crewai.hooks.llm_hooks import model_call_hooks_dispatched
    from crewai.llms.base_llm import call_stop_override, call_stream_override, llm_call_context
    from crewai.utilities.agent_utils import extract_tool_call_info
    from pydantic import BaseModel, PrivateAttr

JsonObject = dict[str, Any]

TURN = ("role", "content", "tool_calls", "tool_call_id")
EVENTS = ("_emit_call_started_event", "_emit_call_completed_event", "_handle_emit_call_events")
"""The methods by which an LLM tells CrewAI's event bus what it was asked and what it replied."""


class GuardedCrewLLM(BaseLLM):
    """An LLM whose replies the guard has reviewed, and the results of tools it reads."""

    _llm: BaseLLM = PrivateAttr()
    _guard: Guard = PrivateAttr()

    supports_function_calling = property(attrgetter("_llm.supports_function_calling"))
    supports_multimodal = property(attrgetter("_llm.supports_multimodal"))
    supports_stop_words = property(attrgetter("_llm.supports_stop_words"))
    get_context_window_size = property(attrgetter("_llm.get_context_window_size"))
    get_token_usage_summary = property(attrgetter("_llm.get_token_usage_summary"))

    def __init__(self, llm: BaseLLM, guard: Guard) -> None:
        super().__init__(model=llm.model, provider=llm.provider, stop=llm.stop, stream=llm.stream)
        # A copy, because the caller's own LLM must go on telling the event bus.
        self._llm, self._guard = llm.model_copy(), guard
        for name in EVENTS:
            # Past pydantic, which sets nothing but fields.
            object.__setattr__(self._llm, name, lambda *_args, **_fields: None)

    def call(self, messages: str | list[JsonObject], **options: object) -> object:
        return drafts.run_blocking(
            self._answer_call, self._guard, self._llm.call, messages, options
        )

    async def acall(self, messages: str | list[JsonObject], **options: object) -> object:
        return await self._answer_call(self._guard, self._llm.acall, messages, options)

    async def _answer_call(
        self,
        guard: drafts.AnyGuard,
        model: drafts.Model,
        messages: str | list[JsonObject],
        options: JsonObject,
    ) -> object:
        functions = options.pop("available_functions", None)
        # They would see the draft.
        options.pop("callbacks", None)
        whose = {name: options.get(name) for name in ("from_task", "from_agent")}
        asked = self._format_messages(messages)
        read = [await drafts.read_turn(guard, message) for message in asked]
        with llm_call_context():
            self._emit_call_started_event(messages, tools=options.get("tools"), **whose)
            self._invoke_before_llm_call_hooks(read, whose["from_agent"])
            with (
                model_call_hooks_dispatched(),
                call_stream_override(self._llm, False),
                call_stop_override(self._llm, self.stop_sequences),
            ):
                draft = await drafts.await_draft(model, read, **options)
            turns = [
                {name: turn[name] for name in TURN if name in turn}
                for turn in map(drafts.flatten_turn, read)
            ]
            text, added = await drafts.revise(guard, turns, _convert_crew_draft(draft))
            if added.output_tokens:
                counts = {"input_tokens": added.input_tokens, "output_tokens": added.output_tokens}
                # CrewAI reads the usage of the wrapped LLM; see `get_token_usage_summary` above.
                self._llm._track_token_usage_internal(counts)
            final = draft if text is None else text
            kind = LLMCallType.TOOL_CALL if isinstance(final, list) else LLMCallType.LLM_CALL
            if isinstance(final, str) and self._effective_stream():
                for piece in drafts.cut_pieces(final):
                    self._emit_stream_chunk_event(piece, **whose)
            self._emit_call_completed_event(final, kind, messages=read, **whose)
            if isinstance(final, list) and functions:
                _, name, arguments = extract_tool_call_info(final[0])
                arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
                result = self._handle_tool_execution(name, arguments, functions, **whose)
                withheld = await drafts.withholds(guard, str(result))
                return drafts.WITHHELD if withheld else result
            return self._invoke_after_llm_call_hooks(read, final, whose["from_agent"])


def task_guardrail(guard: Guard) -> Callable[[TaskOutput], tuple[bool, str]]:
    """Return a guardrail that revises what a task returns; the task is not run again."""

    def revised(output: TaskOutput) -> tuple[bool, str]:
        return True, guard.sync.revise(output.description, output.raw).final.text

    return revised


def _convert_crew_draft(draft: object) -> Reply:
    if isinstance(draft, list):
        return drafts.reply_of("", calls=[extract_tool_call_info(call) for call in draft])
    return drafts.reply_of(draft.model_dump_json() if isinstance(draft, BaseModel) else str(draft))
