"""A served program: what ends it fails one reply at most."""

import asyncio

import pytest

from waltzrl.errors import PolicyError, ProgramError, RequestError
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.policies import Sampling
from waltzrl.policies.sandbox import SandboxLimits
from waltzrl.records import Message
from waltzrl_evolution.served import open_served_program

pytestmark = pytest.mark.slow

PROGRAM = """
import os, time

replies = 0

def reply(messages):
    global replies
    replies += 1
    asked = messages[-1]["content"]
    if asked == "raise":
        raise ValueError("of this question")
    if asked == "exit":
        os._exit(3)
    if asked == "read":
        open("/etc/passwd")
    if asked == "work":
        while time.process_time() < 0.6 * replies:
            pass
    if asked == "work for ever":
        while True:
            pass
    if asked == "print":
        print("0" * 600, flush=True)
    return f"{asked} {replies}"
"""
LIMITS = SandboxLimits(seconds=250.0, cpu_seconds=1, printed_bytes=1000)
"""No wall time that a busy machine could take for a benign program."""


def answers(*questions):
    """Return what a served program replies to each question, or the reason why it does not."""

    async def ask():
        async with open_served_program(PROGRAM, LIMITS) as program:
            texts = []
            for question in questions:
                try:
                    reply = await program.reply(messages(question), Sampling())
                    texts.append(reply.text)
                except PolicyError as error:
                    texts.append(error.reason)
            return texts

    return asyncio.run(ask())


def messages(question):
    return [Message(role="user", content=question)]


def test_an_error_is_that_of_its_question():
    assert answers("a", "raise", "b") == ["a 1", "error", "b 3"]


@pytest.mark.parametrize(("question", "reason"), [("exit", "crash"), ("read", "files")])
def test_a_program_that_ended_is_started_again(question, reason):
    assert answers("a", question, "b", "c") == ["a 1", reason, "b 1", "c 2"]


def test_no_reply_pays_for_the_processor_time_of_earlier_ones():
    # Two replies of 0.6 s are more than the limit of a process, so a new one gives each second.
    assert answers(*["work"] * 4) == ["work 1"] * 4


def test_no_reply_pays_for_what_earlier_ones_printed():
    # Every second one reaches the limit of a process, while it replies or after that.
    assert [text.split()[0] for text in answers(*["print"] * 4)] == ["print"] * 4


def test_a_reply_that_needs_more_than_a_limit_fails_once_and_alone():
    assert answers("work for ever", "a", "work for ever", "b") == [
        *("CPU time", "a 1"),
        *("CPU time", "b 1"),
    ]


def test_after_a_cancelled_question_the_next_gets_its_own_answer():
    async def ask():
        async with open_served_program(PROGRAM, LIMITS) as program:
            first = asyncio.create_task(program.reply(messages("first"), Sampling()))
            await asyncio.sleep(0)  # the question is written; its answer needs a process
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return (await program.reply(messages("second"), Sampling())).text

    assert asyncio.run(ask()) == "second 1"


def test_a_program_that_fails_at_its_start_is_not_served():
    async def serve():
        async with open_served_program("1 / 0", LIMITS):
            """Is not reached."""

    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        asyncio.run(serve())


def test_a_client_is_told_that_the_program_failed_and_not_what_it_raised():
    async def complete(upstream, question):
        body = {"model": "agent", "messages": [{"role": "user", "content": question}]}
        return (await upstream.complete(body, None)).reply.text

    async def ask():
        async with open_served_program(PROGRAM, LIMITS) as program:
            upstream = PolicyUpstream("agent", program, 48)
            with pytest.raises(RequestError) as raised:
                await complete(upstream, "raise")
            return raised.value, await complete(upstream, "next")

    error, reply = asyncio.run(ask())
    assert (error.status, error.kind, str(error)) == (
        *(502, "upstream"),
        "the model 'agent' failed: error",
    )
    assert reply == "next 2"
