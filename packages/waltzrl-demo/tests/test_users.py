"""The flywheel demo's users: a release can count them and an erasure find them by their names."""

import asyncio

import pytest

from support.openai_server import serving
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Prompt
from waltzrl_demo.users import RETURNS, Users, user_name

QUESTIONS = [
    Prompt(id=text, messages=(Message(role="user", content=text),)) for text in ("one", "two")
]


async def ask(address, number, report):
    users = Users(address, "key", QUESTIONS)
    try:
        await users.ask(1)
        await users.ask(number, report)
    finally:
        await users.aclose()
    return users


@pytest.mark.promise(
    "Command line",
    "`waltzrl demo flywheel` explains its terms, shows progress in every phase, erases a user, "
    "and ends with a summary that says how to open the desk again",
)
def test_users_ask_in_turn_under_names_of_their_own_and_tell_how_far_they_are():
    reports = []
    with serving({"waltzrl_conversation_stage2": ScriptedPolicy(["Yes."] * 4)}) as server:
        address = server.base_url.removesuffix("/v1")
        users = asyncio.run(ask(address, 2, lambda *how_far: reports.append(how_far)))
    asked = sorted((body["user"], body["messages"][0]["content"]) for _, body in server.requests)
    assert asked == [("user-1", "one"), ("user-2", "two"), ("user-3", "one")]
    assert (users.asked, users.failed) == (3, 0)
    assert reports == [(1, 2), (2, 2)]
    assert user_name(RETURNS) == user_name(0) == "user-1"
