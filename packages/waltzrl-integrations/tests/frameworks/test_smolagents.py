"""An agent of smolagents that writes code."""

from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard

pytestmark = of_framework("smolagents")


def test_a_revision_is_the_final_answer_of_an_agent_that_writes_code():
    from smolagents import CodeAgent, OpenAIModel

    from waltzrl_integrations.smolagents import GuardedSmolModel

    with serving({"bad": BadModel()}) as server:
        guard = open_guard(upstream=RemotePolicy(server.base_url, "bad"))
        with guard.sync:
            model = GuardedSmolModel(
                OpenAIModel("bad", api_base=server.base_url, api_key="no"), guard
            )
            agent = CodeAgent(tools=[], model=model, max_steps=2, verbosity_level=0)
            assert agent.run(BAD) == REVISED
    assert [step for step in agent.memory.steps if UNSAFE in repr(step)] == []
