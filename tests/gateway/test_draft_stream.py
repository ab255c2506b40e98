"""What of a draft is sent while it is generated, and what afterwards."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.gateway.draft_stream import DraftStream, Piece
from waltzrl.gateway.exchange import UpstreamDelta
from waltzrl.gateway.stream_modes import StreamMode
from waltzrl.records import Reply, Usage

OPEN = StreamMode.AUDIT.behaviour.open_window(None, None)
CLOSED = StreamMode.BUFFER.behaviour.open_window(None, None)


class FirstCharacters:
    """A window that releases so many characters and no more."""

    def __init__(self, count):
        self._left = count
        self.released = ""

    def __call__(self, text):
        released, self._left = text[: self._left], max(0, self._left - len(text))
        self.released += released
        return released


def read(window, *deltas, **options):
    """Return the stream that has read these (reasoning, text), its reply, and what it released."""
    released = []
    draft = DraftStream(window, released.append, **options)

    async def stream():
        for reasoning, text in deltas:
            yield UpstreamDelta(reasoning=reasoning, text=text)
        yield UpstreamDelta(finish="stop")

    reply = asyncio.run(draft.read(stream())).reply
    return draft, reply, released


THOUGHT = [("Let me ", ""), ("think.", ""), ("", "Hel"), ("", "lo.")]


def test_reasoning_and_text_are_released_apart():
    draft, reply, released = read(OPEN, *THOUGHT)
    assert released == [
        Piece("Let me ", ""),
        Piece("think.", ""),
        Piece("", "Hel"),
        Piece("", "lo."),
    ]
    assert (reply.reasoning, reply.text) == ("Let me think.", "Hello.")
    assert draft.rest(reply) == Piece("", "")
    assert draft.first_words_milliseconds is not None


def test_a_buffered_draft_is_sent_after_its_review():
    draft, reply, released = read(CLOSED, *THOUGHT)
    assert released == []
    assert draft.rest(reply) == Piece("Let me think.", "Hello.")
    assert draft.first_words_milliseconds is None


def test_reasoning_that_follows_text_is_dropped():
    draft, reply, released = read(OPEN, ("a", "b"), ("late", ""), ("late", "c"))
    assert (reply.reasoning, reply.text) == ("a", "bc")
    assert released == [Piece("a", "b"), Piece("", "c")]
    assert draft.rest(reply) == Piece("", "")


def test_reasoning_without_a_place_is_neither_released_nor_part_of_the_reply():
    _, reply, released = read(OPEN, *THOUGHT, shows_reasoning=False)
    assert released == [Piece("", "Hel"), Piece("", "lo.")]
    assert reply.reasoning == ""


def test_a_draft_with_reasoning_is_held_where_text_can_be_retracted():
    draft, reply, released = read(OPEN, *THOUGHT, can_retract=True)
    assert released == []
    assert draft.rest(reply) == Piece("Let me think.", "Hello.")
    assert draft.continued(Reply(text="No.", reasoning="Hm.")) == Reply(text="No.", reasoning="Hm.")


def test_a_revision_continues_what_was_sent():
    revision = Reply(text=" there.", reasoning="Be kind.")
    begun, _, _ = read(FirstCharacters(4), *THOUGHT)
    continued = begun.continued(revision)
    assert (continued.reasoning, continued.text) == ("Let \n\nBe kind.", " there.")
    assert begun.rest(continued) == Piece("\n\nBe kind.", " there.")
    spoken, _, _ = read(FirstCharacters(len("Let me think.\nHel")), *THOUGHT)
    continued = spoken.continued(revision)
    assert (continued.reasoning, continued.text) == ("Let me think.", "Hel there.")
    assert spoken.rest(continued) == Piece("", " there.")


def test_a_refusal_in_the_place_of_a_draft_has_no_reasoning():
    begun, _, _ = read(FirstCharacters(4), *THOUGHT)
    assert begun.rest(Reply(text="Sorry.")) == Piece("", "Sorry.")
    spoken, _, _ = read(FirstCharacters(len("Let me think.\nHel")), *THOUGHT)
    assert spoken.rest(Reply(text="Sorry.")) == Piece("", "\n\nSorry.")


letters = st.text("ab\n", max_size=4)


@given(st.lists(letters), st.lists(letters), st.integers(0, 40))
def test_what_left_and_the_rest_are_the_draft(reasoning, text, count):
    deltas = [*((r, "") for r in reasoning), *(("", t) for t in text)]
    draft, reply, released = read(FirstCharacters(count), *deltas)
    assert (reply.reasoning, reply.text) == ("".join(reasoning), "".join(text))
    assert reply.reviewed_text.startswith(draft._window.released)
    left = [*released, draft.rest(reply)]
    assert "".join(piece.reasoning for piece in left) == reply.reasoning
    assert "".join(piece.text for piece in left) == reply.text
    assert draft.released == Piece(
        "".join(piece.reasoning for piece in released), "".join(piece.text for piece in released)
    )


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [((20, 0), None, (20, 10)), ((20, 30), None, (20, 30)), ((20, 0), (20, 9), (20, 9))],
)
def test_counts_of_the_beginning_alone_are_not_those_of_the_draft(before, after, tokens):
    def counted(counts):
        read, generated = counts
        return UpstreamDelta(usage=Usage(input_tokens=read, output_tokens=generated))

    async def stream():
        yield counted(before)
        yield UpstreamDelta(text="x" * 40)
        yield UpstreamDelta(finish="stop")
        if after:
            yield counted(after)

    usage = asyncio.run(DraftStream(FirstCharacters(4), print).read(stream())).reply.usage
    assert (usage.input_tokens, usage.output_tokens) == tokens
    assert usage.estimated is (after is None)
