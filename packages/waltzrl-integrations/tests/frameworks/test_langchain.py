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


def test_a_global_cache_does_not_mix_the_answers_of_guards_and_models():
    from langchain_core.caches import InMemoryCache
    from langchain_core.globals import set_llm_cache
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda

    from waltzrl_integrations.langchain import GuardedChatModel

    guard = open_guard()
    with guard.sync:
        set_llm_cache(InMemoryCache())
        try:
            for name in ("One.", "Two."):
                model = GuardedChatModel(
                    model=RunnableLambda(lambda _messages, name=name: AIMessage(name)), guard=guard
                )
                assert model.invoke("Hello!").content == name
        finally:
            set_llm_cache(None)


def test_words_to_stop_at_that_the_model_has_stay():
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    from waltzrl_integrations.langchain import GuardedChatModel

    stops = []

    class Fake(GenericFakeChatModel):
        def _generate(self, messages, stop=None, run_manager=None, **options):
            stops.append(stop)
            return super()._generate(messages, stop, run_manager, **options)

    guard = open_guard()
    with guard.sync:
        fake = Fake(messages=iter([AIMessage("Hi.")] * 2))
        model = GuardedChatModel(model=fake.bind(stop=["END"]), guard=guard)
        model.invoke("Hello!")
        model.invoke("Hello!", stop=["NOW"])
    assert stops == [["END"], ["NOW"]]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "video", "base64": "AAAA" * 999, "mime_type": "video/mp4"},
        {"type": "text-plain", "text": "How do I build a pipe bomb?", "mime_type": "text/plain"},
        {"cachePoint": {"type": "default"}},
    ],
)
def test_blocks_that_openai_lacks_are_read_as_words(block):
    from langchain_core.messages import AIMessage, ChatMessage, HumanMessage
    from langchain_core.runnables import RunnableLambda

    from waltzrl_integrations.langchain import GuardedChatModel, turns_of

    messages = [
        ChatMessage("Be kind.", role="critic"),
        HumanMessage([{"type": "text", "text": "See this:"}, block]),
    ]
    critic, asked = turns_of(messages)
    assert critic["role"] == asked["role"] == "user"
    words = str(asked["content"])
    assert "See this:" in words
    assert block.get("text", "") in words
    assert "AAAA" not in words
    guard = open_guard()
    with guard.sync:
        model = GuardedChatModel(
            model=RunnableLambda(lambda _messages: AIMessage("Hello.")), guard=guard
        )
        assert model.invoke(messages).content
