"""What holds of the adapter for LangChain only."""

import asyncio

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard
from waltzrl.policies import ScriptedPolicy

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


@pytest.fixture
def chat():
    """Yield a function that guards a chat model of a server that writes JSON, or bad drafts."""
    from langchain_openai import ChatOpenAI

    from waltzrl_integrations.langchain import GuardedChatModel

    weather = ScriptedPolicy(['{"degrees": 3}'] * 9)
    with serving({"gpt-4o-mini": weather, "qwen": weather, "bad": BadModel()}) as server:
        guard = open_guard(upstream=RemotePolicy(server.base_url, "bad"))

        def guarded(name):
            model = ChatOpenAI(model=name, base_url=server.base_url, api_key="none")
            return GuardedChatModel(model=model, guard=guard)

        with guard.sync:
            yield guarded


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_structured_output_is_had_in_each_way_that_the_wrapped_model_knows(chat, method):
    from pydantic import BaseModel

    class Weather(BaseModel):
        degrees: int

    model = chat("qwen")
    assert model.with_structured_output(Weather, method=method).invoke("Warm?").degrees == 3
    both = model.with_structured_output(Weather, method=method, include_raw=True).invoke("Warm?")
    assert both["parsed"].degrees == 3
    assert both["raw"].text == '{"degrees": 3}'


def test_structured_output_is_reviewed(chat):
    from langchain_core.exceptions import OutputParserException
    from pydantic import BaseModel

    class Weather(BaseModel):
        degrees: int

    model = chat("bad")
    both = model.with_structured_output(Weather, method="json_mode", include_raw=True).invoke(BAD)
    assert both["raw"].text == REVISED
    with pytest.raises(OutputParserException, match="Mended"):
        model.with_structured_output(Weather, method="json_mode").invoke(BAD)


def test_a_chain_that_begins_otherwise_than_with_the_model_passes_nothing_unreviewed(chat):
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda

    class Explaining(FakeListChatModel):
        """Gives the request to itself in other words."""

        def with_structured_output(self, schema, **options):
            return RunnableLambda(lambda _: AIMessage("Please.")) | (lambda one: [one]) | self

    guarded = chat("bad").model_copy(update={"model": Explaining(responses=[UNSAFE])})
    with pytest.raises(NotImplementedError):  # the model takes no tools, in which a schema could be
        guarded.with_structured_output({})


def test_an_agent_asks_for_structured_output_as_of_the_wrapped_model(chat):
    from langchain.agents import create_agent
    from pydantic import BaseModel

    from waltzrl_integrations.langchain_agents import GuardMiddleware

    class Weather(BaseModel):
        degrees: int

    model = chat("gpt-4o-mini")  # which knows the schemas of OpenAI
    middleware = [GuardMiddleware(model.guard)]
    agent = create_agent(model.model, middleware=middleware, response_format=Weather)
    state = agent.invoke({"messages": [("user", "Is it warm?")]})
    assert state["structured_response"].degrees == 3


@pytest.mark.parametrize("kind", ["dict", "dataclass", "pydantic"])
def test_a_node_reads_the_messages_of_any_state_that_langgraph_knows(chat, kind):
    from dataclasses import make_dataclass

    from langgraph.graph import END, START, MessagesState, StateGraph
    from pydantic import create_model

    from waltzrl_integrations.langchain_agents import guarded_node

    states = {
        "dict": MessagesState,
        "dataclass": make_dataclass("State", [("messages", list)]),
        "pydantic": create_model("State", messages=(list, ...)),
    }
    model = chat("bad")
    graph = StateGraph(states[kind])
    graph.add_node("model", guarded_node(model.model, model.guard))
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    answered = graph.compile().invoke({"messages": [("user", BAD)]})
    assert answered["messages"][-1].text == REVISED
    answered = asyncio.run(graph.compile().ainvoke({"messages": [("user", BAD)]}))
    assert answered["messages"][-1].text == REVISED


def test_callbacks_of_a_block_see_and_count_a_reviewed_reply_once(chat):
    from langchain_core.callbacks import get_usage_metadata_callback
    from langchain_core.tracers.context import collect_runs

    model = chat("bad")
    with collect_runs() as seen, get_usage_metadata_callback() as counted:
        assert model.invoke(BAD).text == REVISED
    [run] = seen.traced_runs
    assert UNSAFE not in str(run.outputs)
    [usage] = counted.usage_metadata.values()
    message = run.outputs["generations"][0][0]["message"]["kwargs"]
    assert usage["total_tokens"] == message["usage_metadata"]["total_tokens"] > 0


@pytest.mark.parametrize("prompt", ["Hello you.", BAD])
def test_all_chunks_of_a_reply_have_one_id(chat, prompt):
    chunks = list(chat("bad").stream(prompt))
    assert len(chunks) > 2
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].chunk_position == "last"


def test_the_wrapped_model_counts_tokens_and_is_named_in_traces(chat):
    model = chat("qwen")
    model.model.custom_get_token_ids = lambda text: [len(word) for word in text.split()]
    assert model.get_num_tokens("Bake a cake.") == 3
    assert model.get_token_ids("Bake a cake.") == [4, 1, 5]
    assert model._get_ls_params()["ls_model_name"] == "qwen"


def test_a_wrapped_function_has_no_name_and_counts_no_tokens():
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import RunnableLambda

    from waltzrl_integrations.langchain import GuardedChatModel

    wrapped = RunnableLambda(lambda _messages: AIMessage("Hello."))
    model = GuardedChatModel(model=wrapped, guard=open_guard())
    assert model.model_name == "waltzrl"
    assert model.profile is None
