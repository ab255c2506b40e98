"""An agent of smolagents that calls tools, its answer included, with a model that we guard."""

from smolagents import ActionStep, OpenAIModel, Tool, ToolCallingAgent

from drivers import Answer
from waltzrl_integrations.smolagents import GuardedSmolModel


class LookUp(Tool):
    name = "look_up"
    description = "Look something up."
    inputs = {"text": {"type": "string", "description": "What."}}  # noqa: RUF012
    output_type = "string"

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, text: str) -> str:
        return self.function(text)


def ask(case):
    seen = []
    agent = ToolCallingAgent(
        tools=[LookUp(case.tool)] if case.tool else [],
        model=GuardedSmolModel(OpenAIModel("bad", api_base=case.url, api_key="none"), case.guard),
        step_callbacks=[lambda step, agent: seen.append(repr(step))],
        stream_outputs=case.mode == "stream",
        max_steps=3,
        verbosity_level=0,
    )
    if case.mode == "stream":
        events = list(agent.run(case.prompt, stream=True))
        seen += [repr(event) for event in events]
        text = events[-1].output
    else:
        text = agent.run(case.prompt)
    counts = [step.token_usage for step in agent.memory.steps if isinstance(step, ActionStep)]
    tokens = (sum(c.input_tokens for c in counts), sum(c.output_tokens for c in counts))
    return Answer(text=text, seen=seen, usage=tokens)
