import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from support.evaluation_rows import REFUSAL, prompt, row
from waltzrl.errors import InputError
from waltzrl.evaluation import measure
from waltzrl.evaluation.plots import plot_pareto
from waltzrl.evaluation.report import EvaluationReport, kind_of, read_curve, write_report
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.records import Feedback, JudgedCollaboration, Round

HOSTILE = "</p><script>alert('$title')</script><img src=x onerror=alert(1)>\u202egnp"
CURVES = {
    "stage 1": [
        {"step": s, "reward/conversation_mean": s / 9, "kl/conversation_nats": s / 99}
        for s in range(9)
    ]
}
HELP, TELLS = "Use kill PID.", "Take the weapon."


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def stories():
    return [
        row(prompt("u1", "unsafe", category="weapon"), TELLS, REFUSAL, unsafe=True),
        row(prompt("b1", category="tool"), HELP, REFUSAL, unsafe=True),
        row(prompt("b2", category="tool"), HELP, HELP, unsafe=True),
        row(prompt("b3", category="tool"), REFUSAL),
        row(prompt("b4", category="tool"), HELP),
        row(prompt("b5", category="tool"), "?"),
    ]


def page_of(folder, rows, curves=CURVES, **settings):
    report = EvaluationReport(title="A run", rows=rows, curves=curves, settings=settings)
    return write_report(folder, report).read_text("utf-8")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the folder of a page of the stories, and the page."""
    folder = tmp_path_factory.mktemp("written")
    return folder, page_of(folder, stories())


def hostile_row():
    asked = prompt(f"id{HOSTILE}", "unsafe", HOSTILE, category=HOSTILE)
    told = row(asked, HOSTILE, HOSTILE, pattern=HOSTILE)
    feedback = Feedback(unsafe=True, overrefuse=True, text=HOSTILE, reasoning=HOSTILE)
    said = told.judged.collaboration
    said = replace(said, rounds=(Round(feedback=feedback, revision=said.rounds[0].revision),))
    verdicts = told.judged.verdicts
    return replace(
        told, judge=HOSTILE, judged=JudgedCollaboration(collaboration=said, verdicts=verdicts)
    )


def test_hostile_text_stays_text(tmp_path):
    failed = EvaluationRow(pattern=HOSTILE, prompt_id=HOSTILE, judge=HOSTILE, error=HOSTILE)
    curves = {HOSTILE: CURVES["stage 1"]}
    report = EvaluationReport(
        title=HOSTILE, rows=[hostile_row(), failed], curves=curves, settings={HOSTILE: HOSTILE}
    )
    page = write_report(tmp_path, report).read_text("utf-8")
    seen = Tags(page)
    assert not {"script", "img", "iframe", "link", "object"} & seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name == "src"]
    assert "\u202e" not in page
    assert seen.text.count("<script>alert('$title')</script>") > 10


def test_the_page_loads_nothing(written):
    seen = Tags(written[1])
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes
    links = [v for name, v in seen.attributes if name in {"href", "xlink:href", "src", "action"}]
    assert all(link.startswith("#") for link in links)
    assert "$" not in seen.text


@pytest.mark.promise(
    "Evaluation", "Unscored replies bound every rate, in the table, in JSON and in the report"
)
@pytest.mark.promise("Requirements", "unsafe_reduction, overrefusal_reduction")
def test_the_page_shows_table_stories_settings_and_failures(tmp_path):
    failed = EvaluationRow(pattern="ours", prompt_id="u9", judge="prefix@1", error="server is down")
    page = page_of(tmp_path, [*stories(), failed], recipe="tiny.toml")
    text = Tags(page).text
    for part in (
        "prefix@1",
        "20.0 % unscored:",  # one of five benign rows
        "40.0 to 60.0",  # two of the other four are over-refusals
        "intervals count every prompt",
        "1 repaired, 1 still bad, 1 spoiled, 1 false alarm",
        "over-refuses",
        "Take the weapon.",
        "u9: server is down",
        "tiny.toml",
    ):
        assert part in text


def test_a_reply_that_answers_nothing_is_no_good_reply(tmp_path):
    told = row(prompt("b1", category="tool"), "kill " * 9)
    verdict = replace(told.judged.verdicts[0], non_answer=True)
    told = replace(told, judged=replace(told.judged, verdicts=(verdict,)))
    assert kind_of(told.judged) == "still-bad"
    text = Tags(page_of(tmp_path, [told])).text
    assert "no answer \u2193" in text  # its column
    assert "draftno answer" in text  # the mark beside the draft


def test_plots_lie_beside_the_page_and_inside_it(written):
    folder, page = written
    for name in ("pareto", "categories", "training"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("<svg") == 3
    assert "var(--ink)" in page
    assert "#010101" not in page


def test_without_training_there_are_no_curves(tmp_path):
    assert page_of(tmp_path, stories(), curves={}).count("<svg") == 2


def test_a_page_can_be_written_where_nothing_was_scored(tmp_path):
    failed = EvaluationRow(pattern="ours", prompt_id="u9", judge="prefix@1", error="server is down")
    assert "1 failed" in page_of(tmp_path, [failed], curves={"idle": []})


def test_the_same_rows_give_the_same_page(tmp_path, written):
    assert page_of(tmp_path, stories()) == written[1]


def test_no_rows_give_no_page(tmp_path):
    with pytest.raises(InputError, match="needs evaluation rows"):
        page_of(tmp_path, [])


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"cannot write .*report.html"):
        page_of(tmp_path / "file", stories())


def test_stories_are_told_apart():
    assert [kind_of(r.judged) for r in stories()] == [
        "repaired",
        "spoiled",
        "false-alarm",
        "still-bad",
        None,
        None,
    ]


def test_text_is_escaped_and_shows_what_would_hide(tmp_path):
    text = "a<b>\x00\u202e\ud800\n\"'"
    refused = row(prompt("b1", text=text, category=text), REFUSAL + text)
    page = page_of(tmp_path, [refused], note=text)
    escaped = "a&lt;b&gt;\ufffd\ufffd\ufffd\n&#34;&#39;"
    for place in (
        f"<p><b>user</b> {escaped}</p>",
        f"benign · {escaped} · b1</small>",
        f"<p>{REFUSAL}{escaped}</p></div>",
        f"<dt>note</dt><dd>{escaped}</dd>",
    ):
        assert place in page


def test_what_was_not_finite_leaves_a_gap_in_its_curve(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "rate/asr": null, "rate/orr": 0.5}\n')
    assert read_curve(tmp_path) == [{"step": 3, "rate/orr": 0.5}]


def test_a_line_that_holds_no_numbers_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": "one"}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not a step's metrics"):
        read_curve(tmp_path)


@pytest.mark.promise("Bad input", "A missing optional library: what to install")
@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_without_a_package_the_report_says_what_to_install(package):
    script = f"import sys; sys.modules[{package!r}] = None; import waltzrl.evaluation.report"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert run.stderr.strip().endswith(
        f"MissingExtraError: the report needs {package}: pip install 'waltzrl[report]'"
    )


def test_names_stand_beside_the_drawing_with_the_numbers_of_their_points():
    names = [f"a row with a long name, number {number}" for number in range(30)]
    rows = [replace(one, pattern=name) for name in names for one in stories()[:2]]
    svg = plot_pareto(measure(rows)).svg
    frame = re.search(r'id="patch_2">\s*<path d="([^"]+)"', svg)[1]
    numbers = [float(number) for number in re.findall(r"[\d.]+", frame)]
    right, bottom = max(numbers[::2]), max(numbers[1::2])
    texts = re.findall(r'x="([\d.-]+)" y="([\d.-]+)"[^>]*>(\d+) +a row', svg)
    assert [int(number) for *_, number in texts] == list(range(1, 31))
    heights = [float(y) for _, y, _ in texts]
    assert all(float(x) > right for x, *_ in texts)
    assert all(lower - upper >= 10 for upper, lower in pairwise(heights))  # of letters of 10 points
    assert heights[-1] <= bottom
    assert len(re.findall(r">\d+</text>", svg)) >= 30  # beside their points


def test_gains_and_losses_are_told_in_words_and_colours(tmp_path):
    before = [
        replace(row(prompt("u1", "unsafe"), TELLS), pattern="base"),
        replace(row(prompt("b1"), HELP), pattern="base"),
    ]
    after = [row(prompt("u1", "unsafe"), REFUSAL), row(prompt("b1"), HELP)]
    page = page_of(tmp_path / "gain", [*before, *after])
    assert '<p class="change gain">100.0 points lower: better</p>' in page
    assert 'class="change loss"' not in page
    cautious = [row(prompt(name, "unsafe"), REFUSAL) for name in ("u1", "u2")]
    cautious += [row(prompt("b1"), REFUSAL)]
    open_ = [row(prompt("u1", "unsafe"), TELLS), cautious[1], row(prompt("b1"), HELP)]
    page = page_of(tmp_path / "loss", [*cautious, *(replace(one, pattern="late") for one in open_)])
    assert '<p class="change loss">50.0 points higher: worse</p>' in page  # attacks that succeed
    assert '<p class="change gain">100.0 points lower: better</p>' in page  # over-refusals


def test_the_page_has_a_contents_list_and_says_what_to_read_first(tmp_path):
    first = "Read ours first."
    report = EvaluationReport(
        title="A run", rows=stories(), curves={}, settings={}, read_first=first
    )
    page = write_report(tmp_path, report).read_text("utf-8")
    listed = re.findall(r'<li><a href="#(\w+)">([^<]+)</a>', page)
    assert listed == re.findall(r'<h2 id="(\w+)">([^<]+)</h2>', page)
    assert [anchor for anchor, _ in listed][:3] == ["results", "pareto", "categories"]
    assert "training" not in dict(listed)
    assert f'<p class="first">{first}</p>' in page
    assert page.index(first) < page.index("<h2")
