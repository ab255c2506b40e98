"""An agent of OpenAI's SDK whose model we guard."""

from openai import AsyncOpenAI

import agents
from agents import Agent, InputGuardrailTripwireTriggered, RunConfig, Runner, function_tool
from drivers import Answer
from waltzrl_integrations.openai_agents import GuardedModel, request_guardrail


class Traces(agents.TracingProcessor):
    """Notes whatever the SDK would send to a trace."""

    def __init__(self):
        self.seen = []

    def on_trace_start(self, trace):
        pass

    def on_trace_end(self, trace):
        pass

    def on_span_start(self, span):
        pass

    def on_span_end(self, span):
        self.seen.append(repr(span.export()))

    def shutdown(self):
        pass

    def force_flush(self):
        pass


def ask(case):
    agent, config, traces = begin(case)
    try:
        result = Runner.run_sync(agent, case.prompt, run_config=config)
    except InputGuardrailTripwireTriggered:
        return Answer(text="")
    return answer(result, traces)


async def aask(case):
    agent, config, traces = begin(case)
    try:
        if case.mode == "async":
            return answer(await Runner.run(agent, case.prompt, run_config=config), traces)
        result = Runner.run_streamed(agent, case.prompt, run_config=config)
        traces.seen += [repr(event) async for event in result.stream_events()]
    except InputGuardrailTripwireTriggered:
        return Answer(text="")
    return answer(result, traces)


def begin(case):
    traces = Traces()
    agents.set_trace_processors([traces])
    client = AsyncOpenAI(base_url=case.url, api_key="none")
    model = agents.OpenAIChatCompletionsModel("bad", client)
    agent = Agent(
        name="Agent",
        model=GuardedModel(model, case.guard),
        tools=[function_tool(case.tool)] if case.tool else [],
        input_guardrails=[request_guardrail(case.guard)] if case.check_request else [],
    )
    return agent, RunConfig(), traces


def answer(result, traces):
    usage = result.context_wrapper.usage
    tokens = (usage.input_tokens, usage.output_tokens)
    return Answer(text=result.final_output, seen=traces.seen, usage=tokens)
