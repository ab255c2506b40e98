"""What the three drivers of LangChain share."""

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI


class Callbacks(BaseCallbackHandler):
    """Notes whatever LangChain tells about replies."""

    def __init__(self):
        self.seen = []

    def on_llm_new_token(self, token, *, chunk=None, **_):
        self.seen.append(repr((token, chunk)))

    def on_llm_end(self, response, **_):
        self.seen.append(repr(response))

    def on_chain_end(self, outputs, **_):
        self.seen.append(repr(outputs))


def bad_model(case):
    return ChatOpenAI(model="bad", base_url=case.url, api_key="none", stream_usage=True)


def tools_of(case):
    if case.tool is None:
        return []
    return [StructuredTool.from_function(case.tool, name="look_up", description="Look it up.")]


def usage_of(messages):
    counts = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    known = [count for count in counts if count]
    return (sum(c["input_tokens"] for c in known), sum(c["output_tokens"] for c in known))
