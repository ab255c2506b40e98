"""The APIs that the gateway speaks, each an adapter between bytes and an `Exchange`."""

from waltzrl.serving.wire import chat, messages, responses
from waltzrl.serving.wire.dialect import Dialect, StreamWriter

CHAT: Dialect = chat
RESPONSES: Dialect = responses
MESSAGES: Dialect = messages

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "Dialect", "StreamWriter"]
