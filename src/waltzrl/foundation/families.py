"""Metric families of several processes, added up to one exposition."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from waltzrl.foundation.catalogue import METRICS

SUMMED = ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds")
"""Gauges of prometheus-client that processes add up."""


class Family(msgspec.Struct, frozen=True):
    """One metric of one process, or of all."""

    name: str
    help: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]
    """Name, labels and value of each."""


def families_of(collector: Collector) -> list[Family]:
    """Return the present values of a collector's metrics."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, sample.labels, float(sample.value)) for sample in metric.samples],
        )
        for metric in collector.collect()
    ]


def merge_families(processes: Iterable[Sequence[Family]]) -> list[Family]:
    """Make one metric of those of several processes: the sum, or as the catalogue says."""
    families: dict[str, Family] = {}
    values: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = {}
    for process in processes:
        # A mean's weight is another metric of the same process, NAME_samples, which may come later.
        sizes = {family.name: sum(value for *_, value in family.samples) for family in process}
        for family in process:
            # The first process that has it gives its help and type; all have the same.
            families.setdefault(family.name, family)
            weight = sizes.get(f"{family.name}_samples", 1.0)
            for name, labels, value in family.samples:
                key = family.name, name, tuple(labels.items())
                values.setdefault(key, []).append((value, weight))
    samples: dict[str, list[tuple[str, dict[str, str], float]]] = {name: [] for name in families}
    for (family_name, name, labels_of), measured in values.items():
        merged = _merge_values(families[family_name], measured)
        samples[family_name].append((name, dict(labels_of), merged))
    return [
        msgspec.structs.replace(family, samples=samples[name]) for name, family in families.items()
    ]


def keep_totals(families: Sequence[Family]) -> list[Family]:
    """Return what a process that has ended leaves behind: its counters and histograms."""
    return [family for family in families if family.type in {"counter", "histogram"}]


def format_exposition(families: Sequence[Family]) -> bytes:
    """Return metrics in Prometheus's text format 0.0.4."""
    return generate_latest(_Families(families))


class _Families(Collector):
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.help, family.type)
            for name, labels, value in family.samples:
                metric.add_sample(name, labels, value)
            yield metric


def _merge_values(family: Family, values: Sequence[tuple[float, float]]) -> float:
    if family.type == "gauge":
        spec = METRICS.get(family.name)
        merge = spec.merge if spec else "sum" if family.name in SUMMED else "max"
        if merge == "max":
            return max(value for value, _ in values)
        if merge == "mean":
            return sum(value * weight for value, weight in values) / sum(w for _, w in values)
    return sum(value for value, _ in values)
