"""What a chat has no place for is read as text that names it, and never ends a session."""

import json

import pytest

from waltzrl.gateway.wire import MESSAGES, RESPONSES
from waltzrl.gateway.wire.blocks import block_text

USER = {"role": "user", "content": "Hello"}
TEXT = {"type": "text", "text": "The limit is 5."}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://docs.example/a",
    "title": "Limits",
    "content": [TEXT],
    "citations": {"enabled": True},
}
SEARCH_TEXT = "[search_result]\nsource: https://docs.example/a\ntitle: Limits\nThe limit is 5."
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def messages(*turns, system=None):
    body = {"model": "m", "max_tokens": 9, "messages": turns, "system": system}
    return MESSAGES.read(json.dumps(body).encode(), "42").body["messages"]


def responses(*items):
    body = {"model": "m", "input": items}
    return RESPONSES.read(json.dumps(body).encode(), "42").body["messages"]


@pytest.mark.promise(
    "Endpoints and upstreams",
    "No block that an agent keeps in its history ends a session; its words are reviewed",
)
@pytest.mark.parametrize(
    ("block", "text"),
    [
        (SEARCH_RESULT, SEARCH_TEXT),
        ({"type": "tool_reference", "tool_name": "Stop"}, "[tool_reference]\ntool_name: Stop"),
        ({"type": "container_upload", "file_id": "f_1"}, "[container_upload]\nfile_id: f_1"),
        (
            {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "q"}},
            "[server_tool_use]\nid: s_1\nname: web_search\nquery: q",
        ),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": "https://a.example",
                        "title": "A",
                        "encrypted_content": "c2VjcmV0",
                        "page_age": None,
                    }
                ],
            },
            "[web_search_tool_result]\ntool_use_id: s_1\n[web_search_result]\n"
            "url: https://a.example\ntitle: A",
        ),
        (
            {
                "type": "bash_code_execution_tool_result",
                "content": {
                    "type": "bash_code_execution_result",
                    "stdout": "5",
                    "stderr": "",
                    "return_code": 0,
                    "content": [],
                },
            },
            "[bash_code_execution_tool_result]\n[bash_code_execution_result]\nstdout: 5\n"
            "return_code: 0",
        ),
        (
            {"type": "mcp_tool_result", "is_error": False, "content": [TEXT, IMAGE]},
            "[mcp_tool_result]\nis_error: false\nThe limit is 5.\n[image]\n[base64]\n"
            "media_type: image/png",
        ),
        (
            {"type": "image_generation_call", "status": "completed", "result": "iVBOR" * 200},
            "[image_generation_call]\nstatus: completed",
        ),
        ({"type": "note", "lines": [["a\0b", 7]], "cache_control": {"ttl": "5m"}}, None),
    ],
)
def test_a_block_is_written_with_its_name_and_all_its_words(block, text):
    assert block_text(block) == (text or "[note]\nlines: ab\nlines: 7")


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_block_in_any_turn_is_text(role):
    block = {"type": "tool_addition", "tool_name": "mcp__x"}
    turn = {"role": role, "content": [block]}
    text = "[tool_addition]\ntool_name: mcp__x"
    assert messages(USER, turn) == [USER, {"role": role, "content": text}]


def test_a_block_in_the_system_prompt_is_text():
    system = [{"type": "text", "text": "Be brief."}, {"type": "note", "note": "a"}]
    assert messages(USER, system=system)[0]["content"] == "Be brief.\n[note]\nnote: a"


def test_calls_on_the_server_stay_in_their_order_with_the_text():
    use = {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "q"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "s_1", "content": []}
    turn = {"role": "assistant", "content": [TEXT, use, result, {**TEXT, "text": "It is 5."}]}
    assert messages(USER, turn)[1]["content"] == (
        "The limit is 5.\n[server_tool_use]\nid: s_1\nname: web_search\nquery: q\n"
        "[web_search_tool_result]\ntool_use_id: s_1\nIt is 5."
    )


def result_of(*content):
    """Return the messages of a tool's result."""
    use = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    called = {"role": "assistant", "content": [use]}
    return messages(USER, called, {"role": "user", "content": [result]})[2:]


def test_a_block_in_the_result_of_a_tool_is_text_of_the_tool():
    reference = {"type": "tool_reference", "tool_name": "Stop"}
    assert result_of(SEARCH_RESULT, reference) == [
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": f"{SEARCH_TEXT}\n[tool_reference]\ntool_name: Stop",
        }
    ]


def test_a_document_of_blocks_in_the_result_of_a_tool_keeps_its_text_and_its_images():
    document = {"type": "document", "source": {"type": "content", "content": [TEXT, IMAGE]}}
    assert result_of(document) == [
        {"role": "tool", "tool_call_id": "1", "content": "[document]\nThe limit is 5."},
        {"role": "user", "content": [IMAGE_PART]},
    ]


URL = {"type": "url", "url": "https://docs.example/a.pdf"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AA"}
PDF_PART = {
    "type": "file",
    "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,AA"},
}


@pytest.mark.parametrize(
    ("document", "content"),
    [
        ({"source": {"type": "content", "content": [TEXT]}}, ["[document]", "The limit is 5."]),
        ({"source": {"type": "content", "content": "Five."}}, ["[document]", "Five."]),
        (
            {"title": "A", "source": {"type": "content", "content": [IMAGE]}},
            ["[document]\ntitle: A", IMAGE_PART],
        ),
        ({"source": URL}, "[document]\n[url]\nurl: https://docs.example/a.pdf"),
        ({"source": {"type": "file", "file_id": "f_1"}}, "[document]\n[file]\nfile_id: f_1"),
        ({"source": {"type": "later", "name": "x"}}, "[document]\n[later]\nname: x"),
        (
            {"title": "A", "context": "From 2024.", "source": {"type": "text", "data": "Five."}},
            ["[document]\ntitle: A\nFrom 2024.", "Five."],
        ),
        ({"context": "From 2024.", "source": PDF}, ["[document]\nFrom 2024.", PDF_PART]),
    ],
)
def test_a_document_of_any_source_is_read(document, content):
    turn = {"role": "user", "content": [{"type": "document", **document}]}
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else part for part in content
        ]
    assert messages(turn) == [{"role": "user", "content": content}]


def test_an_image_by_its_file_is_text_that_names_it():
    image = {"type": "image", "source": {"type": "file", "file_id": "f_1"}}
    turn = {"role": "user", "content": [image]}
    assert messages(turn)[0]["content"] == "[image]\n[file]\nfile_id: f_1"


SEARCH_CALL = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
SEARCH_CALL_TEXT = "[web_search_call]\nid: ws_1\nstatus: completed\n[search]\nquery: q"
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"type": "function_call_output", "call_id": "1", "output": "5"}


def test_an_item_precedes_the_message_that_follows_it():
    assert responses(USER, SEARCH_CALL, SAID, USER) == [
        USER,
        {"role": "assistant", "content": f"{SEARCH_CALL_TEXT}\nHi."},
        USER,
    ]


def test_an_item_follows_the_message_that_precedes_it():
    assert responses(USER, SAID, SEARCH_CALL, USER)[1]["content"] == f"Hi.\n{SEARCH_CALL_TEXT}"


def test_an_item_among_calls_is_text_of_their_turn():
    assert responses(USER, SEARCH_CALL, CALL, RESULT) == [
        USER,
        {"role": "assistant", "content": SEARCH_CALL_TEXT, "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]


def test_an_item_beside_several_texts_is_told_before_them():
    refusal = {"type": "refusal", "refusal": "No."}
    said = {**SAID, "content": [*SAID["content"], refusal]}
    assert responses(USER, SEARCH_CALL, said)[1]["content"] == f"{SEARCH_CALL_TEXT}\nHi.\nNo."


def test_an_item_beside_a_part_that_is_no_text_is_a_part():
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    said = {**SAID, "content": [*SAID["content"], sound]}
    assert responses(USER, SEARCH_CALL, said)[1]["content"] == [
        {"type": "text", "text": SEARCH_CALL_TEXT},
        {"type": "text", "text": "Hi."},
        sound,
    ]


def test_what_the_client_ran_is_the_clients_text():
    output = {"type": "local_shell_call_output", "id": "1", "output": "5"}
    assert responses(USER, output)[1] == {
        "role": "user",
        "content": "[local_shell_call_output]\nid: 1\n5",
    }


def test_the_last_item_is_not_lost():
    assert responses(USER, SEARCH_CALL)[1] == {"role": "assistant", "content": SEARCH_CALL_TEXT}


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "input_file", "file_url": "https://a.b/c"}, "file_url: https://a.b/c"),
        ({"type": "input_image", "file_id": "f_1"}, "file_id: f_1"),
        ({"type": "note", "note": "a"}, "note: a"),
    ],
)
def test_a_part_that_a_chat_cannot_carry_is_text_that_names_it(part, text):
    turn = {"role": "user", "content": [part]}
    assert responses(turn)[0]["content"] == f"[{part['type']}]\n{text}"
