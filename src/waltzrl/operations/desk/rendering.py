"""Turns data into HTML: the templates' environment, and how numbers, times and names are written.

Templates escape everything, so that text by users and models stays text.
"""

from pathlib import Path

from waltzrl.evaluation.sample_correction import RateEstimate
from waltzrl.foundation.html import page_environment
from waltzrl.foundation.texts import moment, number

PAGES = (
    ("/desk", "Overview"),
    ("/desk/try", "Try"),
    ("/desk/collaborations", "Collaborations"),
    ("/desk/queues", "Queues"),
    ("/desk/trends", "Trends"),
    ("/desk/bundles", "Bundles"),
    ("/desk/plans", "Plans"),
    ("/desk/people", "People"),
    ("/desk/audit", "Audit"),
)
DASH = "\N{EN DASH}"
WORDS = {
    "overrefusal": "over-refusal",
    "unhelpful": "wrong or unhelpful",
    "unclear": "can\N{RIGHT SINGLE QUOTATION MARK}t tell",
}
"""Identifiers that are not their words."""


def render_page(template: str, **context: object) -> str:
    """Return a page; the context must hold every name that its template uses."""
    return _environment.get_template(template).render(context)


def percent(share: float) -> str:
    """Return a share with two significant digits: 0.31, 3.1, 31."""
    value = 100 * share
    # The bounds lie where rounding adds a digit: 9.95 would be written 10.0.
    digits = 0 if value >= 9.95 or value < 0.005 else 1 if value >= 0.95 else 2
    return f"{value:.{digits}f}"


def interval(rate: RateEstimate) -> str:
    """Return a rate's interval in percent."""
    return f"{percent(rate.low)}{DASH}{percent(rate.high)} %"


def points(share: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    sign = "+" if share > 0 else "\N{MINUS SIGN}" if share < 0 else ""
    return f"{sign}{percent(abs(share))}"


def duration(milliseconds: float | None) -> str:
    """Return a duration in milliseconds, or in seconds where it is long."""
    if milliseconds is None:
        return DASH
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def short(name: str) -> str:
    """Return the start of a hash, enough to tell it from others by eye."""
    return name if len(name) <= 14 else f"{name[:12]}\N{HORIZONTAL ELLIPSIS}"


def words(name: str) -> str:
    """Return an identifier of ours as words."""
    return WORDS.get(name, name.replace("_", " "))


_environment = page_environment(Path(__file__).with_name("templates"))
_environment.filters |= {
    function.__name__: function
    for function in (percent, points, interval, moment, duration, number, short, words)
}
# The log-in and the page of a problem have none of these, and a missing name is an error.
_environment.globals |= {"pages": PAGES, "session": None, "standing": None, "here": ""}
