"""Recall on personal data that the code of others made up, by kind and region, and in files."""

import json
from collections import Counter

import pytest

from support.faker_corpus import CORPUS
from support.small_erasures import AN_HOUR_AGO, Site, export_all
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, ServedExchange
from waltzrl.store.audit.opening import log_settings
from waltzrl.store.audit.settings import AuditConfig
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.database import open_database
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.opening import open_redaction
from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.settings import PrivacyConfig

LINES = [json.loads(line) for line in CORPUS.read_text().splitlines()]
CHECKED = ("credit_card", "iban", "national_id", "email", "ip_address", "phone")
HINTED = ("personal_name", "secret", "date_of_birth", "address", "phone announced")


def is_covered(line, scanner):
    """Whether every letter and digit of the planted piece lies in a finding."""
    covered = {n for f in scanner.find(line["text"]) for n in range(f.start, f.end)}
    places = range(line["start"], line["end"])
    return all(n in covered or not line["text"][n].isalnum() for n in places)


@pytest.fixture(scope="module")
def shares():
    """(kind, region) -> planted and found, with "all" for every region together."""
    scanner = PersonalDataScanner()
    planted, found = Counter(), Counter()
    for line in LINES:
        for region in (line["region"], "all"):
            planted[line["kind"], region] += 1
            found[line["kind"], region] += is_covered(line, scanner)
    return {key: found[key] / planted[key] for key in planted}


@pytest.mark.promise(
    "Personal data",
    "Of what others' code made up for ten countries 95 in 100 of forms of their own and 90 in 100 "
    "announced ones are found, and nothing of it stands in clear in any file",
)
@pytest.mark.parametrize("kind", CHECKED)
def test_of_what_has_a_form_of_its_own_95_in_100_are_found(shares, kind):
    assert shares[kind, "all"] >= 0.95


@pytest.mark.promise(
    "Personal data",
    "Of what others' code made up for ten countries 95 in 100 of forms of their own and 90 in 100 "
    "announced ones are found, and nothing of it stands in clear in any file",
)
@pytest.mark.parametrize("kind", HINTED)
def test_of_what_is_announced_90_in_100_are_found(shares, kind):
    assert shares[kind, "all"] >= 0.9


@pytest.mark.promise(
    "Personal data",
    "Of what others' code made up for ten countries 95 in 100 of forms of their own and 90 in 100 "
    "announced ones are found, and nothing of it stands in clear in any file",
)
def test_no_region_is_worse_than_nine_in_ten(shares):
    assert {key for key, share in shares.items() if share < 0.9} == set()
    assert len({region for _kind, region in shares}) == 11


def exchange_with(line, number):
    text, piece = line["text"], line["text"][line["start"] : line["end"]]
    reply = Reply(text=f"You said: {text}", reasoning=text)
    advice = Feedback(unsafe=False, overrefuse=True, text=text, reasoning=text, risk=0.1)
    review = Round(feedback=Feedback(unsafe=False, overrefuse=False, risk=0.0))
    message = Message(role="user", content=f"{text}\nWhat now?")
    return ServedExchange(
        id=f"wz{number}",
        time=AN_HOUR_AGO,
        subject=piece,
        may_learn=True,
        decision="revised",
        collaboration=Collaboration(
            prompt=Prompt(id=f"wz{number}", messages=(message,)),
            draft=reply,
            rounds=(Round(feedback=advice, revision=reply), review),
        ),
    )


@pytest.mark.promise(
    "Personal data",
    "Of what others' code made up for ten countries 95 in 100 of forms of their own and 90 in 100 "
    "announced ones are found, and nothing of it stands in clear in any file",
)
def test_nothing_planted_stands_in_clear_in_any_file(tmp_path, sqlite_url):
    """One piece of each kind and region: database, WAL, decisions, contents and exports."""
    lines = list({(line["kind"], line["region"]): line for line in LINES}.values())
    site = Site(tmp_path, sqlite_url, tmp_path / "log", open_database(sqlite_url))
    store = MemoryStore(site.engine, scrub=open_redaction().scrub)
    memory = SafetyMemory(store, site.digest, {"evaluations": 1000, "coaching": 1000}, {})
    exchanges = [exchange_with(line, number) for number, line in enumerate(lines)]
    memory.remember(exchanges)
    settings = log_settings(AuditConfig(folder=site.log, contents=True), PrivacyConfig())
    with LocalLog.open(site.log, key=tmp_path / "audit.key", settings=settings) as log:
        for exchange in exchanges:
            log.append(exchange, exchange.collaboration.prompt)
    exported = export_all(site, memory)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "memory.db", "memory.db-wal", "decisions-000001.jsonl", "contents-000001.jsonl",
        *(path.name for path in exported),
    }  # fmt: skip
    written = {path.name: path.read_bytes() for path in files}
    assert b"What now?" in written["memory.db"] + written["memory.db-wal"]
    left = [
        (name, line["kind"], line["region"])
        for line in lines
        for form in forms(line["text"][line["start"] : line["end"]])
        for name, content in written.items()
        if form in content
    ]
    assert left == []


def forms(piece):
    """Return the bytes of a piece, plain and in JSON with escapes."""
    return {piece.encode(), json.dumps(piece)[1:-1].encode()}
