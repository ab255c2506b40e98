"""The APIs that the gateway speaks, each an adapter between bytes and an `Exchange`."""

from waltzrl.serving.wire import chat, messages, responses
from waltzrl.serving.wire.format import StreamWriter, WireFormat

CHAT: WireFormat = chat
RESPONSES: WireFormat = responses
MESSAGES: WireFormat = messages

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "StreamWriter", "WireFormat"]
