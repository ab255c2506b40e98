"""Frames through a pipe."""

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.timing import run_on_fake_time, until
from waltzrl.foundation.pipes import (
    FULL_SECONDS,
    PIPE_BYTES,
    FrameReader,
    FrameWriter,
    large_pipe,
)


def both_ends():
    reads, writes = large_pipe()
    return FrameReader(reads), FrameWriter(writes)


@given(texts=st.lists(st.binary(max_size=30_000), max_size=30), every=st.integers(1, 5))
def test_frames_arrive_as_they_were_sent(texts, every):
    reader, writer = both_ends()
    arrived = []
    for number, text in enumerate(texts):
        writer.send(text)
        if number % every == 0:
            arrived += reader.read()
    arrived += reader.read()
    writer.flush()
    writer.close()
    while not reader.ended:
        arrived += reader.read()
    reader.close()
    assert arrived == texts


def test_what_a_full_pipe_cannot_take_follows_without_blocking_the_event_loop():
    texts = [bytes([number]) * (PIPE_BYTES // 3) for number in range(9)]

    async def work():
        reader, writer = both_ends()
        for text in texts:
            writer.send(text)
        arrived = []
        await until(lambda: arrived.extend(reader.read()) or len(arrived) == len(texts))
        writer.close()
        reader.close()
        return arrived

    assert asyncio.run(work()) == texts


def test_a_reader_that_has_ended_is_told():
    reader, writer = both_ends()
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.send(b"text")
    writer.close()


def test_a_reader_that_has_ended_is_told_also_while_frames_wait():
    reader, writer = both_ends()
    writer.send(bytes(2 * PIPE_BYTES))
    reader.close()
    with pytest.raises(BrokenPipeError):
        writer.send(b"text")
    writer.close()


def test_what_waits_when_a_pipe_is_closed_goes_into_no_other_file(tmp_path):
    path = tmp_path / "other"

    async def work():
        reads, writes = large_pipe()
        writer = FrameWriter(writes)
        writer.send(bytes(2 * PIPE_BYTES))
        writer.close()
        other = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.dup2(other, writes)  # which the next file gets anyway
        await asyncio.sleep(2 * FULL_SECONDS)
        for number in {other, writes}:
            os.close(number)
        os.close(reads)

    run_on_fake_time(work())
    assert path.read_bytes() == b""


def test_a_frame_that_a_killed_process_left_unfinished_is_passed_over():
    reads, writes = large_pipe()
    reader = FrameReader(reads)
    writer = FrameWriter(writes)
    writer.send(b"whole")

    os.write(writes, b"\0\0\0\5tor")
    writer.close()
    assert list(reader.read()) == [b"whole"]
    assert reader.ended
    reader.close()
