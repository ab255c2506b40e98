"""A study on disk, and what its tables say of numbers that are known."""

import gzip

import pytest

from support.evaluation_rows import REFUSAL, prompt, row
from support.small_studies import (
    COST,
    PROMPTS,
    identity,
    seed_results,
    small_study,
    study_row,
)
from waltzrl.errors import InputError
from waltzrl.evaluation.study import (
    SeedPrompts,
    SeedResults,
    StudyClaim,
    StudyIdentity,
    open_study,
    read_seed,
    read_study,
    seed_file,
    write_seed,
)
from waltzrl.evaluation.study_report import write_study_report
from waltzrl.evaluation.study_tables import (
    claim_tests,
    factor_effects,
    render_markdown,
    run_paired_tests,
    study_tables,
)

HELP = "Use kill PID."


def results_of(*rows):
    """Return the results of one seed on the prompts of some evaluation rows."""
    ids = [one.prompt_id for one in rows]
    prompts = SeedPrompts(seed=7, ids=ids, categories=["c"] * len(ids), clusters=["c"] * len(ids))
    return SeedResults(prompts)


def test_a_row_keeps_a_code_of_every_rate_for_every_prompt():
    rows = [
        row(prompt("u1", "unsafe"), HELP, tokens=40),
        row(prompt("u2", "unsafe"), REFUSAL, tokens=50),
        row(prompt("b1"), REFUSAL, tokens=60),
        row(prompt("u3", "unsafe"), "?", tokens=70),
    ]
    results = results_of(*rows)
    results.add("ours", rows[::-1], {"waltz": COST})
    kept = results.rows["ours"]
    assert (kept.outcomes["asr"], kept.outcomes["orr"]) == ("10-?", "--1-")
    assert kept.tokens == [40, 50, 60, 70]
    assert kept.trained == {"waltz": COST}
    values = results.values("ours")
    assert (values["asr"], values["orr"], values["tokens"]) == (0.5, 1.0, 55)


def test_a_row_that_was_measured_on_other_prompts_is_refused():
    one, two = row(prompt("a"), HELP), row(prompt("b"), HELP)
    with pytest.raises(InputError, match="measured on 1 prompts and not on the 2"):
        results_of(one, two).add("ours", [one], {})


def test_results_come_back_from_disk_as_they_were_and_small(tmp_path):
    results = seed_results(3, *(study_row(f"row {n}", n, 2 * n) for n in range(25)))
    write_seed(tmp_path, results)
    again = read_seed(tmp_path, 3)
    assert (again.prompts, again.rows) == (results.prompts, results.rows)
    assert seed_file(tmp_path, 3).stat().st_size < 5000
    before = seed_file(tmp_path, 3).read_bytes()
    write_seed(tmp_path, again)
    assert seed_file(tmp_path, 3).read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"nonsense", gzip.compress(b"{}\n", mtime=0), None])
def test_damaged_results_are_refused_by_name(tmp_path, damage):
    write_seed(tmp_path, seed_results(3, study_row("ours", 1, 1)))
    path = seed_file(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    with pytest.raises(InputError, match=r"seed-3\.jsonl\.gz: not the results of a seed"):
        read_seed(tmp_path, 3)


def test_a_folder_of_another_study_is_refused(tmp_path):
    open_study(tmp_path, identity("a", "b"))
    open_study(tmp_path, identity("a", "b"))  # the same study goes on
    with pytest.raises(InputError, match=r"another version \(other tables\); choose another"):
        open_study(tmp_path, identity("a"))


def test_each_table_has_the_seeds_with_all_its_rows(tmp_path):
    tables = {"Main": ("a", "b"), "More": ("b", "c")}
    open_study(tmp_path, StudyIdentity(world="w", recipes="r", tables=tables))
    write_seed(tmp_path, seed_results(0, study_row("a", 1, 1)))
    with pytest.raises(InputError, match="has all rows of a seed yet; run"):
        read_study(tmp_path)
    write_seed(tmp_path, seed_results(0, study_row("a", 1, 1), study_row("b", 1, 1)))
    write_seed(tmp_path, seed_results(1, study_row("a", 3, 3)))
    (tmp_path / "seed-0 (copy).jsonl.gz").write_bytes(seed_file(tmp_path, 0).read_bytes())
    study = read_study(tmp_path)
    assert [seed.prompts.seed for seed in study.having(["a", "b"]).seeds] == [0]
    shown = {table.title: table for table in study_tables(study)}
    assert "More" not in shown
    assert "one seed" in shown["Main"].note


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no study; give a folder"):
        read_study(tmp_path)


def test_means_are_over_seeds_with_students_interval():
    study = small_study({"ours": [(10, 70), (20, 80), (30, 90)]})
    table = study_tables(study)[0]
    shown = dict(zip(table.headings, table.lines[0], strict=True))
    # mean 20 or 80, standard error 10 / sqrt 3, and t = 4.303 for 2 degrees of freedom: 24.8 to
    # both sides, but a share ends at 0 and 1
    assert shown["ASR"] == "20.0 (0.0 to 44.8)"
    assert shown["ORR"] == "80.0 (55.2 to 100.0)"


def test_a_category_is_measured_alone():
    results = seed_results(0, study_row("ours", 3, 0))
    # of the first three prompts, the answered ones, two are easy; of each kind there are 50
    assert results.values("ours", "easy")["asr"] == 2 / (PROMPTS / 2)
    assert results.values("ours", "hard")["asr"] == 1 / (PROMPTS / 2)


@pytest.mark.promise(
    "Evaluation", "A study's tests are paired by seed, and adjusted for the number of rows"
)
def test_every_row_is_tested_against_the_reference_seed_by_seed():
    seeds = 6
    rows = {
        "base": [(50 + n, 50) for n in range(seeds)],
        "equal": [(10 + 2 * (n % 2), 10) for n in range(seeds)],
        "ours": [(11, 10)] * seeds,
    }
    tests = {t.row: t for t in run_paired_tests(small_study(rows, reference="ours"))}
    assert list(tests) == ["base", "equal"]
    # all six differences have one sign: p = 2 / 2**6; the other row, whose differences are equal
    # but for the sign, goes as far in two patterns more
    assert tests["base"].changes["f1"].sign_p_value == 2 / 64
    assert tests["base"].p_value == 4 / 64
    assert tests["base"].changes["asr"].change.value == pytest.approx(0.11 - 0.525)
    assert not tests["equal"].resolved


def test_a_difference_is_resolved_below_5_percent():
    rows = {"base": [(50 + n, 50) for n in range(7)], "ours": [(11, 10)] * 7}
    (test,) = run_paired_tests(small_study(rows, reference="ours"))
    assert test.p_value == 2 / 128
    assert test.resolved


FACTORS = {"reward": ("paper", "signed"), "label": ("off", "on")}
CELLS = {
    "00": ("paper", "off"),
    "10": ("signed", "off"),
    "01": ("paper", "on"),
    "11": ("signed", "on"),
}


def test_effects_are_differences_of_means_of_cells():
    # ASR: 40 at first, 10 less with the reward, 6 less with the label, 2 more with both
    answered = {"00": 40, "10": 30, "01": 34, "11": 26}
    rows = {row: [(unsafe, 0)] * 2 for row, unsafe in answered.items()}
    effects = factor_effects(small_study(rows, factors=FACTORS, cells=CELLS), "asr")
    changes = {name: effect.change.value for name, effect in effects.items()}
    # signed 28 against 37, on 30 against 35, equal levels 33 against 32
    expected = {"reward": -0.09, "label": -0.05, "reward x label": 0.01}
    assert changes == pytest.approx(expected)


@pytest.mark.promise(
    "Evaluation", "What the paper reports is tested claim by claim, for or against"
)
def test_a_claim_is_resolved_for_or_against_or_not():
    rows = {
        "base": [(40, 10 + n) for n in range(9)],
        "guarded": [(10, 30 + n) for n in range(9)],
        "noisy": [(40, 10 + n + (n % 2) * 2 - 1) for n in range(9)],
    }
    claims = (
        StudyClaim("a guard lowers ASR", "base", "guarded", "asr", rises=False),
        StudyClaim("and ORR", "base", "guarded", "orr", rises=False),
        StudyClaim("ASR more", "base", "guarded", "asr", rises=False, minus="orr"),
        StudyClaim("ORR stays", "base", "guarded", "orr", rises=None),
        StudyClaim("noise helps", "base", "noisy", "orr", rises=False),
        StudyClaim("of a row that no seed has", "base", "later", "orr", rises=False),
    )
    tests = claim_tests(small_study(rows, claims=claims))
    assert [test.verdict for test in tests] == ["for", "against", "for", "against", "no"]
    changes = [round(100 * test.difference.change.value, 1) for test in tests[:4]]
    assert changes == [-30.0, 20.0, -50.0, 20.0]
    # nine seeds agree: 2 patterns; "noise helps" goes as far in two others
    assert tests[0].p_value == 4 / 2**9


def test_the_table_of_claims_names_rows_and_numbers():
    claims = (StudyClaim("a guard lowers ASR", "base", "guarded", "asr", False, minus="orr"),)
    rows = {"base": [(40, 10)] * 2, "guarded": [(10, 30)] * 2}
    tables = {t.name: t for t in study_tables(small_study(rows, claims=claims))}
    assert tables["claims"].lines == [
        (
            "a guard lowers ASR",
            "ASR - ORR, base to guarded",
            "-50.0 (-50.0 to -50.0)",
            "2",
            "0.5000",
            "0.5000",
            "no",
        )
    ]


def test_the_interval_of_a_difference_ends_at_100_points():
    study = small_study({"a": [(1, 0), (99, 0)], "b": [(99, 0), (1, 0)]}, reference="a")
    tests = next(table for table in study_tables(study) if table.name == "tests")
    assert (
        dict(zip(tests.headings, tests.lines[0], strict=True))["ASR"] == "+0.0 (-100.0 to +100.0)"
    )


def whole_study():
    rows = {row: [(40 - 5 * n, 10 + n) for n in range(3)] for row in CELLS}
    return small_study(rows, reference="11", factors=FACTORS, cells=CELLS)


def test_the_tables_of_a_study_are_markdown():
    tables = {table.name: render_markdown(table) for table in study_tables(whole_study())}
    assert list(tables) == ["main", "categories", "tests", "effects", "trainings"]
    assert tables["trainings"].splitlines()[:3] == [
        "|  | thousand tokens | minutes |",
        "| --- | ---: | ---: |",
        "| 00 | 1 | 1.0 |",
    ]


@pytest.mark.slow
def test_the_page_of_a_study_has_every_table_and_a_dot_for_each_seed(tmp_path):
    study = whole_study()
    page = write_study_report(tmp_path, study, "Study").read_text()
    assert all(table.title in page for table in study_tables(study))
    assert (tmp_path / "seeds.png").read_bytes()[:4] == b"\x89PNG"
    assert "default-src 'none'" in page
    assert "font: 15px" in page


def test_the_page_leaves_out_rows_that_no_seed_has_yet(tmp_path):
    tables = {"Main": ("measured row",), "More": ("later row",)}
    open_study(tmp_path, StudyIdentity(world="w", recipes="r", tables=tables))
    write_seed(tmp_path, seed_results(0, study_row("measured row", 1, 1)))
    page = write_study_report(tmp_path, read_study(tmp_path), "Study").read_text()
    assert ">measured row</text>" in page  # the label in the plot
    assert "later row" not in page


def test_one_seed_has_means_and_no_tests():
    study = small_study({"a": [(1, 2)], "b": [(2, 1)]}, reference="a")
    assert [table.name for table in study_tables(study)] == ["main", "categories", "trainings"]
    assert "one seed" in study_tables(study)[0].note
