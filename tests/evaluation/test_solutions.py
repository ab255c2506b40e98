import json

import pytest

from waltzrl.errors import InputError
from waltzrl.evaluation.data.solutions import SolvedQuestion, questions_of, read_solutions

ROW = {"question": "Two plus two?", "solution": "4", "reasoning_trace": "Two more than two."}


def write(folder, *rows):
    path = folder / "solutions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_are_read_with_their_line_and_a_trace_is_optional(tmp_path):
    bare = {"question": "One plus one?", "solution": "2", "source": "ours"}
    path = write(tmp_path, ROW, bare)
    assert read_solutions(path) == {
        f"{path}:1": SolvedQuestion(**ROW),
        f"{path}:2": SolvedQuestion(question="One plus one?", solution="2"),
    }


@pytest.mark.promise(
    "Teacher", "A row without a column names file and line, and nothing is trained"
)
@pytest.mark.promise("Bad input", "A solved question without a column: file, line, column")
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "Two?"}, "`solution`; every row needs question and solution, as texts"),
        ({"solution": "4"}, "`question`; every row needs question and solution, as texts"),
        ({"question": "Two?", "solution": 4}, "`$.solution`; every row needs"),
        ({"question": " ", "solution": "4"}, "question is blank; fill it in or delete the row"),
        ({"question": "Two?", "solution": "\n"}, "solution is blank; fill it in or delete the row"),
    ],
)
def test_a_row_without_a_column_names_file_and_line(tmp_path, row, message):
    path = write(tmp_path, ROW, row)
    with pytest.raises(InputError) as caught:
        read_solutions(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_holds_no_solved_questions(tmp_path):
    with pytest.raises(InputError, match="holds no solved questions"):
        read_solutions(write(tmp_path))


def test_questions_are_prompts_that_name_their_line(tmp_path):
    path = write(tmp_path, ROW)
    (prompt,) = questions_of(read_solutions(path))
    assert (prompt.id, prompt.request) == (f"{path}:1", "Two plus two?")


def test_the_reply_of_an_agent_that_thinks_first():
    assert SolvedQuestion(**ROW).reply == "<think>\nTwo more than two.\n</think>\n\n4"
