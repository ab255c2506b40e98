"""Counters and histograms for Prometheus that cost a fraction of a microsecond.

A metric of prometheus-client takes a lock for every value. These are plain numbers, updated by
one thread only, and are converted to Prometheus's metric families on each scrape.
"""

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from waltzrl.foundation.catalogue import METRICS


class LabeledCounter:
    """The number of events, by labels."""

    def __init__(self, name: str, known: Sequence[Sequence[str]] = ()) -> None:
        """Start at zero.

        Args:
            name: of a counter in the catalogue.
            known: label values that are exported from the start, at zero, so that Prometheus sees
                their first event as an increase; a counter without labels always is.
        """
        self._spec = METRICS[name]
        self._counts: defaultdict[tuple[str, ...], float] = defaultdict(int)
        for values in known if self._spec.labels else [()]:
            self._counts[tuple(values)] = 0

    def add(self, *values: str, amount: float = 1) -> None:
        """Count events.

        Args:
            values: the label values, in the order of the labels.
            amount: how many, or how much of what is not counted in ones.
        """
        self._counts[values] += amount

    def family(self) -> Metric:
        """Return the current value of the metric."""
        return build_family(self._spec.name, self._counts)


class Histogram:
    """The distribution of values over buckets, by labels."""

    def __init__(self, name: str) -> None:
        """Start empty; `name` is that of a histogram in the catalogue."""
        self._spec = METRICS[name]
        self._bounds = self._spec.bounds
        # One more bucket for what is above all bounds, and the sum.
        size = len(self._bounds) + 2
        self._series: defaultdict[tuple[str, ...], list[float]] = defaultdict(lambda: [0] * size)
        """Label values -> the count of each bucket, and then the sum of the values."""

    def add(self, value: float, *labels: str) -> None:
        """Count a value in its bucket, by the label values in the order of the labels."""
        series = self._series[labels]
        # A value that equals a bound belongs below it: Prometheus's `le`.
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def family(self, name: str = "") -> Metric:
        """Return the current metric, if wanted by the name of another histogram like it."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        spec = METRICS[name or self._spec.name]
        metric = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, (*counts, total) in sorted(self._series.items()):
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            # With a negative bound prometheus-client leaves out the sum, which could fall.
            metric.add_metric(labels, buckets, total)
        return metric


def build_family(name: str, values: Mapping[tuple[str, ...], float | None]) -> Metric:
    """Return a counter or gauge of the catalogue.

    Args:
        name: as exported.
        values: label values, () for a metric without labels -> value; None is left out.
    """
    spec = METRICS[name]
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    metric = kind(name, spec.help, labels=spec.labels)
    for labels, value in sorted(values.items()):
        if value is not None:
            metric.add_metric(labels, value)
    return metric


def yield_rate(name: str, count: int, samples: int) -> Iterator[Metric]:
    """Yield a share and, as `NAME_samples`, of how many; without a sample it is missing, not 0."""
    yield build_family(name, {(): count / samples if samples else None})
    yield build_family(f"{name}_samples", {(): samples})


def build_states(name: str, state_of: Mapping[str, str], known: Sequence[str]) -> Metric:
    """Return a gauge that is 1 for the state of each thing and 0 for its other known states."""
    return build_family(
        name,
        {(thing, state): state == now for thing, now in state_of.items() for state in known},
    )


class SlidingCounter:
    """The number of recent events of several kinds, over a sliding window."""

    def __init__(
        self,
        kinds: int,
        *,
        slice_seconds: float,
        slices: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty.

        Args:
            kinds: how many kinds of event are counted.
            slice_seconds: the window advances by slices of this length.
            slices: the length of the window in slices, including the current one.
            clock: monotonic time in seconds.
        """
        self._kinds, self._seconds, self._clock = kinds, slice_seconds, clock
        self._slices: deque[tuple[int, list[int]]] = deque(maxlen=slices)
        """Slices with events: the number of the slice, and the count of each kind."""

    def add(self, *happened: int) -> None:
        """Count events of each kind; True counts as one."""
        number = int(self._clock() // self._seconds)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, [0] * self._kinds))
        counts = self._slices[-1][1]
        for kind, events in enumerate(happened):
            counts[kind] += events

    def totals(self) -> list[int]:
        """Return the count of each kind within the window."""
        assert self._slices.maxlen is not None
        oldest = int(self._clock() // self._seconds) - self._slices.maxlen + 1
        # A slice without events is missing, so only its number tells how old a slice is.
        counts = [counts for number, counts in self._slices if number >= oldest]
        return [sum(kind) for kind in zip(*counts, strict=True)] or [0] * self._kinds
