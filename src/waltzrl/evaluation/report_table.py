"""The report's numbers: the headline, the table, and what feedback did."""

from collections.abc import Sequence

from waltzrl.evaluation.escape import escape
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.metrics import Metrics, best, percent
from waltzrl.evaluation.terminal import HEADINGS

LOWER_IS_BETTER = {"asr", "orr", "ftr_general", "worsened", "harmed"}


def headline(table: Sequence[Metrics]) -> str:
    """Cards that set the best pattern against the first one, the reference."""
    first, winner = table[0], best(table)
    cards = [
        _card("Attacks that succeed", "ASR", first.asr, winner.asr),
        _card("Harmless requests refused", "ORR", first.orr, winner.orr),
        _card("F1 of safe and helpful", "F1", first.f1, winner.f1),
        _card("General answers correct", "capability", first.capability, winner.capability),
    ]
    against = f", against <b>{escape(first.pattern)}</b>" if winner is not first else ""
    lead = f'<p class="lead">Best F1: <b>{escape(winner.pattern)}</b>{against}.</p>'
    return f'{lead}<div class="cards">{"".join(cards)}</div>'


def results(table: Sequence[Metrics]) -> str:
    """The table: one line per pattern, each number with interval, n and unscored share."""
    winner = best(table)
    heads = "".join(f"<th>{heading}</th>" for heading in HEADINGS.values())
    lines = []
    for line in table:
        cells = "".join(_cell(line.table[column], column) for column in HEADINGS)
        chosen = ' class="best"' if line is winner else ""
        lines.append(f"<tr{chosen}><th>{escape(line.pattern)}{_errors(line)}</th>{cells}</tr>")
    return _table(f"<th>pattern</th>{heads}", lines)


def effects(table: Sequence[Metrics]) -> str:
    """What feedback did to drafts, and what a prompt cost."""
    heads = (
        "<th>pattern</th><th>drafts improved, unchanged, worsened</th>"
        "<th>of revised: improved</th><th>of revised: worsened</th><th>good drafts harmed</th>"
        "<th>tokens p50, p95</th><th>ms p50, p95</th>"
    )
    return _table(heads, [_effect_line(line) for line in table])


def _effect_line(line: Metrics) -> str:
    cells = (
        _cell(line.revisions_improved, "improved"),
        _cell(line.revisions_worsened, "worsened"),
        _cell(line.false_alarm_harm, "harmed"),
    )
    tokens = _two(line.tokens_p50, line.tokens_p95)
    milliseconds = _two(line.milliseconds_p50, line.milliseconds_p95)
    return (
        f"<tr><th>{escape(line.pattern)}</th><td>{_stack(line)}</td>{''.join(cells)}"
        f"<td>{tokens}</td><td>{milliseconds}</td></tr>"
    )


def _card(title: str, short: str, before: Estimate, after: Estimate) -> str:
    was = "" if before is after else f"<s>{percent(before.value)}</s> "
    interval = f"{percent(after.low)} to {percent(after.high)}" if after.n else "not measured"
    return (
        f'<div class="card"><h3>{title}</h3>'
        f'<p class="big">{was}{percent(after.value)}<small> %</small></p>'
        f"<p>{short}, 95 % interval {interval}<br>n&nbsp;{after.n}{_unscored(after)}</p>"
        f"{_cut(short, before, after)}</div>"
    )


def _cut(short: str, before: Estimate, after: Estimate) -> str:
    """How much of a bad rate went away; said only where it fell."""
    if short not in {"ASR", "ORR"} or not before.value or after.value is None:
        return ""
    cut = 1 - after.value / before.value
    return f'<p class="cut">{percent(cut)} % fewer</p>' if cut > 0 else ""


def _cell(estimate: Estimate, column: str) -> str:
    if estimate.value is None:
        return f'<td class="none">-<small>{_unscored(estimate)}</small></td>'
    low, high = percent(estimate.low), percent(estimate.high)
    kind = "down" if column in LOWER_IS_BETTER else "up"
    width = 100 * ((estimate.high or 0) - (estimate.low or 0))
    bar = (
        f'<span class="bar {kind}"><i style="left:{low}%;width:{width:.1f}%"></i>'
        f'<b style="left:{percent(estimate.value)}%"></b></span>'
    )
    return (
        f"<td>{percent(estimate.value)}{bar}"
        f"<small>{low} to {high}<br>n&nbsp;{estimate.n}{_unscored(estimate)}</small></td>"
    )


def _stack(line: Metrics) -> str:
    """One bar of three parts that make 100 %."""
    parts = [("good", line.improved), ("same", line.unchanged), ("bad", line.worsened)]
    if line.improved.n == 0:
        return '<span class="none">no feedback</span>'
    bars = "".join(f'<i class="{k}" style="width:{percent(e.value)}%"></i>' for k, e in parts)
    numbers = ", ".join(percent(estimate.value) for _, estimate in parts)
    note = f"n&nbsp;{line.improved.n}{_unscored(line.improved)}"
    return f'<span class="stack">{bars}</span><small>{numbers} %<br>{note}</small>'


def _unscored(estimate: Estimate) -> str:
    if not estimate.unscored:
        return ""
    rate = estimate.unscored / (estimate.n + estimate.unscored)
    return f"<br>{percent(rate)} % unscored"


def _errors(line: Metrics) -> str:
    return f'<small class="failed">{line.errors} failed</small>' if line.errors else ""


def _two(first: Estimate, second: Estimate) -> str:
    if first.value is None or second.value is None:
        return "-"
    return f"{first.value:,.0f}, {second.value:,.0f}"


def _table(heads: str, lines: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
