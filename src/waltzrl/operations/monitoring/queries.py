"""Checks PromQL against the catalogue: no alert and no panel asks for what nobody exports."""

import re
from collections.abc import Iterable, Mapping

from waltzrl.foundation.catalogue import METRICS, MetricSpec

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?")
SERIES_SELECTOR = re.compile(r"\b(waltzrl_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
DURATION = re.compile(r"\[[^\]]*\]")

WORDS = {
    *("absent", "and", "changes", "count", "histogram_quantile", "increase", "max", "or", "rate"),
    *("sum", "time", "vector"),
}
"""The words of PromQL, as far as we use them."""
TARGET_LABELS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to every series."""


class UnknownMetricError(ValueError):
    """A query names a metric or a label that is not exported."""


def check_query(query: str, recorded: Iterable[str] = ()) -> None:
    """Check that every name in a query is in the catalogue, with the labels that it has there.

    Args:
        query: PromQL; a range may be a variable, as in `[$__rate_interval]`.
        recorded: names of recording rules, which have no labels.

    Raises:
        UnknownMetricError: a metric, a label or a word is unknown.
    """
    # Strings first: the regular expression of a matcher may have brackets.
    plain = DURATION.sub("", STRING.sub('""', query))
    groupings = [names for _, names in GROUPING.findall(plain)]
    labels = set(TARGET_LABELS)
    known = {name: frozenset[str]() for name in recorded} | SERIES
    for name, matchers in SELECTOR.findall(GROUPING.sub("", plain)):
        if name in known:
            labels |= known[name]
            _require_known_labels(query, MATCHER.findall(matchers), known[name] | TARGET_LABELS)
        elif name not in WORDS:
            raise UnknownMetricError(
                f"{name!r} in {query!r} is not in the catalogue; declare it in "
                "waltzrl/foundation/catalogue.py, or use a metric that is there"
            )
    for names in groupings:
        _require_known_labels(query, re.findall(r"\w+", names), labels)


def of_bundle(query: str, bundle: str) -> str:
    """Restrict every series of a query that has the label `bundle`.

    Args:
        query: PromQL without a matcher of `bundle`.
        bundle: a regular expression, or a variable of Grafana.
    """

    def restricted(match: re.Match[str]) -> str:
        name, matchers = match.groups()
        if "bundle" not in SERIES.get(name, ()):
            return match[0]
        chosen = f'bundle=~"{bundle}"'
        return f"{name}{{{matchers},{chosen}}}" if matchers else f"{name}{{{chosen}}}"

    return SERIES_SELECTOR.sub(restricted, query)


def _require_known_labels(query: str, names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted({*names} - {*known}):
        raise UnknownMetricError(
            f"the label {unknown[0]!r} in {query!r} is not one of the metric; use "
            f"{', '.join(sorted(known))}"
        )


def _list_series(spec: MetricSpec) -> Mapping[str, frozenset[str]]:
    labels = frozenset(spec.labels)
    if spec.kind != "histogram":
        return {spec.name: labels}
    series = {f"{spec.name}_bucket": labels | {"le"}}
    if not spec.is_signed:
        series |= {f"{spec.name}_sum": labels, f"{spec.name}_count": labels}
    return series


SERIES = {name: labels for spec in METRICS.values() for name, labels in _list_series(spec).items()}
"""Every series of the catalogue, by its name in a query -> its labels."""
