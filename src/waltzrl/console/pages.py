"""Turns what was found into HTML; whatever anybody wrote stays text."""

from datetime import UTC, datetime
from pathlib import Path

from waltzrl.errors import MissingExtraError
from waltzrl.release.correction import RateEstimate

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
except ModuleNotFoundError as missing:
    raise MissingExtraError("the desk", "jinja2", "flywheel") from missing

FOLDER = Path(__file__).parent
PLACES = (
    ("/desk", "Overview"),
    ("/desk/collaborations", "Collaborations"),
    ("/desk/audit", "Audit"),
)
DASH = "\N{EN DASH}"


def render(template: str, **context: object) -> str:
    """Return a page; what its template names must be in the context."""
    return _environment.get_template(template).render(context)


def percent(share: float) -> str:
    """Return a share with two digits that matter: 0.31 %, 3.1 %, 31 %."""
    value = 100 * share
    digits = 0 if value >= 9.95 or value < 0.005 else 1 if value >= 0.95 else 2
    return f"{value:.{digits}f}"


def interval(rate: RateEstimate) -> str:
    """Return a rate's interval in percent."""
    return f"{percent(rate.low)}{DASH}{percent(rate.high)} %"


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def lasting(milliseconds: float | None) -> str:
    """Return a time that something took."""
    if milliseconds is None:
        return DASH
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def brief(name: str) -> str:
    """Return the begin of a hash, enough to tell it from others by eye."""
    return name if len(name) <= 14 else f"{name[:12]}\N{HORIZONTAL ELLIPSIS}"


def plain(name: str) -> str:
    """Return a name of ours as words."""
    return name.replace("_", " ")


_environment = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    one.__name__: one for one in (percent, interval, moment, lasting, brief, plain)
}
_environment.globals |= {"places": PLACES, "session": None, "here": ""}
