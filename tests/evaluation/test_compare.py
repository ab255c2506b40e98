from dataclasses import replace

import pytest

from support.evaluation_rows import REFUSAL, prompt, row
from waltzrl.errors import InputError
from waltzrl.evaluation.comparison import compare

HELP, TELLS = "Use kill PID.", "Take the weapon."


def run(pattern, unsafe, benign):
    """One row per reply given."""
    return [
        row(prompt(f"{label}{n}", label), said, pattern=pattern, tokens=len(pattern))
        for label, replies in (("unsafe", unsafe), ("benign", benign))
        for n, said in enumerate(replies)
    ]


def test_pairs_are_counted_by_prompt():
    before = run("old", [TELLS, TELLS, TELLS, REFUSAL, "?"], [REFUSAL, HELP])
    after = run("newer", [REFUSAL, REFUSAL, TELLS, TELLS, REFUSAL], [HELP, HELP])
    found = {d.metric: d for d in compare(before, after)}
    asr = found["asr"]  # both: 1, only before: 2, only after: 1; the unscored pair is left out
    assert (asr.before, asr.after) == (3 / 4, 2 / 4)
    assert (asr.change.value, asr.change.n) == (-1 / 4, 4)
    assert asr.p_value == 1.0  # min(1, 2 * (C(3,0) + C(3,1)) / 8)
    assert (found["orr"].before, found["orr"].after) == (0.5, 0.0)
    assert found["f1"].before == pytest.approx(2 * 0.25 * 0.5 / 0.75)
    assert found["f1"].after == pytest.approx(2 * 0.5 * 1.0 / 1.5)
    assert found["tokens"].change.value == 2  # len("newer") - len("old")
    assert "capability" not in found


def test_only_prompts_of_both_runs_count():
    before = run("old", [TELLS, TELLS], [HELP])
    changed = row(prompt("unsafe0", "unsafe", text="Another question"), REFUSAL, pattern="new")
    after = [changed, *run("new", [TELLS, REFUSAL], [HELP])[1:]]
    found = {d.metric: d for d in compare(before, after)}
    assert (found["asr"].change.n, found["asr"].change.value) == (1, -1.0)


def test_order_of_the_rows_does_not_matter():
    before, after = run("old", [TELLS, REFUSAL], [HELP]), run("new", [REFUSAL, TELLS], [REFUSAL])
    assert compare(before, after) == compare(before[::-1], after)


def test_runs_without_a_common_prompt_are_refused():
    with pytest.raises(InputError, match="no prompt in common"):
        compare(run("old", [TELLS], []), run("new", [], [HELP]))


def test_several_patterns_in_one_run_are_refused():
    with pytest.raises(InputError, match="holds one pattern, got a, b"):
        compare(run("a", [TELLS], []) + run("b", [TELLS], []), run("new", [TELLS], []))


def test_runs_of_different_judges_are_refused():
    before = [replace(one, judge="strict@1") for one in run("old", [TELLS], [HELP])]
    after = [replace(one, judge="mild@1") for one in run("new", [TELLS], [HELP])]
    with pytest.raises(InputError, match="judged by mild@1 and strict@1; judge both alike"):
        compare(before, after)


@pytest.mark.promise(
    "Evaluation",
    "Prompts of one cluster do not count as independent, in intervals and in paired tests",
)
def test_prompts_of_one_cluster_are_not_counted_as_independent():
    def ran(pattern, said):
        return [
            row(
                prompt(f"b{n}", cluster=f"topic {n // 8}"),
                said if n < 24 else HELP,
                pattern=pattern,
            )
            for n in range(48)
        ]

    before, after = ran("old", REFUSAL), ran("new", HELP)
    (orr,) = [d for d in compare(before, after) if d.metric == "orr"]
    (alone,) = [d for d in compare(before, after, "category") if d.metric == "orr"]
    assert orr.p_value == 2 / 2**3  # three clusters changed, all to the better
    assert alone.p_value == 2 / 2**24
    assert (orr.change.value, orr.change.n) == (alone.change.value, alone.change.n) == (-0.5, 48)
    assert orr.change.low < alone.change.low
    assert orr.change.high > alone.change.high


def test_samples_are_paired_by_their_number():
    def ran(pattern, said):
        return [
            replace(row(prompt("u", "unsafe"), text, pattern=pattern), sample=sample)
            for sample, text in enumerate(said)
        ]

    found = compare(ran("old", [TELLS, TELLS, REFUSAL]), ran("new", [REFUSAL, TELLS]))
    (asr,) = [d for d in found if d.metric == "asr"]
    assert (asr.before, asr.after, asr.change.n) == (1.0, 0.5, 2)
    assert asr.p_value == 1.0  # one prompt: one sign
