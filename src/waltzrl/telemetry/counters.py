"""Counters and histograms for Prometheus that cost a fraction of a microsecond.

A metric of prometheus-client takes a lock for every value. These are plain numbers, updated by
one thread only, and are converted to Prometheus's metric families on each scrape.
"""

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class LabeledCounter:
    """The number of events, by labels."""

    def __init__(
        self,
        name: str,
        description: str,
        labels: Sequence[str] = (),
        known: Sequence[Sequence[str]] = (),
    ) -> None:
        """Start at zero.

        Args:
            name: the metric's name, without `_total`.
            description: what is counted.
            labels: names of the labels.
            known: label values that are exported from the start, at zero, so that Prometheus sees
                their first event as an increase; a counter without labels always is.
        """
        self._name, self._description, self._labels = name, description, labels
        self._counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for values in known if labels else [()]:
            self._counts[tuple(values)] = 0

    def add(self, *values: str) -> None:
        """Count one event.

        Args:
            values: the label values, in the order of the labels.
        """
        self._counts[values] += 1

    def family(self) -> CounterMetricFamily:
        """Return the current value of the metric."""
        family = CounterMetricFamily(self._name, self._description, labels=self._labels)
        for values, count in sorted(self._counts.items()):
            family.add_metric(values, count)
        return family


class Histogram:
    """The distribution of values over buckets, by one label."""

    def __init__(
        self,
        name: str,
        description: str,
        label: str,
        bounds: Sequence[float],
        units: Mapping[str, float],
    ) -> None:
        """Start empty.

        Args:
            name: the metric's name, without its unit.
            description: what is measured.
            label: name of the label.
            bounds: upper bounds of the buckets, ascending, in the unit of the added values.
            units: from the suffix of an exported metric to the factor of its values; each unit
                is exported as a metric of its own.
        """
        self._name, self._description, self._label = name, description, label
        self._bounds = tuple(bounds)
        self._units = units
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, label: str, value: float) -> None:
        """Count a value in its bucket."""
        self._counts[label][bisect_left(self._bounds, value)] += 1
        self._sums[label] += value

    def families(self) -> Iterator[HistogramMetricFamily]:
        """Yield the current metric, once for each unit."""
        for unit, factor in self._units.items():
            bounds = [str(round(bound * factor, 9)) for bound in self._bounds] + ["+Inf"]
            family = HistogramMetricFamily(
                self._name + unit, self._description, labels=[self._label]
            )
            for label, counts in sorted(self._counts.items()):
                buckets = list(zip(bounds, accumulate(counts), strict=True))
                family.add_metric([label], buckets, self._sums[label] * factor)
            yield family


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

    def add(self, *happened: bool) -> None:
        """Count one event of each kind whose flag is true."""
        number = int(self._clock() // self._seconds)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, [0] * self._kinds))
        counts = self._slices[-1][1]
        for kind, flag in enumerate(happened):
            counts[kind] += flag

    def totals(self) -> list[int]:
        """Return the count of each kind within the window."""
        assert self._slices.maxlen is not None
        oldest = int(self._clock() // self._seconds) - self._slices.maxlen + 1
        counts = [counts for number, counts in self._slices if number >= oldest]
        return [sum(kind) for kind in zip(*counts, strict=True)] or [0] * self._kinds
