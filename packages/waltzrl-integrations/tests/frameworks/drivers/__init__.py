"""How each framework is driven, and what its adapter promises.

A module here has `ask(case)` for the modes `sync` and `stream`, and `aask(case)` for `async` and
`astream`; it alone imports its framework, and a worker of pytest runs the tests of one framework.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

import pytest

from waltzrl import Guard

COLUMNS = ("request checked", "reply revised", "stream", "tool calls", "tool results", "usage")
EVERYTHING = frozenset(COLUMNS)
OF_A_MODEL = EVERYTHING - {"request checked"}
"""What an adapter promises that stands at the model, which has nowhere to end a run."""
MODES = ("sync", "async", "stream", "astream")


def of_framework(name):
    """Return the mark of the tests of a framework, which comes first in `name`.

    Importing a framework takes seconds, so one worker has all its tests, and imports it in them.
    """
    framework = name.split("_")[0].replace("langgraph", "langchain")  # one imports the other
    return pytest.mark.xdist_group(framework)


@dataclass(frozen=True, kw_only=True)
class Driver:
    module: str
    """Name of the module in this folder; its first word is that of the framework it imports."""
    name: str
    """In the table: the framework, and the part of it that is guarded."""
    package: str
    """Whose version was tested."""
    columns: frozenset[str] = OF_A_MODEL
    """What the adapter promises."""
    modes: tuple[str, ...] = MODES
    """How the framework can be called."""

    def answer(self, case):
        """Return the answer, or a coroutine for it in an asynchronous mode."""
        module = import_module(f"drivers.{self.module}")
        return (module.aask if case.mode in ("async", "astream") else module.ask)(case)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question to a framework."""

    mode: str
    url: str
    """Of an OpenAI-compatible server; its model is `bad`, and any key will do."""
    guard: Guard
    prompt: str
    tool: Callable[[str], str] | None = None
    """To be offered to the model as a tool with one argument, `text`; None for no tool."""
    check_request: bool = False
    """Whether the request is to be checked before the model is asked."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a framework answered."""

    text: str
    """The final reply; empty if the framework ended the run instead."""
    seen: list[str] = field(default_factory=list)
    """Whatever callbacks, events and chunks showed, spelt with `repr`."""
    usage: tuple[int, int] | None = None
    """Tokens read and written, as the framework counts them."""


DRIVERS = (
    Driver(
        module="langchain_agent",
        name="LangChain, `create_agent`",
        package="langchain",
        columns=EVERYTHING,
    ),
    Driver(module="langchain_model", name="LangChain, `Runnable`", package="langchain-core"),
    Driver(module="langchain_graph", name="LangGraph, node", package="langgraph"),
    Driver(
        module="openai_agents",
        name="OpenAI Agents SDK",
        package="openai-agents",
        columns=EVERYTHING,
        modes=("sync", "async", "astream"),
    ),
    Driver(module="pydantic_ai", name="Pydantic AI", package="pydantic-ai-slim"),
    Driver(
        module="smolagents_tools",
        name="smolagents, `ToolCallingAgent`",
        package="smolagents",
        modes=("sync", "stream"),
    ),
    Driver(module="llama_index", name="LlamaIndex, LLM", package="llama-index-core"),
    Driver(module="crewai", name="CrewAI, LLM", package="crewai"),
    Driver(module="haystack", name="Haystack, chat generator", package="haystack-ai"),
    Driver(
        module="autogen",
        name="AutoGen, model client",
        package="autogen-core",
        modes=("async", "astream"),
    ),
    Driver(
        module="agent_framework",
        name="Microsoft Agent Framework, middleware",
        package="agent-framework-core",
        modes=("async", "astream"),
    ),
    Driver(module="litellm", name="LiteLLM, `completion` and `acompletion`", package="litellm"),
    Driver(module="dspy", name="DSPy, LM", package="dspy"),
)
