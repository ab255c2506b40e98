"""Entries as text for people."""

from waltzrl.audit.record import DecisionRecord, Entry, RoundRecord


def one_line(entry: Entry) -> str:
    """Return when, what and, of a decision, whose."""
    start = f"{entry.seq:>8}  {entry.time}  "
    if entry.decision is None:
        missing = f": {entry.unaudited} decisions are not logged" if entry.unaudited else ""
        said = "".join(f" {name}={value}" for name, value in (entry.notice or {}).items())
        return f"{start}({entry.event}{missing}{said})"
    record = entry.decision
    return f"{start}{record.decision:<8}  {record.id}  {record.who or '-'}  {record.reason}"


def one_page(entry: Entry) -> str:
    """Return every field on a line of its own."""
    hidden = {"seq", "event", "decision", "unaudited"}
    if entry.decision is not None:
        hidden.add("notice")
    lines = [f"record {entry.seq}", *_lines(entry, "", hidden)]
    if entry.decision is not None:
        lines += _lines(entry.decision, "", {"rounds"})
        for number, turn in enumerate(entry.decision.rounds, start=1):
            lines += [f"  round {number}", *_lines(turn, "  ", set())]
    return "\n".join(lines)


def _lines(of: Entry | DecisionRecord | RoundRecord, indent: str, but: set[str]) -> list[str]:
    shown = ((name, getattr(of, name)) for name in of.__struct_fields__ if name not in but)
    return [f"{indent}  {name:<14}{_said(value)}" for name, value in shown]


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)
