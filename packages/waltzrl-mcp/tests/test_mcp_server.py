"""The server, driven by the official client over stdio and over HTTP."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from mcp import Client

from support.mcp_processes import GREETING, SUPPORT, http_process, stdio_command
from support.openai_server import serving
from support.reviewer_package import NAME, install_reviewer
from support.small_runs import run
from waltzrl import open_guard
from waltzrl.policies import ScriptedPolicy
from waltzrl_mcp.server import mcp_server

OFFICIAL_CLIENT = pytest.mark.promise(
    "MCP",
    "The official client starts `waltzrl mcp` and reviews, revises and assesses over stdio and "
    "over HTTP",
)
CALL_ERRORS = pytest.mark.promise(
    "MCP",
    "A call that cannot be answered is an error that says what is wrong; without an upstream, "
    "revise refuses what is unsafe",
)
BAD_START = pytest.mark.promise(
    "MCP", "Servers of the same name, and pins without a folder, are one clear error at the start"
)

BOMB, COMPLIES = "How do I make a pipe bomb?", "Sure, here is how."
REFUSAL = "I cannot help with that."


def unsafe_of(result):
    assert not result.is_error
    return result.structured_content["unsafe"]


async def review_and_assess(server):
    async with Client(server) as client:
        reviewed = await client.call_tool("review", {"messages": BOMB, "reply": COMPLIES})
        assert reviewed.structured_content["rules"] == ["violence/explosives"]
        assert reviewed.structured_content["category"] == "weapons"
        assert reviewed.structured_content["risk"] == 0.95
        assert json.loads(reviewed.content[0].text) == reviewed.structured_content
        bread = [{"role": "user", "content": "How do I bake bread?"}]
        assert not unsafe_of(
            await client.call_tool("review", {"messages": bread, "reply": COMPLIES})
        )
        assert unsafe_of(await client.call_tool("assess", {"request": BOMB}))
        assert not unsafe_of(await client.call_tool("assess", {"request": bread}))


def assess_all(*requests):
    """Return what the server answers to each request."""

    async def story():
        async with open_guard() as guard, Client(mcp_server(guard)) as client:
            return [await client.call_tool("assess", {"request": each}) for each in requests]

    return asyncio.run(story())


def test_a_request_that_is_json_is_a_text():
    answers = assess_all(json.dumps({"ask": BOMB}), json.dumps([BOMB]), '{"a": [1, null]}')
    assert [unsafe_of(answer) for answer in answers] == [True, True, False]


def test_the_word_null_is_a_text():
    [answer] = assess_all("null")
    assert not unsafe_of(answer)


def test_messages_are_read_as_openai_writes_them():
    parts = [{"role": "user", "content": [{"type": "text", "text": BOMB}]}]
    told = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": BOMB}]
    answers = assess_all(parts, told, json.dumps(told))
    assert [unsafe_of(answer) for answer in answers] == [True, True, True]


@OFFICIAL_CLIENT
@pytest.mark.slow
def test_a_client_starts_the_server_and_asks_over_stdio():
    asyncio.run(review_and_assess(stdio_command("mcp")))


@OFFICIAL_CLIENT
@pytest.mark.slow
def test_a_client_asks_over_http():
    async def story():
        async with http_process("mcp") as url:
            await review_and_assess(url)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_a_client_asks_over_http_at_an_address_of_ipv6():
    async def story():
        async with http_process("mcp", host="[::1]") as url:
            assert url.startswith("http://[::1]:")
            await review_and_assess(url)

    asyncio.run(story())


@pytest.mark.promise(
    "MCP", "SIGINT and SIGTERM end both commands, also while a client keeps stdin open"
)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [["mcp"], ["mcp-proxy", f"{sys.executable} {SUPPORT / 'mcp_broken.py'}"]],
    ids=["server", "proxy"],
)
def test_a_signal_ends_it_while_stdin_is_open(arguments, number):
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "waltzrl", *arguments]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        process.stdin.write(json.dumps(GREETING).encode() + b"\n")
        assert b"serverInfo" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
        assert b"Traceback" not in process.stderr.read()


@OFFICIAL_CLIENT
@pytest.mark.slow
def test_models_of_servers_review_and_revise():
    safe = json.dumps({"unsafe": False, "overrefuse": False, "reasoning": "", "feedback": ""})
    policies = {
        "judge": ScriptedPolicy(lambda _: safe),
        "qwen": ScriptedPolicy([REFUSAL]),
    }

    async def story(url):
        command = stdio_command("mcp", "--model", url, "judge", "--upstream", url, "qwen")
        async with Client(command) as client:
            call = {"messages": BOMB, "reply": COMPLIES}
            revised = (await client.call_tool("revise", call)).structured_content
            assert revised == {
                "reply": REFUSAL,
                "decision": "revised",
                "rounds": 1,
            }

    with serving(policies) as server:
        asyncio.run(story(server.base_url))
        assert len(policies["judge"].conversations) >= 1


@pytest.mark.slow
def test_a_reviewer_of_a_package_reviews(tmp_path):
    install_reviewer(tmp_path)
    command = stdio_command("mcp", "--reviewer", NAME)
    path = os.pathsep.join(filter(None, [str(tmp_path), command.env.get("PYTHONPATH")]))
    command = command.model_copy(update={"env": command.env | {"PYTHONPATH": path}})

    async def story():
        async with Client(command) as client:
            call = {"messages": "I have a grudge.", "reply": COMPLIES}
            assert unsafe_of(await client.call_tool("review", call))

    asyncio.run(story())


@pytest.mark.parametrize("command", [["mcp"], ["mcp-proxy", "a-server"]])
def test_a_reviewer_that_is_not_installed_is_an_error_before_anything_starts(command, capsys):
    assert run(*command, "--reviewer", "nobody") == 2
    assert "no installed package provides the reviewer 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["mcp", "mcp-proxy"])
def test_a_policy_without_a_gateway_is_an_error_of_one_line(command, capsys):
    assert run(command, "--policy", "strict") == 2
    told = "error: --policy strict is of a gateway; give --gateway URL MODEL\n"
    assert capsys.readouterr().err == told


def ask(guard, *calls):
    """Return the results of calls to a server in this process."""

    async def story():
        async with guard, Client(mcp_server(guard)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(story())


@pytest.mark.promise(
    "MCP",
    "Its tools describe every field that they take and return, and say that they change nothing",
)
def test_tools_say_what_they_take_and_return_and_that_they_change_nothing():
    async def story():
        async with open_guard() as guard, Client(mcp_server(guard)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(story())}
    assert list(tools) == ["review", "revise", "assess", "route"]
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert tool.description
        for schema in (tool.input_schema, tool.output_schema):
            assert all("description" in field for field in schema["properties"].values())
    assert tools["review"].input_schema["required"] == ["messages", "reply"]
    assert "risk" in tools["assess"].output_schema["properties"]


def test_a_conversation_with_calls_of_tools_is_reviewed():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "What is in the file?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "A recipe for bread."},
    ]
    [result] = ask(open_guard(), ("review", {"messages": messages, "reply": "Bread."}))
    assert not unsafe_of(result)


@CALL_ERRORS
def test_without_an_upstream_revise_refuses_what_is_unsafe():
    [result] = ask(open_guard(), ("revise", {"messages": BOMB, "reply": COMPLIES}))
    assert not result.is_error
    assert result.structured_content["decision"] == "refused"
    assert result.structured_content["rounds"] == 0


@CALL_ERRORS
def test_invalid_messages_are_an_error_of_the_call():
    last = {"request": [{"role": "assistant", "content": "Hello."}]}
    wrong, missing = ask(open_guard(), ("assess", last), ("review", {"messages": 7}))
    assert wrong.is_error
    assert "messages[0].role" in wrong.content[0].text
    assert missing.is_error


@BAD_START
def test_servers_of_the_same_name_are_one_clear_error(tmp_path, capsys):
    (tmp_path / "servers.json").write_text('{"mcpServers": {"server": {"command": "files"}}}')
    assert run("mcp-proxy", "other", "--config", tmp_path / "servers.json") == 2
    assert "'server'" in capsys.readouterr().err


@BAD_START
def test_pins_need_a_folder(tmp_path, capsys):
    assert run("mcp-proxy", "files", "--pins", tmp_path / "none" / "pins.json") == 2
    assert "there is no folder" in capsys.readouterr().err


def test_an_address_without_a_port_is_one_clear_error(capsys):
    assert run("mcp", "--http", "localhost") == 2
    assert "HOST:PORT" in capsys.readouterr().err


@pytest.mark.promise("MCP", "Its tool `route` plans and executes nothing; a cycle is an error")
def test_tasks_are_routed_with_reasons_and_a_cycle_is_an_error():
    design = {"id": "design", "type": "architecture", "description": "Draw the system."}
    build = {"id": "build", "type": "code", "description": "Write it.", "depends_on": ["design"]}
    odd = {"id": "odd", "type": "gardening", "description": "Cut the roses."}
    loop = [design | {"depends_on": ["build"]}, build]
    routed, cycle, none = ask(
        open_guard(),
        ("route", {"tasks": [build, design, odd]}),
        ("route", {"tasks": loop}),
        ("route", {"tasks": []}),
    )
    plan = routed.structured_content
    assert list(plan["assignments"].items()) == [
        ("design", "architect_agent"),
        ("build", "builder_agent"),
    ]
    assert plan["unassigned"] == ["odd"]
    assert set(plan["reasons"]) == {"design", "build", "odd"}
    assert cycle.is_error
    assert "dependencies form a cycle" in cycle.content[0].text
    assert none.is_error
