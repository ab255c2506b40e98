"""The gateway's APIs: each reads bytes as a `ChatRequest` and writes `Answer`s as bytes."""

from waltzrl.gateway.wire import chat, completions, messages, responses
from waltzrl.gateway.wire.format import StreamWriter, WireFormat

CHAT: WireFormat = chat
COMPLETIONS: WireFormat = completions
RESPONSES: WireFormat = responses
MESSAGES: WireFormat = messages

__all__ = ["CHAT", "COMPLETIONS", "MESSAGES", "RESPONSES", "StreamWriter", "WireFormat"]
