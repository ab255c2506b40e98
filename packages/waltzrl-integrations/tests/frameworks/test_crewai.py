"""What holds of the adapter for CrewAI only."""

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard

pytestmark = of_framework("crewai")


@pytest.mark.promise(
    "Adapters for frameworks",
    "The guardrail of a CrewAI task revises what it returns, without running it again",
)
def test_the_guardrail_of_a_task_revises_its_output_without_a_second_run():
    from crewai import LLM, Agent, Crew, Task

    from waltzrl_integrations.crewai import task_guardrail

    with serving({"bad": BadModel()}) as server:
        guard = open_guard(upstream=RemotePolicy(server.base_url, "bad"))
        with guard.sync:
            llm = LLM(model="bad", provider="openai", base_url=server.base_url, api_key="none")
            agent = Agent(role="assistant", goal="answer", backstory="It answers.", llm=llm)
            check = task_guardrail(guard)
            task = Task(description=BAD, expected_output="Text.", agent=agent, guardrail=check)
            assert Crew(agents=[agent], tasks=[task]).kickoff().raw == REVISED
    assert len(server.requests) == 2  # the draft and its revision


@pytest.mark.parametrize("sees", [True, False])
def test_a_guarded_llm_sees_files_if_the_wrapped_one_does(sees):
    from crewai import BaseLLM

    from waltzrl_integrations.crewai import GuardedCrewLLM

    class Fixed(BaseLLM):
        def call(self, messages, **_):
            return "Hello."

        def supports_multimodal(self):
            return sees

    assert GuardedCrewLLM(Fixed(model="m"), open_guard()).supports_multimodal() is sees
