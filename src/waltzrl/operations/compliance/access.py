"""Writes a person's copy of everything that is kept of them, as GDPR Article 15 asks.

records_of, log of decisions, notices -> index.html to read, records.jsonl with every record

The records are those that `waltzrl.operations.compliance.erasure` erases, found by the same
function. What an erasure leaves, because it holds no text, is shown too, and why.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from msgspec import structs

from waltzrl.errors import InputError, MissingExtraError
from waltzrl.foundation.files import disk_errors, whole_folder, write_bytes, write_json
from waltzrl.foundation.texts import moment
from waltzrl.operations.compliance.exports import exchange_of
from waltzrl.operations.compliance.subject import (
    NAMESPACES,
    SearchedPlaces,
    SubjectRecord,
    copies_with,
    missing_exports,
    notify_idle_logs,
    records_of,
)
from waltzrl.records import Collaboration
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.record import encode_json
from waltzrl.store.memory.erasure import ACCESS_MANIFEST, note_access, withdraw_export
from waltzrl.store.memory.items import Json
from waltzrl.store.memory.schemas import SafetyEvaluation
from waltzrl.store.memory.search import texts_in
from waltzrl.store.notices import notices_after
from waltzrl.store.privacy.redaction import find_redacted_kinds

try:
    from waltzrl.foundation.html import page_environment
except ModuleNotFoundError as missing:
    raise MissingExtraError("a person's copy", "jinja2", "flywheel") from missing

RECORDS, PAGE = "records.jsonl", "index.html"
DAY = 86_400.0
NAMES = dict(zip(NAMESPACES, ("exchange", "coaching session", "training sample"), strict=True))
"""Namespace -> what one of its records is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """A line of `records.jsonl`: a record as it is kept."""

    store: str
    """`memory`, `releases`, `exports`, `contents`, `decisions` or `notices`."""
    location: str
    """Namespace, table, file or folder."""
    erasable: bool = False
    """Whether `waltzrl erase` removes it."""
    expires: str | None = None
    """UTC, ISO 8601; None for what is kept until it is erased, or stays."""
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Kind of personal data -> how many pieces of it were replaced before the record was stored."""
    record: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessResult:
    """What was written into a person's copy."""

    subject: str
    """Digest in the memory; empty if requests were looked for."""
    requests: tuple[str, ...]
    """Ids of the requests that were looked for."""
    found: Mapping[str, int]
    """Number of records in each place that an erasure would remove; those that it counts."""
    stays: Mapping[str, int]
    """Number of records in each place that an erasure would leave."""
    redacted: Mapping[str, int]
    """Kind of personal data -> pieces that were replaced before they were stored."""
    copies: tuple[str, ...]
    """Backups and earlier copies that hold the person too."""
    missing: tuple[str, ...]
    """Exports that no longer are where they were written."""

    @property
    def records(self) -> int:
        return sum(self.found.values()) + sum(self.stays.values())


class KeptExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange to read, and every record that was made of it."""

    id: str
    time: float | None
    """Seconds since the epoch; None where only later records are left."""
    turns: Sequence[tuple[str, str]]
    """Who said something, and what."""
    facts: Mapping[str, str]
    """The decision, the judge's verdict and the labels, by a reader's words for them."""
    records: Sequence[KeptRecord]


def write_access(places: SearchedPlaces, folder: Path, contents_days: float) -> AccessResult:
    """Write a person's copy into a new folder, if anything is kept; notify all gateways and logs.

    The memory knows the folder from then on: `waltzrl erase` names it until it is deleted.

    Args:
        places: where to look.
        folder: is created, for its owner only.
        contents_days: how long the gateway keeps contents beside its log.

    Raises:
        InputError: the folder exists or cannot be written, or a file is damaged.
        StorageError: the database is unavailable.
        AuditError: one of the logs was altered; the copy itself is written.
    """
    if folder.exists():
        raise InputError(f"{folder} exists; a person's copy needs a new folder")
    erasable = [_make_erasable_record(record, contents_days) for record in records_of(places)]
    staying = [*_find_decisions(places), *_find_notices(places, erasable)]
    result = AccessResult(
        subject=places.digest,
        requests=tuple(sorted(places.requests)),
        found=dict(Counter(kept.location for kept in erasable)),
        stays=dict(Counter(kept.location for kept in staying)),
        redacted=dict(sum((Counter(kept.redacted) for kept in erasable), Counter())),
        copies=tuple(f"{path}: {kind}" for path, kind in copies_with(places)),
        missing=missing_exports(places),
    )
    if not result.records:
        return result
    manifest = folder / ACCESS_MANIFEST
    # Before a file is written: a crash must not leave a copy that no erasure knows of.
    note_access(places.memory, manifest, places.digest, len(places.requests), result.records)
    try:
        with whole_folder(folder) as part, disk_errors(folder):
            part.chmod(0o700)
            lines = b"".join(encode_json(kept) + b"\n" for kept in (*erasable, *staying))
            write_bytes(part / RECORDS, lines, private=True)
            page = _render_page(result, erasable, staying)
            # An agent may write half of a surrogate pair, which UTF-8 cannot hold.
            write_bytes(part / PAGE, page.encode("utf-8", "replace"), private=True)
            write_json(part / ACCESS_MANIFEST, msgspec.to_builtins(result))
    except BaseException:
        withdraw_export(places.memory, manifest)
        raise
    notify_idle_logs(places, "access", result.records)
    return result


def _make_erasable_record(record: SubjectRecord, contents_days: float) -> KeptRecord:
    expires_at = record.expires_at
    if record.store == "contents":
        written = record.value["time"]
        assert isinstance(written, float | int)
        expires_at = written + contents_days * DAY
    return KeptRecord(
        store=record.store,
        location=record.location,
        erasable=True,
        expires=None if expires_at is None else _format_iso_time(expires_at),
        redacted=dict(Counter(find_redacted_kinds(texts_in(dict(record.value))))),
        record=record.value,
    )


def _find_decisions(places: SearchedPlaces) -> Iterator[KeptRecord]:
    """Yield the person's decisions in the logs."""
    for folder, digest in places.logs.items():
        for entry in read_entries(folder):
            decision = entry.decision
            if decision is None:
                continue
            of_subject = bool(digest) and decision.subject == digest
            if of_subject or decision.id.partition("/")[0] in places.requests:
                fields = {"time": entry.time, "seq": entry.seq, **structs.asdict(decision)}
                location, record = f"{folder}: decisions", msgspec.to_builtins(fields)
                yield KeptRecord(store="decisions", location=location, record=record)


def _find_notices(places: SearchedPlaces, kept: Sequence[KeptRecord]) -> Iterator[KeptRecord]:
    """Yield the notices of the person's erasures and copies, and of labels of their exchanges."""
    ids = {exchange_of(each.record) for each in kept}
    for notice in notices_after(places.memory, 0):
        of_subject = bool(places.digest) and notice.body.get("subject") == places.digest
        if of_subject or notice.body.get("evaluation") in ids:
            record = {"time": _format_iso_time(notice.time), "kind": notice.kind, **notice.body}
            yield KeptRecord(store="notices", location="notices", record=record)


def _render_page(
    result: AccessResult, erasable: Sequence[KeptRecord], staying: Sequence[KeptRecord]
) -> str:
    return _environment.get_template("access.html").render(
        result=result,
        written=_format_iso_time(time.time()),
        places=_summarize_places(erasable),
        exchanges=_group_exchanges(erasable),
        erasable=erasable,
        staying=staying,
    )


def _summarize_places(kept: Sequence[KeptRecord]) -> list[dict[str, str | int]]:
    """Return a row for each place: what is there, how many, and when they expire."""
    places: dict[tuple[str, str], list[KeptRecord]] = {}
    for record in kept:
        places.setdefault((record.store, record.location), []).append(record)
    return [
        {
            "store": store,
            "location": location,
            "count": len(records),
            "expires": _format_span([each.expires for each in records]),
        }
        for (store, location), records in places.items()
    ]


def _format_span(times: Sequence[str | None]) -> str:
    known = sorted(moment[:10] for moment in times if moment is not None)
    if not known:
        return "never: kept until erased"
    span = known[0] if known[0] == known[-1] else f"{known[0]} to {known[-1]}"
    return span if len(known) == len(times) else f"{span}, others when erased"


def _group_exchanges(kept: Sequence[KeptRecord]) -> list[KeptExchange]:
    """Return what was said, an exchange at a time, the oldest first."""
    groups: dict[str, list[KeptRecord]] = {}
    for record in kept:
        if record.store != "releases":
            groups.setdefault(exchange_of(record.record), []).append(record)
    exchanges = [_build_exchange(id_, records) for id_, records in groups.items()]
    return sorted(exchanges, key=lambda exchange: (exchange.time or 0.0, exchange.id))


def _build_exchange(id_: str, records: Sequence[KeptRecord]) -> KeptExchange:
    """Show an exchange by its fullest record; `records` names the others."""
    by_namespace = {kept.location: kept.record for kept in records if kept.store == "memory"}
    contents = [kept.record for kept in records if kept.store == "contents"]
    evaluation = by_namespace.get(NAMESPACES[0])
    said = None
    facts: dict[str, str] = {}
    time_: float | None = None
    if evaluation is not None:
        served = msgspec.convert(dict(evaluation), SafetyEvaluation)
        said, time_, facts = served.collaboration, served.time, _list_served_facts(served)
    for content in contents[:1]:
        said = said or msgspec.convert(content["collaboration"], Collaboration)
        time_ = time_ if time_ is not None else float(str(content["time"]))
    turns = _list_turns(said) if said is not None else _loose_texts(records[0].record)
    return KeptExchange(id=id_, time=time_, turns=turns, facts=facts, records=records)


def _list_turns(said: Collaboration) -> list[tuple[str, str]]:
    turns: list[tuple[str, str]] = [
        (message.role, message.full_text) for message in said.prompt.messages
    ]
    turns.append(("draft", said.draft.full_text))
    for round_ in said.rounds:
        feedback = round_.feedback
        turns.append(("review", feedback.text or feedback.reasoning or "(no words)"))
        if round_.revision is not None:
            turns.append(("revision", round_.revision.full_text))
    return turns


def _loose_texts(record: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return the texts of a record whose exchange is gone, by the names of their fields."""
    return [
        (name.replace("_", " "), "\n".join(texts))
        for name, value in record.items()
        if (texts := list(texts_in(value)))
    ]


def _list_served_facts(served: SafetyEvaluation) -> dict[str, str]:
    """Return what was decided, judged and labelled, by the words of a reader."""
    labels = [
        f"{event.by}: "
        + ", ".join(
            f"{name} {value}"
            for name in ("reply", "request", "comment", "correction")
            if (value := getattr(event, name))
        )
        for event in served.labels
    ]
    verdict = served.verdict
    judged = "" if verdict is None else f"{verdict.judge}: unsafe: {_format_answer(verdict.unsafe)}"
    facts = {
        "decision": served.decision,
        "reason": served.reason,
        "safe, by the reviewer": "" if served.safe is None else _format_answer(served.safe),
        "category of the request": served.category,
        "judge": judged,
        "labels by people": "; ".join(labels),
        "the user's thumb": served.thumb or "",
        "model": served.model,
        "bundle": served.bundle,
        "may be trained on": _format_answer(served.may_learn),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _format_iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _format_answer(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[value]


def _name_records(records: Sequence[KeptRecord]) -> str:
    """Name the records that were made of an exchange, and say until when they are kept."""
    names = Counter(
        _kind_name(kept) + (f" until {kept.expires[:10]}" if kept.expires else "")
        for kept in records
    )
    return "; ".join(
        name if count == 1 else f"{count} times {name}" for name, count in names.items()
    )


def _kind_name(kept: KeptRecord) -> str:
    """Return what a record is called on the page."""
    if kept.store == "memory":
        return NAMES.get(kept.location, kept.location)
    if kept.store == "contents":
        return "text beside the audit log"
    return f"row of {Path(kept.location).name}"


_environment = page_environment(Path(__file__).with_name("templates"))
_environment.filters |= {
    "clock": partial(moment, form="%Y-%m-%d %H:%M:%S UTC"),
    "kept_as": _name_records,
}
