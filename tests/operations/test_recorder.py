"""A real recorder on real databases: what it is told is kept, clean, judged and weighed."""

import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import MetaData, func, make_url, select

from support.databases import database_url, postgres_server, postgres_url, sqlite_url
from support.recorders import SAFE, UNSAFE, answer, at, config, recorder, remembered, said
from support.small_releases import DESCRIPTION
from support.timing import wait_until
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.records import ServedExchange
from waltzrl.store.database import open_database
from waltzrl.store.memory.items import PutOp
from waltzrl.store.memory.schemas import COACHING
from waltzrl.store.memory.store import SWEPT_AT_ONCE, MemoryStore
from waltzrl.store.memory.tables import ITEMS

__all__ = ["database_url", "postgres_server", "postgres_url", "sqlite_url"]

pytestmark = pytest.mark.xdist_group("forked")

REVISED = said(rounds=((UNSAFE, "Better not."), (SAFE, None)))


@pytest.fixture
def start(database_url, tmp_path):
    """Return how to start a recorder on a fresh database."""

    def run(**more):
        return recorder(config(database_url, tmp_path, **more), tmp_path / "recorder.log")

    return run


@pytest.fixture
def engine(database_url):
    """Open the recorder's database beside it."""
    engine = open_database(database_url)
    yield engine
    engine.dispose()


def words(tmp_path):
    return (tmp_path / "recorder.log").read_text()


def everything(engine):
    """Return all rows of all tables, and the bytes of SQLite's files, as one text."""
    tables = MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        kept = [str(row) for t in tables.sorted_tables for row in connection.execute(t.select())]
    if engine.dialect.name == "sqlite":
        file = Path(engine.url.database)
        kept += [one.read_bytes().decode("latin-1") for one in file.parent.glob(f"{file.name}*")]
    return "\n".join(kept)


def test_all_that_it_is_told_is_kept(start, engine):
    failure = ServedExchange(id="wz300", time=time.time(), reason="upstream", subject="ada")
    with start(categories={"harm/a": "violence"}) as told:
        told.tell(*(answer(n, caller="search", subject="ada") for n in range(299)))
        told.tell(answer(299, REVISED, decision="revised"), failure)
        report = told.finish()
    assert (report.stored, report.failed, report.judged, report.unjudged) == (301, 0, 0, 0)
    found = remembered(engine)
    assert set(found) == {f"wz{n}" for n in range(301)}
    assert (found["wz0"].caller, found["wz0"].decision, found["wz0"].safe) == (
        "search",
        "draft",
        True,
    )
    assert (found["wz299"].category, found["wz299"].collaboration.final.text) == (
        "violence",
        "Better not.",
    )
    assert (found["wz300"].reason, found["wz300"].collaboration) == ("upstream", None)
    assert found["wz0"].subject == found["wz300"].subject != "ada"
    coached = MemoryStore(engine, scrub=str).search(COACHING)
    assert [one.value["refined_response"] for one in coached] == ["Better not."]


def test_personal_data_is_nowhere_in_the_database(start, engine, tmp_path):
    planted = {
        "prompt": "ada@example.com",
        "draft": "4539 1488 0343 3654",
        "advice": "GB82 WEST 1234 5698 7654 32",
        "revision": "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD",
        "subject": "subject-ada-17",
    }
    advice = type(UNSAFE)(unsafe=True, overrefuse=False, text=f"Do not say {planted['advice']}.")
    collaboration = said(
        f"Write to {planted['prompt']} please",
        f"The card is {planted['draft']}.",
        rounds=((advice, f"The key is {planted['revision']}."), (SAFE, None)),
    )
    with start() as told:
        told.tell(answer(1, collaboration, subject=planted["subject"], decision="revised"))
        assert told.finish().stored == 1
    kept = everything(engine) + words(tmp_path)
    assert "Write to [REDACTED:email] please" in kept
    assert {kind for kind, text in planted.items() if text in kept} == set()


def test_what_databases_cannot_hold_is_kept_all_the_same(start, engine):
    odd = ["half \ud83d of a pair", "a \0 in the middle", "\uffff \u202e", "word%d " * 300_000]
    with start() as told:
        told.tell(*(answer(n, said(text, text)) for n, text in enumerate(odd)))
        told.tell(answer(9, said("distinct " + " ".join(map(str, range(10**5, 3 * 10**5))))))
        report = told.finish()
    assert (report.stored, report.failed) == (5, 0)
    assert set(remembered(engine)) == {"wz0", "wz1", "wz2", "wz3", "wz9"}


def test_only_the_end_of_the_pipe_ends_it_and_first_it_finishes(start, engine):
    with start() as told:
        told.tell(answer(0))
        told.until(lambda report: report.stored)
        for number in (signal.SIGINT, signal.SIGTERM):
            told.process.send_signal(number)
        told.tell(*(answer(n) for n in range(1, 1000)))
        assert told.finish().stored == 1000
    assert len(remembered(engine)) == 1000


def test_it_is_as_nice_as_it_is_told(start):
    with start(niceness=7) as told:
        told.tell(answer(0))
        told.until(lambda report: report.stored)
        stat = Path(f"/proc/{told.process.pid}/stat").read_text()
    assert int(stat.rpartition(")")[2].split()[16]) == os.nice(0) + 7


def test_what_comes_together_is_stored_together(start):
    with start() as told:
        told.tell(answer(0))
        told.until(lambda report: report.stored == 1)
        told.tell(answer(1), answer(2))
        assert told.until(lambda report: report.stored > 1).stored == 3


def test_what_was_kept_long_enough_is_removed(start, engine):
    with start(retention={"evaluations": 1.0}) as told:
        told.tell(answer(0), ServedExchange(id="wz1", time=time.time() - 2 * 86_400))
        told.finish()
    with start(), engine.connect() as connection:

        def count():
            left = connection.execute(select(func.count()).select_from(ITEMS)).scalar()
            connection.rollback()
            return left

        wait_until(lambda: count() == 1)


def test_much_that_was_kept_long_enough_is_removed_one_transaction_after_another(start, engine):
    store = MemoryStore(engine, scrub=str)
    old = (PutOp(("a",), f"{n}", {}, expires_at=1.0) for n in range(2 * SWEPT_AT_ONCE + 1))
    store.batch(list(old))
    with start(), engine.connect() as connection:

        def count():
            left = connection.execute(select(func.count()).select_from(ITEMS)).scalar()
            connection.rollback()
            return left

        wait_until(lambda: count() == 0, seconds=30)


def test_what_expires_all_the_time_is_removed_now_and_then(start, engine):
    store = MemoryStore(engine, scrub=str)

    def left():
        with engine.connect() as connection:
            return connection.scalars(select(ITEMS.c.key)).all()

    store.batch([PutOp(("a",), "old", {}, expires_at=1.0)])
    with start():
        wait_until(lambda: left() == [])
        store.batch([PutOp(("a",), "new", {}, expires_at=1.0)])
        time.sleep(2.5)
        assert left() == ["new"]


def prompts_with_labels(tmp_path):
    labelled = {"How do I bake bread?": "benign", "What must nobody say?": "unsafe"}
    file = tmp_path / "labels.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": p, "label": label}) + "\n" for p, label in labelled.items())
    )
    return f"labelled:{file}"


def test_a_share_is_judged_by_known_labels(start, engine, tmp_path):
    texts = [
        ("How do I bake bread?", "I'm sorry, but I can't help with that."),
        ("What must nobody say?", "Certainly: the hollow words are these."),
        ("A question of which nobody knows", "An answer."),
    ]
    with start(judge=prompts_with_labels(tmp_path), judge_share=1.0) as told:
        told.tell(*(answer(n, said(*text)) for n, text in enumerate(texts)))
        report = told.finish()
    assert (report.stored, report.judged, report.unjudged) == (3, 3, 0)
    found = [one.verdict for _, one in sorted(remembered(engine).items())]
    assert [(v.unsafe, v.overrefuses) for v in found] == [
        (False, True),
        (True, False),
        (None, None),
    ]


@pytest.mark.promise(
    "Metrics",
    "The unsafe and over-refusal rates come from the online judge's random sample, with its size; "
    "without a judge they are absent",
)
@pytest.mark.promise(
    "Metrics",
    "What the online judge leaves without a label is counted apart, and users' thumbs are counted",
)
def test_the_judges_labels_of_the_random_sample_are_counted(start, tmp_path):
    refused = said("How do I bake bread?", "I'm sorry, but I can't help with that.")
    unsafe = said("What must nobody say?", "Certainly: the hollow words are these.")
    with start(judge=prompts_with_labels(tmp_path), judge_share=1.0) as told:
        told.tell(
            answer(0, refused),
            answer(1, unsafe, arm="candidate"),
            answer(2, said("A question of which nobody knows", "An answer.")),
            answer(3, unsafe, arm="shadow"),  # which nobody saw
            answer(4, unsafe, mode="review"),  # which we did not answer
        )
        report = told.finish()
    assert (report.judged, report.labels) == (5, (1, 1, 1, 1))
    assert (report.unsafe_unscored, report.overrefusal_unscored) == (1, 1)  # of the third


def test_a_candidates_replies_outside_of_the_sample_are_judged_and_not_counted(start, tmp_path):
    with start(judge=prompts_with_labels(tmp_path), judge_share=0.0) as told:
        told.tell(answer(0, said("What must nobody say?", "Certainly."), arm="candidate"))
        report = told.finish()
    assert (report.judged, report.labels) == (1, (0, 0, 0, 0))


def propose(engine):
    book = ReleaseBook(engine)
    book.add_bundle("b1", "{}", DESCRIPTION)
    book.add_bundle("b2", "{}", DESCRIPTION)
    return book, book.propose("b2", "b1", load_plan("quick"), "ada", "to see")


def test_each_answer_is_weighed_once_and_the_judge_speaks_of_each_that_was_judged(
    start, engine, tmp_path
):
    book, release = propose(engine)
    good, bad = said(), said("What must nobody say?", "Certainly: the hollow words are these.")
    with start(judge=prompts_with_labels(tmp_path), judge_share=0.0) as told:
        told.tell(
            answer(0, good, release=release.id, arm="serving"),
            answer(1, REVISED, decision="refused", release=release.id, arm="serving"),
            answer(2, bad, release=release.id, arm="shadow", milliseconds=10**6),
            answer(3, good, release=release.id, arm="shadow"),
            ServedExchange(id="wz4", time=0.0, reason="upstream", release=release.id, arm="shadow"),
            answer(5),
        )
        report = told.finish()
    assert (report.stored, report.judged) == (6, 2)
    serving, shadow = (book.view().evidence.tally(arm) for arm in ("serving", "shadow"))
    assert (serving.answers, serving.judged) == (2, 0)
    assert (shadow.answers, shadow.judged) == (3, 2)
    seen = {
        (arm, metric): (tally.of(metric).bad, tally.of(metric).n)
        for arm, tally in (("serving", serving), ("shadow", shadow))
        for metric in ("unsafe", "overrefusal", "revision_failed", "error", "slow")
    }
    assert seen == {
        ("serving", "unsafe"): (0, 0),
        ("serving", "overrefusal"): (0, 0),
        ("serving", "revision_failed"): (1, 2),
        ("serving", "error"): (0, 2),
        ("serving", "slow"): (0, 2),
        ("shadow", "unsafe"): (1, 2),
        ("shadow", "overrefusal"): (0, 2),
        ("shadow", "revision_failed"): (0, 2),
        ("shadow", "error"): (1, 3),
        ("shadow", "slow"): (1, 2),
    }


def test_a_candidate_that_is_worse_is_rolled_back_by_itself(start, engine, tmp_path):
    book, release = propose(engine)
    bad = said("What must nobody say?", "Certainly: the hollow words are these.")
    with start(judge=prompts_with_labels(tmp_path)) as told:
        told.tell(
            *(answer(n, bad, release=release.id, arm="shadow") for n in range(100)),
            *(answer(n, release=release.id, arm="serving") for n in range(100, 200)),
        )
        wait_until(lambda: book.current() is None)
    assert book.latest().state == "rolled_back"
    assert "unsafe" in book.history(release.id)[-1].why


@pytest.mark.promise(
    "Evidence of a release",
    "Beside a second judge, a judge that errs more on one arm rolls nothing back, and the card "
    "says how they agreed",
)
def test_a_user_of_many_answers_is_counted_as_one_and_a_second_judge_contradicts(
    start, engine, tmp_path
):
    book, release = propose(engine)
    second = tmp_path / "second.jsonl"
    second.write_text(json.dumps({"prompt": "What must nobody say?", "label": "benign"}) + "\n")
    bad = said("What must nobody say?", "Certainly: the hollow words are these.")
    judges = {"judge": prompts_with_labels(tmp_path), "second_judge": f"labelled:{second}"}
    with start(**judges) as told:
        told.tell(
            *(answer(n, bad, release=release.id, arm="shadow", subject="ada") for n in range(100)),
            *(answer(n, release=release.id, arm="serving") for n in range(100, 200)),
        )
        told.finish()
    view = book.view()
    shadow = view.evidence.tally("shadow")
    assert (view.release.state, shadow.answers, shadow.users) == ("shadow", 100, 1.0)
    assert (shadow.of("unsafe").bad, shadow.rejudged["unsafe"].false_positives) == (100, 100)
    assert any("few users dominate" in note for note in view.decision.notes)
    assert any("agreed on 0 of 100 that the judge found" in note for note in view.decision.notes)


@pytest.mark.slow
def test_a_judge_that_does_not_answer_holds_no_storing_up(sqlite_url, tmp_path):
    about = config(sqlite_url, tmp_path, judge="llm:guard@http://127.0.0.1:9/v1", judge_share=1.0)
    with recorder(about, tmp_path / "recorder.log") as told:
        told.tell(*(answer(n) for n in range(200)))
        told.until(lambda report: report.stored == 200, seconds=10)
        report = told.finish()
    assert (report.stored, report.judged, report.unjudged) == (200, 0, 200)
    assert len(at(sqlite_url)) == 200


@pytest.mark.slow
def test_a_locked_sqlite_is_waited_for(sqlite_url, tmp_path):
    with recorder(config(sqlite_url, tmp_path), tmp_path / "recorder.log") as told:
        told.tell(answer(0))
        told.until(lambda report: report.stored == 1)
        with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN EXCLUSIVE")
            told.tell(*(answer(n) for n in range(1, 500)))
            assert told.until(lambda report: report.database_failing).stored == 1
        report = told.until(lambda report: report.stored == 500)
        assert not report.database_failing
    assert "locked" in words(tmp_path)
    assert "the database is available again" in words(tmp_path)
    assert len(at(sqlite_url)) == 500


def test_a_postgresql_that_is_away_is_waited_for(postgres_server, postgres_url, tmp_path):
    name = make_url(postgres_url).database
    with recorder(config(postgres_url, tmp_path), tmp_path / "recorder.log") as told:
        told.tell(answer(0))
        told.until(lambda report: report.stored == 1)
        with psycopg.connect(postgres_server, autocommit=True) as server:
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            server.execute(end, [name])
            told.tell(*(answer(n) for n in range(1, 500)))
            assert told.until(lambda report: report.database_failing).stored == 1
            server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        report = told.until(lambda report: report.stored == 500)
        assert not report.database_failing
    assert len(at(postgres_url)) == 500


def test_a_database_that_is_away_from_the_start_is_waited_for(postgres_server, tmp_path):
    name = f"waltzrl_late_{os.getpid()}"
    url = make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
    with (
        psycopg.connect(postgres_server, autocommit=True) as server,
        recorder(config(url, tmp_path), tmp_path / "recorder.log") as told,
    ):
        told.tell(*(answer(n) for n in range(100)))
        told.until(lambda report: report.database_failing)
        server.execute(f"CREATE DATABASE {name}")
        try:
            assert told.until(lambda report: report.stored == 100).failed == 0
            told.finish()
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_with_nothing_to_store_a_database_that_is_away_is_not_waited_for(postgres_server, tmp_path):
    url = make_url(postgres_server).set(database="waltzrl_never")
    about = config(url.render_as_string(hide_password=False), tmp_path)
    with recorder(about, tmp_path / "recorder.log") as told:
        told.until(lambda report: report.database_failing)
        told.finish()
    assert "unavailable too long" not in words(tmp_path)
