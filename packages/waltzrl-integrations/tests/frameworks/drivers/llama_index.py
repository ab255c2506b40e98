"""A guarded LLM of LlamaIndex, with the tool called by hand; an agent in asynchronous modes."""

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.callbacks import CallbackManager
from llama_index.core.callbacks.base_handler import BaseCallbackHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool, call_tool_with_selection
from llama_index.llms.openai_like import OpenAILike

from drivers import Answer
from waltzrl_integrations.llama_index import GuardedLLM


class Callbacks(BaseCallbackHandler):
    """Notes whatever LlamaIndex tells about replies."""

    def __init__(self):
        super().__init__([], [])
        self.seen = []
        self.usage = [0, 0]

    def on_event_start(self, event_type, payload=None, event_id="", parent_id="", **_):
        return event_id

    def on_event_end(self, event_type, payload=None, event_id="", **_):
        self.seen.append(repr(payload))
        if response := (payload or {}).get("response"):
            used = response.additional_kwargs
            self.usage[0] += used["prompt_tokens"]
            self.usage[1] += used["completion_tokens"]

    def start_trace(self, trace_id=None):
        pass

    def end_trace(self, trace_id=None, trace_map=None):
        pass


def ask(case):
    llm, tools, callbacks = begin(case)
    messages = [ChatMessage(case.prompt)]
    while True:
        if case.mode == "sync":
            response = llm.chat_with_tools(tools, chat_history=messages)
        else:
            *chunks, response = llm.stream_chat_with_tools(tools, chat_history=messages)
            callbacks.seen += [repr(chunk) for chunk in chunks]
        messages.append(response.message)
        calls = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        if not calls:
            return answer(response.message.content, callbacks)
        for call in calls:
            output = call_tool_with_selection(call, tools)
            options = {"tool_call_id": call.tool_id}
            messages.append(ChatMessage(output.content, role="tool", additional_kwargs=options))


async def aask(case):
    llm, tools, callbacks = begin(case)
    agent = FunctionAgent(llm=llm, tools=tools, streaming=case.mode == "astream")
    run = agent.run(case.prompt)
    async for event in run.stream_events():
        callbacks.seen.append(repr(event))
        if isinstance(event, AgentStream):
            callbacks.seen.append(event.delta)
    return answer(str(await run), callbacks)


def begin(case):
    callbacks = Callbacks()
    bad = OpenAILike(
        model="bad",
        api_base=case.url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        callback_manager=CallbackManager([callbacks]),
    )
    tools = [FunctionTool.from_defaults(case.tool)] if case.tool else []
    return GuardedLLM(bad, case.guard), tools, callbacks


def answer(text, callbacks):
    return Answer(text=text, seen=callbacks.seen, usage=tuple(callbacks.usage))
