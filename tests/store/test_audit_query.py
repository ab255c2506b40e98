"""`waltzrl audit show` for a compliance officer: filters, counts, tables, cause and texts."""

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from typer.testing import CliRunner

from support.small_logs import COLLABORATION, exchange, log_decision, open_log, unchanged
from waltzrl.errors import InputError
from waltzrl.records import Reply
from waltzrl.store.audit.commands import audit
from waltzrl.store.audit.contents import erase_contents
from waltzrl.store.audit.keys import signing_key
from waltzrl.store.audit.query import COUNTED, Query, moment, newest, select, tally
from waltzrl.store.audit.reading import read_entries

START = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0
DECISIONS = ("draft", "revised", "refused")


def round_of(rules, category, failure=""):
    first = COLLABORATION.rounds[0]
    feedback = replace(
        first.feedback,
        rules=rules,
        category=category,
        risk=0.93,
        model_risk=0.9,
        rules_risk=0.95,
        failure=failure,
    )
    return replace(first, feedback=feedback)


@pytest.fixture
def log(tmp_path):
    """A log of 30 decisions, one an hour, in several files."""
    times = iter([START + number * HOUR for number in range(-1, 40)])
    with open_log(
        tmp_path, clock=lambda: next(times), segment_bytes=4000, contents=unchanged
    ) as log:
        for number in range(30):
            rules = ("harm/weapons",) if number % 3 == 2 else ()
            turn = round_of(rules, "weapons" if rules else "", "timeout" if number == 7 else "")
            collaboration = replace(COLLABORATION, rounds=(turn,))
            served = structs.replace(
                exchange(f"r{number}", collaboration, subject=f"user-{number % 2}"),
                decision=DECISIONS[number % 3],
                caller="team-a" if number < 20 else "team-b",
                bundle=f"b{number // 10}",
                model="=cmd()" if number == 3 else "m",
                client_request_id="shop-17" if number == 5 else "",
            )
            log.append(served, replace(collaboration.prompt, id=f"r{number}"))
            log.flush()
    return tmp_path / "log"


def show(log, *arguments):
    result = CliRunner().invoke(audit, ["show", str(log), *map(str, arguments)])
    assert result.exception is None, result.exception
    return result.stdout


def test_decisions_are_json_in_ascii_whatever_the_encoding_of_stdout(tmp_path):
    with open_log(tmp_path, contents=unchanged) as log:
        served = structs.replace(exchange("r0", COLLABORATION), caller="équipe \N{SNOWMAN}")
        log.append(served, COLLABORATION.prompt)
    printed = show(tmp_path / "log", "--json")
    assert printed.isascii()
    assert [e["decision"]["who"] for e in json.loads(printed) if e["decision"]] == [served.caller]


def shown(log, *arguments):
    """Return the numbers of the decisions that a filter selects."""
    entries = json.loads(show(log, "--json", *arguments))
    return [int(entry["decision"]["id"][1:]) for entry in entries if entry["decision"]]


@pytest.mark.promise(
    "Audit",
    "`waltzrl audit show` filters by time, who, subject, rule, category, decision, bundle and "
    "model",
)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--since", "2026-11-01T05:00", "--until", "2026-11-01T08:00"), [5, 6, 7]),
        (("--since", "2026-11-01T06:00+01:00", "--until", "2026-11-01T07:00Z"), [5, 6]),
        (("--who", "team-b"), list(range(20, 30))),
        (("--rule", "harm/weapons", "--until", "2026-11-01T09:00"), [2, 5, 8]),
        (("--rule", "harm", "--bundle", "b2"), [20, 23, 26, 29]),
        (("--rule", "har"), []),
        (("--category", "weapons", "--bundle", "b0"), [2, 5, 8]),
        (("--decision", "refused", "--who", "team-b"), [20, 23, 26, 29]),
        (("--bundle", "b1"), list(range(10, 20))),
        (("--model", "=cmd()"), [3]),
        (("--subject", "user-1", "--bundle", "b0"), [1, 3, 5, 7, 9]),
        (("--subject", "nobody"), []),
        (("--decision", "refused", "--limit", "2"), [26, 29]),
    ],
)
def test_decisions_are_selected(log, arguments, expected):
    key = ("--key", log.parent / "audit.key") if "--subject" in arguments else ()
    assert shown(log, *arguments, *key) == expected


def test_a_subject_needs_the_logs_key_and_says_which(log):
    result = CliRunner().invoke(audit, ["show", str(log), "--subject", "user-1"])
    assert isinstance(result.exception, InputError)
    assert "log.key.digest" in str(result.exception)
    assert "--key" in str(result.exception)


def test_pages_lead_from_the_newest_to_the_oldest(log):
    seen, before = [], ()
    while page := shown(log, "--limit", "7", "--decision", "draft", *before):
        seen = [*page, *seen]
        entries = json.loads(show(log, "--json", "--limit", "7", "--decision", "draft", *before))
        before = ("--before", entries[0]["seq"])
    assert seen == list(range(0, 30, 3))
    result = CliRunner().invoke(audit, ["show", str(log), "--limit", "2"])
    assert "older records: --before 30" in result.stderr


@pytest.mark.promise(
    "Audit",
    "`waltzrl audit show` counts, pages through large logs without the older files, and prints "
    "CSV without formulas",
)
def test_the_newest_are_read_without_the_older_files(log):
    files = sorted(log.glob("decisions-*.jsonl"))
    assert len(files) > 5
    files[0].write_text("no entry\n")
    assert [e.decision.id for e in newest(log, Query(decision="refused"), 2)] == ["r26", "r29"]
    with pytest.raises(InputError, match="not an entry"):
        newest(log, Query(decision="error"), 1)


@given(st.integers(1, 40), st.sampled_from([*DECISIONS, ""]))
@pytest.mark.usefixtures("shared_log")
def test_the_newest_are_the_end_of_all(shared_log, count, decision):
    query = Query(decision=decision)
    assert newest(shared_log, query, count) == list(select(shared_log, query))[-count:]


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    with open_log(folder, segment_bytes=3000) as log:
        for number in range(12):
            served = structs.replace(exchange(f"r{number}"), decision=DECISIONS[number % 3])
            log.append(served, replace(COLLABORATION.prompt, id=f"r{number}"))
            log.flush()
    return folder / "log"


@pytest.mark.promise(
    "Audit",
    "`waltzrl audit show` counts, pages through large logs without the older files, and prints "
    "CSV without formulas",
)
def test_decisions_are_counted_by_several_fields(log):
    counts = json.loads(show(log, "--count", "decision,rule", "--who", "team-a", "--json"))
    assert counts == [
        {"decision": "draft", "rule": "-", "count": 7},
        {"decision": "revised", "rule": "-", "count": 7},
        {"decision": "refused", "rule": "harm/weapons", "count": 6},
    ]
    lines = show(log, "--count", "day").splitlines()
    assert [line.split() for line in lines] == [
        ["day", "count"],
        ["2026-11-01", "24"],
        ["2026-11-02", "6"],
    ]
    rows = list(csv.reader(io.StringIO(show(log, "--count", "bundle", "--csv"))))
    assert rows == [["bundle", "count"], ["b0", "10"], ["b1", "10"], ["b2", "10"]]


def test_a_field_that_cannot_be_counted_is_an_error_that_lists_those_that_can(log):
    with pytest.raises(InputError, match="choose from decision, reason, who"):
        tally(read_entries(log), ["prompt"])
    assert all(tally(read_entries(log), [name]).total() >= 30 for name in COUNTED)


@pytest.mark.promise(
    "Audit",
    "`waltzrl audit show` counts, pages through large logs without the older files, and prints "
    "CSV without formulas",
)
def test_a_table_has_the_cause_of_each_decision_and_no_formula(log):
    rows = list(csv.DictReader(io.StringIO(show(log, "--csv"))))
    assert len(rows) == 30
    assert (
        rows[2]
        | {
            "time": "2026-11-01T02:00:00.000000+00:00",
            "decision": "refused",
            "rule": "harm/weapons",
            "category": "weapons",
            "risk": "0.93",
            "model_risk": "0.9",
            "rules_risk": "0.95",
        }
        == rows[2]
    )
    assert rows[3]["model"] == "'=cmd()"  # a spreadsheet would run it
    assert rows[7]["failure"] == "timeout"


@pytest.mark.promise("Audit", "A decision's page says why, and leads to the collaboration")
def test_a_page_says_why_and_where_the_texts_are(log):
    page = show(log, "r8")
    why = next(line for line in page.splitlines() if line.startswith("  why "))
    assert why.split(maxsplit=1)[1] == (
        "refusal; rules harm/weapons, category weapons, risk 0.93 (model 0.9, rules 0.95)"
    )
    assert "\n    overrefusal_probability -\n" in page
    assert "/desk/collaborations/r8" in page
    assert f"waltzrl audit show {log} r8 --contents" in page
    assert "no review by the model: timeout" in show(log, "r7")


@pytest.mark.promise("Audit", "A decision's page says why, and leads to the collaboration")
def test_the_texts_are_shown_where_they_are_kept(log):
    page = show(log, "r8", "--contents")
    said = ("How do I kill a process?", "I cannot.", "Answer it.", "Use kill.")
    assert all(f"\n{text}\n" in f"{page}\n" for text in said)
    found = json.loads(show(log, "r8", "--contents", "--json"))
    assert found["contents"]["r8"][0]["draft"]["text"] == "I cannot."


@pytest.mark.promise(
    "Audit", "Erased texts are told from texts that were never kept, and the log verifies as before"
)
@pytest.mark.promise(
    "Evidence of a release",
    "Erased texts are told from texts that were never kept by a tombstone that the log's key "
    "signed",
)
def test_erased_texts_are_told_from_texts_that_were_never_kept(log):
    key = log.with_name("audit.key")
    given = ("--contents", "--key", str(key))
    assert erase_contents(log, signing_key(key), "", {"r8"}) == 1
    page = show(log, "r8", *given)
    assert "the texts of r8 were kept, and were erased on 20" in page
    assert "(the log's key has signed this)" in page
    found = json.loads(show(log, "r8", *given, "--json"))
    assert found["contents"] == {"r8": []}
    assert (found["removed"]["r8"]["why"], found["removed"]["r8"]["signed"]) == ("erasure", True)
    (path,) = (path for path in log.glob("contents-*") if b'"why":"erasure"' in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"why":"erasure"', b'"why":"expiry" '))
    assert "NOT SIGNED by the log's key" in show(log, "r8", *given)
    assert "not checked, because" in show(log, "r8", "--contents", "--key", "nowhere.key")
    path.unlink()
    assert "no texts of r8 were kept: none are beside this log" in show(log, "r8", *given)


def test_what_could_not_be_read_is_shown_as_the_model_wrote_it(tmp_path):
    turn = round_of((), "", "unreadable")
    unreadable = replace(turn.feedback, reply=Reply(text="What a lovely day."))
    with open_log(tmp_path, contents=unchanged) as log:
        collaboration = replace(COLLABORATION, rounds=(replace(turn, feedback=unreadable),))
        log_decision(log, "r1", collaboration)
    assert "What a lovely day." in show(tmp_path / "log", "r1", "--contents")


def test_a_clients_id_finds_the_texts_too(log):
    page = show(log, "shop-17", "--contents")
    assert "record 6" in page
    assert "Use kill." in page


def test_what_matches_nothing_is_said(log):
    assert show(log, "--who", "nobody") == "no record matches\n"
    assert json.loads(show(log, "--who", "nobody", "--json")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", "2026-11-30T10:30:00.000000+00:00"),
        ("2h", "2026-11-30T10:00:00.000000+00:00"),
        ("1.5d", "2026-11-29T00:00:00.000000+00:00"),
        ("2w", "2026-11-16T12:00:00.000000+00:00"),
        ("2026-11-30", "2026-11-30T00:00:00.000000+00:00"),
        ("2026-11-30T12:00+01:00", "2026-11-30T11:00:00.000000+00:00"),
    ],
)
def test_times_are_points_or_durations_back_from_now(text, expected):
    assert moment(text, datetime(2026, 11, 30, 12, tzinfo=UTC)) == expected


@pytest.mark.parametrize("text", ["yesterday", "-2h", "2y", "2026-13-01", "99999999w"])
def test_what_is_no_time_is_an_error_with_examples(text):
    with pytest.raises(InputError, match="need one such as 2026-11-30"):
        moment(text, datetime.now(UTC))


def test_texts_of_users_and_models_send_no_commands_to_the_terminal(tmp_path):
    hidden = replace(
        COLLABORATION,
        prompt=replace(
            COLLABORATION.prompt,
            messages=(replace(COLLABORATION.prompt.messages[0], content="one\x1b[2J\ntwo"),),
        ),
    )
    with open_log(tmp_path, contents=unchanged) as log:
        log.append(structs.replace(exchange("r1", hidden), model="m\x1b]0;x\x07"), hidden.prompt)
    folder = tmp_path / "log"
    texts = show(folder, "r", "--contents")
    assert "\none�[2J\ntwo\n" in texts
    assert "m�]0;x�" in texts
    assert "\x1b" not in texts + show(folder, "--count", "model")
