"""Counters and histograms that cost a fraction of a microsecond, for Prometheus to read.

A metric of prometheus-client takes a lock for every value. These are plain numbers, to be added
to in one thread only, and become Prometheus's families when they are scraped.
"""

import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class LabeledCounter:
    """How often something happened, by labels."""

    def __init__(
        self, name: str, what: str, labels: Sequence[str] = (), known: Sequence[Sequence[str]] = ()
    ) -> None:
        """Begin at zero.

        Args:
            name: of the metric, without `_total`.
            what: is counted, in words.
            labels: names of the labels.
            known: label values that are shown from the start, so that their first event shows as
                a rise; a tally without labels is always shown.
        """
        self._name, self._what, self._labels = name, what, labels
        self._counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for values in known if labels else [()]:
            self._counts[tuple(values)] = 0

    def add(self, *values: str) -> None:
        """Count one event with these label values, in the order of the labels."""
        self._counts[values] += 1

    def family(self) -> CounterMetricFamily:
        """Return the metric as it is now."""
        family = CounterMetricFamily(self._name, self._what, labels=self._labels)
        for values, count in sorted(self._counts.items()):
            family.add_metric(values, count)
        return family


class Histogram:
    """How values are spread over buckets, by one label."""

    def __init__(
        self, name: str, what: str, label: str, bounds: Sequence[float], units: Mapping[str, float]
    ) -> None:
        """Begin empty.

        Args:
            name: of the metric, without unit.
            what: is measured, in words.
            label: name of the label.
            bounds: upper ends of the buckets, rising, in the unit in which values are added.
            units: each is a metric of its own: what to put behind the name, and the factor.
        """
        self._name, self._what, self._label = name, what, label
        self._bounds = tuple(bounds)
        self._units = units
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, label: str, value: float) -> None:
        """Put a value into its bucket."""
        self._counts[label][bisect_left(self._bounds, value)] += 1
        self._sums[label] += value

    def families(self) -> Iterator[HistogramMetricFamily]:
        """Yield the metric as it is now, once for each unit."""
        for unit, factor in self._units.items():
            ends = [str(round(bound * factor, 9)) for bound in self._bounds] + ["+Inf"]
            family = HistogramMetricFamily(self._name + unit, self._what, labels=[self._label])
            for label, counts in sorted(self._counts.items()):
                buckets = list(zip(ends, accumulate(counts), strict=True))
                family.add_metric([label], buckets, self._sums[label] * factor)
            yield family


class SlidingCounter:
    """How often each of some things happened lately."""

    def __init__(
        self,
        kinds: int,
        *,
        slice_seconds: float,
        slices: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin empty.

        Args:
            kinds: how many things are counted.
            slice_seconds: events are forgotten by slices of this length.
            slices: how many of them make up "lately", the present one included.
            clock: seconds that never go back.
        """
        self._kinds, self._seconds, self._clock = kinds, slice_seconds, clock
        self._slices: deque[tuple[int, list[int]]] = deque(maxlen=slices)
        """Those in which something happened: number, and how often each did."""

    def add(self, *happened: bool) -> None:
        """Count one event for each thing that happened."""
        number = int(self._clock() // self._seconds)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, [0] * self._kinds))
        counts = self._slices[-1][1]
        for kind, so in enumerate(happened):
            counts[kind] += so

    def totals(self) -> list[int]:
        """Return how often each thing happened lately."""
        assert self._slices.maxlen is not None
        oldest = int(self._clock() // self._seconds) - self._slices.maxlen + 1
        counts = [counts for number, counts in self._slices if number >= oldest]
        return [sum(kind) for kind in zip(*counts, strict=True)] or [0] * self._kinds
