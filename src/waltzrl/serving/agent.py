"""The policy behind one choice: the upstream, asked with the client's own request."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter

from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.policies import Sampling
from waltzrl.records import Message, Reply
from waltzrl.serving.messages_in_transit import ApiRequest, Finish, Json, UpstreamReply
from waltzrl.serving.upstream import Upstream
from waltzrl.serving.window import Window

GO_ON = """

The user has already read how your last reply begins, up to here:
{released}
Go on from exactly there and do not repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStream:
    """Where the words of a draft go while it is written."""

    window: Window
    tell: Callable[[str], None]
    """Given the words that may leave now."""
    retracts: bool = False
    """What has left can be taken back, so that a revision need not go on from it."""


class Speaker:
    """Drafts with the request as it came, and revises with the same request and what was said.

    With a window, the draft is heard while it is written, and its words leave as the window lets
    them; a revision then goes on from what has left.
    """

    def __init__(
        self,
        exchange: ApiRequest,
        upstream: Upstream,
        bearer: str | None = None,
        overheard: DraftStream | None = None,
    ) -> None:
        """Speak for `exchange`; `overheard` says where the draft's words go while it is written."""
        self.completions: list[UpstreamReply] = []
        """What the upstream said, in order: the draft first."""
        self.first_words_milliseconds: float | None = None
        """From the request for the draft until the first of it left; None while none has."""
        self._exchange = exchange
        self._upstream = upstream
        self._bearer = bearer
        self._overheard = overheard

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Ask the upstream; its sampling is the client's, so `sampling` is not looked at.

        Raises:
            RequestError: the upstream could not reply.
        """
        if self.completions:
            completion = await self._revise(messages)
        elif self._overheard is None:
            completion = await self._upstream.complete(self._request(messages), self._bearer)
        else:
            completion = await self._overhear(self._request(messages), self._overheard)
        self.completions.append(completion)
        return completion.reply

    async def _revise(self, messages: Sequence[Message]) -> UpstreamReply:
        heard = self._overheard
        released = heard.window.released if heard and not heard.retracts else ""
        if released:
            end = fence("reply", released[-LONGEST_TEXT:])
            notes = messages[-1].content + GO_ON.format(released=end)
            messages = [*messages[:-1], Message(role="user", content=notes)]
        said = await self._upstream.complete(self._request(messages), self._bearer)
        whole = replace(said.reply, text=released + said.reply.text)
        return UpstreamReply(reply=whole, finish=said.finish)

    async def _overhear(self, body: Mapping[str, Json], overheard: DraftStream) -> UpstreamReply:
        started = perf_counter()
        reply = Reply(text="")
        finish: Finish = "stop"
        words: list[str] = []
        async with aclosing(self._upstream.stream(body, self._bearer)) as deltas:
            async for delta in deltas:
                if delta.text:
                    words.append(delta.text)
                    if leaving := overheard.window.hear(delta.text):
                        self.first_words_milliseconds = self.first_words_milliseconds or _since(
                            started
                        )
                        overheard.tell(leaving)
                if delta.finish is not None:
                    finish = delta.finish
                    reply = replace(reply, calls=delta.calls)
                if delta.prompt_tokens or delta.reply_tokens:
                    reply = replace(
                        reply, prompt_tokens=delta.prompt_tokens, reply_tokens=delta.reply_tokens
                    )
        reply = replace(
            reply,
            text="".join(words),
            finish="length" if finish == "length" else "stop",
            milliseconds=_since(started),
        )
        return UpstreamReply(reply=reply, finish=finish)

    def _request(self, messages: Sequence[Message]) -> Mapping[str, Json]:
        """Put what the agent adds, a system message or turns after the prompt, around the chat."""
        known = self._exchange.prompt.messages
        opens = messages[0] is not known[0]
        added = messages[len(known) + opens :]
        if not opens and not added:
            return self._exchange.body
        chat = self._exchange.body["messages"]
        assert isinstance(chat, list), "a dialect has read this request"
        first: list[Json] = [_turn(messages[0])] if opens else []
        return {**self._exchange.body, "messages": [*first, *chat, *map(_turn, added)]}


class GivenDraft:
    """A speaker whose draft the caller already has; only revisions are asked of the upstream."""

    def __init__(self, draft: Reply, speaker: Speaker) -> None:
        """Begin with `draft` in the place of what `speaker` would have drafted."""
        speaker.completions.append(UpstreamReply(reply=draft, finish="stop"))
        self._draft: Reply | None = draft
        self._speaker = speaker

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        if self._draft is None:
            return await self._speaker.reply(messages, sampling)
        draft, self._draft = self._draft, None
        return draft


def _since(started: float) -> float:
    return (perf_counter() - started) * 1e3


def _turn(message: Message) -> dict[str, Json]:
    return {"role": message.role, "content": message.content}
