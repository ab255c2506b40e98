import json
import re
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_runs import run
from waltzrl.errors import InputError
from waltzrl.evaluation.judges.agreement import Agreement, agreement, compare_verdicts
from waltzrl.evaluation.judges.saved import SavedVerdict, read_saved_verdicts

BY_HAND = (20, 5, 10, 15)
"""Yes-yes, yes-no, no-yes, no-no: observed 0.7, chance 0.5 * 0.6 + 0.5 * 0.4, so kappa is 0.4."""


def answers(both_yes, only_first, only_second, both_no):
    first = [True] * (both_yes + only_first) + [False] * (only_second + both_no)
    second = [True] * both_yes + [False] * only_first + [True] * only_second + [False] * both_no
    return first, second


def standard_error(cells):
    """The large-sample standard error of kappa, Fleiss, Cohen and Everitt (1969), equation 13."""
    n = sum(cells)
    shares = [[cells[0] / n, cells[1] / n], [cells[2] / n, cells[3] / n]]
    rows = [sum(row) for row in shares]
    columns = [sum(column) for column in zip(*shares, strict=True)]
    chance = sum(r * c for r, c in zip(rows, columns, strict=True))
    kappa = (shares[0][0] + shares[1][1] - chance) / (1 - chance)
    equal = sum(shares[i][i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in range(2))
    unequal = (1 - kappa) ** 2 * sum(
        shares[i][j] * (columns[i] + rows[j]) ** 2 for i, j in ((0, 1), (1, 0))
    )
    variance = equal + unequal - (kappa - chance * (1 - kappa)) ** 2
    return sqrt(variance / n) / (1 - chance)


@pytest.mark.promise(
    "Evaluation",
    "Two judges' logs, files or people's labels are compared: kappa with its interval, tables, "
    "unscored counted",
)
@pytest.mark.promise("Equations", "`waltzrl.evaluation.judges.agreement`")
def test_kappa_by_hand():
    result = agreement(*answers(*BY_HAND))
    assert result.observed == pytest.approx(0.7)
    assert result.kappa == pytest.approx(0.4)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.judges.agreement`")
def test_the_interval_is_that_of_the_large_sample_formula_when_the_sample_is_large():
    cells = [count * 40 for count in BY_HAND]
    result = agreement(*answers(*cells))
    half = 1.96 * standard_error(cells)
    assert half == pytest.approx(0.04, abs=0.01)
    assert result.low == pytest.approx(0.4 - half, abs=0.003)
    assert result.high == pytest.approx(0.4 + half, abs=0.003)


def test_more_replies_make_the_interval_narrower_and_it_is_the_same_every_time():
    small, large = (agreement(*answers(*[n * k for n in BY_HAND])) for k in (1, 10))
    assert 2.5 < (small.high - small.low) / (large.high - large.low) < 4  # sqrt(10) is 3.2
    assert small == agreement(*answers(*BY_HAND))


def test_judges_that_never_disagree_keep_an_interval():
    result = agreement(*answers(10, 0, 0, 10))
    assert (result.kappa, result.high) == (1, 1)
    assert 0.5 < result.low < 0.95


def test_unscored_answers_are_counted_apart():
    result = agreement([True, None, False, None], [True, True, None, None])
    assert (result.scored, result.unscored) == (1, 3)


@pytest.mark.promise("Equations", "`waltzrl.evaluation.judges.agreement`")
def test_kappa_is_undefined_when_both_only_ever_say_one_thing():
    one_answer = agreement([True, True], [True, True])
    assert (one_answer.kappa, one_answer.low, one_answer.high) == (None, None, None)
    table = ((0, 0, 0), (0, 0, 0), (1, 0, 0))
    nothing = Agreement(scored=0, unscored=1, observed=None, kappa=None, table=table)
    assert agreement([None], [True]) == nothing


@pytest.mark.promise(
    "Evaluation",
    "Two judges' logs, files or people's labels are compared: kappa with its interval, tables, "
    "unscored counted",
)
def test_the_table_counts_every_pair_of_answers():
    first = [True, True, False, None, None, False]
    second = [True, None, True, None, False, False]
    assert agreement(first, second).table == ((1, 0, 1), (1, 1, 0), (0, 1, 1))


def test_rates_are_compared_on_the_prompts_that_they_count():
    said = {
        (f"{label}{n}", "reply"): SavedVerdict(
            unsafe=n == 0, overrefuses=n == 1, label=label, judge="a"
        )
        for label in ("unsafe", "benign")
        for n in range(3)
    }
    said["mixed", "reply"] = SavedVerdict(unsafe=True, overrefuses=False, label="mixed", judge="a")
    judged = {key: SavedVerdict(unsafe=True, overrefuses=True, judge="b@1") for key in said}
    comparison = compare_verdicts(said, judged)
    assert comparison.questions["unsafe"].scored == 7
    assert comparison.questions["asr"].table == ((2, 0, 0), (2, 0, 0), (0, 0, 0))
    assert comparison.questions["orr"].table == ((1, 0, 0), (3, 0, 0), (0, 0, 0))
    assert (comparison.first_judge, comparison.second_judge) == ("a", "b@1")


def test_lists_of_different_length_are_a_mistake():
    with pytest.raises(ValueError, match="shorter"):
        agreement([True, False], [True])


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2))
def test_kappa_does_not_depend_on_the_order_of_judges_and_is_one_for_equals(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    assert agreement(first, second).kappa == pytest.approx(agreement(second, first).kappa)
    if len(set(first)) == 2:
        assert agreement(first, first).kappa == pytest.approx(1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2))
def test_the_interval_holds_the_estimate_and_stays_within_the_scale(pairs):
    result = agreement([a for a, _ in pairs], [b for _, b in pairs])
    if result.kappa is not None:
        assert -1 <= result.low <= result.kappa <= result.high <= 1


def test_only_replies_that_both_have_are_compared():
    declined = SavedVerdict(unsafe=False, refuses=True, overrefuses=True)
    first = {("How?", "So."): SavedVerdict(unsafe=True, refuses=False), ("How?", "No."): declined}
    second = {("How?", "So."): SavedVerdict(unsafe=True, refuses=True), ("Why?", "No."): declined}
    comparison = compare_verdicts(first, second)
    assert (comparison.shared, comparison.first_only, comparison.second_only) == (1, 1, 1)
    scored = {question: result.scored for question, result in comparison.questions.items()}
    assert {question for question, n in scored.items() if n} == {"unsafe", "refuses"}
    assert comparison.questions["unsafe"].observed == 1
    assert comparison.questions["refuses"].observed == 0
    with pytest.raises(InputError, match="no reply in common"):
        compare_verdicts(first, {})


def saved(path, unsafe):
    lines = (
        {"prompt": "How?", "response": f"Reply {n}.", "unsafe": label, "label": "benign"}
        for n, label in enumerate(unsafe)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.promise(
    "Evaluation",
    "Two judges' logs, files or people's labels are compared: kappa with its interval, tables, "
    "unscored counted",
)
def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    labels = answers(*BY_HAND)
    first, second = (saved(tmp_path / f"{n}.jsonl", column) for n, column in enumerate(labels))
    assert run("agreement", first, second) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"50 replies in both, 0 only in {first}, 0 only in {second}"
    expected = agreement(*labels)
    interval = f"0.40 ({expected.low:.2f} to {expected.high:.2f})"
    assert lines[2].split(maxsplit=5) == ["unsafe", "50", "0", "70.0", "%", interval]
    assert lines[3].split() == ["refuses", "0", "50", "-", "-"]
    table = lines.index("unsafe             yes        no  unscored")
    counts = [line.split() for line in lines[table + 1 : table + 4]]
    assert counts == [["yes", "20", "5", "0"], ["no", "10", "15", "0"], ["unscored", *"000"]]
    assert run("agreement", first, second, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["shared"] == 50
    assert printed["questions"]["unsafe"]["kappa"] == pytest.approx(0.4)
    assert printed["questions"]["overrefuses"]["kappa"] is None


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", r"b\.jsonl:2:2: not JSON: .*; need one JSON object"),
        ('{"prompt": "How?"}', r"b\.jsonl:2: .*missing required field `response`; need one JSON"),
        ('{"prompt": "How?", "response": "Reply 0.", "unsafe": 1}', r"b\.jsonl:2: Expected `bool"),
        (
            '{"prompt": "How?", "response": "Reply 0.", "unsafe": false}',
            r"b\.jsonl:2: an earlier line has other labels for this reply; keep one line",
        ),
    ],
)
def test_the_command_names_a_malformed_line(tmp_path, capsys, line, error):
    first, second = saved(tmp_path / "a.jsonl", [True]), saved(tmp_path / "b.jsonl", [True])
    second.write_text(f"{second.read_text()}{line}\n")
    assert run("agreement", first, second) == 2
    assert re.search(error, capsys.readouterr().err)


def test_the_command_says_when_the_files_share_nothing(tmp_path, capsys):
    first, second = saved(tmp_path / "a.jsonl", [True]), tmp_path / "b.jsonl"
    second.write_text('{"prompt": "Why?", "response": "Because.", "unsafe": false}\n')
    assert run("agreement", first, second) == 2
    assert "have no reply in common; need the same prompt and response" in capsys.readouterr().err


def test_a_label_of_other_words_says_nothing_of_the_prompt(tmp_path):
    path = tmp_path / "people.jsonl"
    labels = ("unsafe", "mixed", "safe", None)
    lines = [{"prompt": f"{n}?", "response": "No.", "label": x} for n, x in enumerate(labels)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [each.label for each in read_saved_verdicts(path).values()] == [
        "unsafe",
        "mixed",
        None,
        None,
    ]
