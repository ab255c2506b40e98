"""What holds of the adapter for LangChain only."""

import pytest
from drivers import of_framework

from waltzrl import open_guard

pytestmark = of_framework("langchain")


@pytest.mark.promise(
    "Adapters for frameworks", "A program that traces with LangSmith traces no draft"
)
def test_a_program_that_traces_with_langsmith_traces_no_draft(monkeypatch):
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.runnables import RunnableLambda
    from langsmith.utils import get_env_var

    from waltzrl_integrations.langchain import GuardedChatModel

    told = []

    def draft(messages, config, **_):
        told.extend(config["callbacks"].handlers)
        return AIMessage("Hello.")

    monkeypatch.setenv("LANGSMITH_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    get_env_var.cache_clear()
    guard = open_guard()
    with guard.sync:
        model = GuardedChatModel(model=RunnableLambda(draft), guard=guard)
        assert model._generate([HumanMessage("Hello!")]).generations[0].text == "Hello."
    get_env_var.cache_clear()
    assert told == []
