import json
import os
from pathlib import Path

import pytest

from waltzrl.errors import InputError
from waltzrl.foundation.files import write_bytes
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl.records import Message, Prompt


def written(tmp_path, text):
    path = tmp_path / "set.jsonl"
    path.write_bytes(text.encode())
    return path


def complaint(path):
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    return str(caught.value)


def test_prompts_survive_writing_and_reading(tmp_path):
    prompts = [
        Prompt(
            id="a/1",
            messages=(
                Message(role="system", content="Be brief."),
                Message(role="user", content="Hëllo\u2028there"),
            ),
            label="benign",
            category="greeting",
            source="hand",
            cluster="hello",
            answer="Hi",
        ),
        Prompt(id="a/2", messages=(Message(role="user", content='A "quoted"\nline'),)),
    ]
    path = tmp_path / "prompts.jsonl"
    write_lines(path, prompts)
    assert read_prompts(path) == prompts


def test_the_short_form_needs_only_a_prompt(tmp_path):
    path = written(tmp_path, '\ufeff{"prompt": "Hi"}\r\n\r\n{"prompt": "Ho", "label": "unsafe"}')
    assert read_prompts(path) == [
        Prompt(id="set/1", messages=(Message(role="user", content="Hi"),), source="set"),
        Prompt(
            id="set/3", messages=(Message(role="user", content="Ho"),), source="set", label="unsafe"
        ),
    ]


@pytest.mark.parametrize(
    ("label", "read"),
    [("unsafe", "unsafe"), ("benign", "benign"), ("unknown", None), ("template", None)],
)
def test_labels_that_decide_nothing_become_none(tmp_path, label, read):
    path = written(tmp_path, json.dumps({"prompt": "Hi", "label": label, "response": "ignored"}))
    assert read_prompts(path)[0].label == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": "Hi"}\n{"prompt": Hi}', ":2:12: not JSON"),
        ("[1]", ":1: need a JSON object in braces, got a list"),
        ("[" * 100_000, ":1: nested too deeply"),
        ('{"prompt": 3}', ":1: Expected `str | null`, got `int` - at `$.prompt`"),
        (
            '{"prompt": "Hi", "label": "evil"}',
            ":1: Invalid enum value 'evil' - at `$.label`; need ",
        ),
        (
            '{"prompt": "Hi", "label": "evil"}',
            '"label" (unsafe, benign, mixed, unknown or template)',
        ),
        ('{"text": "Hi"}', ":1: need either 'prompt' or 'messages', got ['text']"),
        ('{"prompt": " "}', ":1: the prompt is blank"),
        ('{"messages": [{"role": "assistant", "content": "Hi"}]}', "must end with a user message"),
        ('{"messages": []}', ":1: the prompt is blank"),
        ('{"prompt": "a", "messages": []}', ":1: need either 'prompt' or 'messages', got"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', ":2: the id 'x' was used above"),
        ("", "holds no prompts"),
        ("\n \n", "holds no prompts"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, said):
    path = written(tmp_path, text)
    message = complaint(path)
    assert said in message
    assert str(path) in message
    assert "\n" not in message


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "nowhere.jsonl"
    assert complaint(path) == f"cannot read {path}: No such file or directory"


def test_text_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "Hi"}\n{"prompt": "caf\xe9"}\n')
    assert complaint(path) == f"{path}:2: not UTF-8 text; save the file as UTF-8, uncompressed"


@pytest.mark.parametrize(
    ("crash", "wanted"),
    [
        (OSError(28, "No space left on device"), r"cannot write .*: No space left on device"),
        (InputError("rows.jsonl:7: not JSON"), "rows.jsonl:7: not JSON"),
    ],
)
def test_a_crash_while_writing_leaves_the_old_file(tmp_path, crash, wanted):
    def breaks():
        yield {"prompt": "new"}
        raise crash

    path = written(tmp_path, '{"prompt": "old"}')
    with pytest.raises(InputError, match=wanted):
        write_lines(path, breaks())
    assert path.read_text() == '{"prompt": "old"}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "missing" / "out.jsonl"
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        write_lines(path, [{"prompt": "Hi"}])


def test_a_link_stays_a_link_to_the_file_that_is_written(tmp_path):
    file, link = tmp_path / "kept" / "file.jsonl", tmp_path / "link.jsonl"
    file.parent.mkdir()
    link.symlink_to(file)
    for number in (1, 2):
        write_lines(link, [number])
        assert (link.is_symlink(), file.read_text()) == (True, f"{number}\n")
    assert [path.name for path in file.parent.iterdir()] == ["file.jsonl"]


@pytest.mark.parametrize("write", [write_lines, lambda path, lines: write_bytes(path, b"1\n")])
def test_a_pipe_is_written_to_and_never_replaced(tmp_path, write):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(pipe, [1])
    assert os.read(reader, 10) == b"1\n"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_name_that_the_disk_refuses_is_told_in_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*: File name too long"):
        write_lines(tmp_path / ("x" * 300), [1])


def test_half_a_character_is_refused(tmp_path):
    wanted = "the prompt or its id holds half a character, a lone surrogate; fix it"
    for half in ('{"prompt": "\\ud800"}', '{"prompt": "a", "id": "\\ud800"}'):
        path = written(tmp_path, f'{{"prompt": "a"}}\n{half}\n')
        assert complaint(path) == f"{path}:2: {wanted}"


def test_what_is_null_is_absent(tmp_path):
    empty = dict.fromkeys(("category", "safety_category", "cluster", "label", "source", "answer"))
    (read,) = read_prompts(written(tmp_path, json.dumps({"prompt": "a"} | empty)))
    assert (read.category, read.cluster, read.label) == ("", "", None)


def test_ids_clusters_and_answers_may_be_numbers(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"id": 0, "prompt": "6 x 7?", "cluster": 12, "answer": 42}\n')
    (read,) = read_prompts(path)
    assert (read.id, read.cluster, read.answer) == ("0", "12", "42")
    path.write_text('{"id": 7.0, "prompt": "7 / 2?", "answer": 3.5}\n')
    (read,) = read_prompts(path)
    assert (read.id, read.answer) == ("7.0", "3.5")
    path.write_text('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}\n')
    with pytest.raises(InputError, match=":2: the id '1' was used above"):
        read_prompts(path)


def test_the_generators_records_are_labelled_prompts(tmp_path):
    path = written(
        tmp_path,
        '{"prompt": "a", "expected_category": "unsafe", "safety_category": "privacy_violation"}\n'
        '{"prompt": "b", "expected_category": "overrefusal"}\n',
    )
    unsafe, benign = read_prompts(path)
    assert (unsafe.label, unsafe.category) == ("unsafe", "privacy_violation")
    assert benign.label == "benign"


def test_a_number_of_too_many_digits_is_named_with_its_line(tmp_path):
    path = written(tmp_path, f'{{"prompt": "a"}}\n{{"prompt": "b", "n": {"1" * 5000}}}\n')
    assert complaint(path) == f"{path}:2: a number has too many digits to be read"


def test_a_folder_is_no_file_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"cannot write \.: it is a folder"):
        write_lines(Path(), [])


def test_a_text_that_is_no_unicode_leaves_the_old_file(tmp_path):
    path = written(tmp_path, "old")
    with pytest.raises(InputError, match="a lone surrogate; fix its source"):
        write_lines(path, [Message(role="user", content="half \ud83d")])
    assert [path.read_text()] == [file.read_text() for file in tmp_path.iterdir()] == ["old"]
