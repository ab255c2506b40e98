"""Metrics by OTLP: the numbers of `/metrics`, pushed to a collector now and then.

The instruments of OpenTelemetry's SDK take a lock for every value and ours take none, so only the
SDK's records and its exporter are used. Names are those of the catalogue with a dot after
`waltzrl`, and in two of them with one more; there are no units, which a collector would append to
the name.
"""

import asyncio
import importlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from types import ModuleType
from typing import Literal, cast

from waltzrl.errors import InputError, MissingExtraError
from waltzrl.foundation.catalogue import OTLP_NAMES
from waltzrl.foundation.families import Family

try:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricExporter,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ImportError as error:
    raise MissingExtraError("OTLP", "OpenTelemetry", "otel") from error

CUMULATIVE = AggregationTemporality.CUMULATIVE
EXPORTERS = {"http/protobuf": "http", "grpc": "grpc"}
"""OTEL_EXPORTER_OTLP_PROTOCOL -> package of OpenTelemetry's exporters."""
INTERVAL_MS = "60000"
"""OpenTelemetry's default of OTEL_METRIC_EXPORT_INTERVAL."""
UNKNOWN = cast("float", None)
"""Left out by the exporter: the smallest and the largest value, and a sum that may fall."""


def import_exporters(signal: Literal["trace", "metric"]) -> ModuleType:
    """Return OpenTelemetry's module that sends a signal by the protocol the environment asks for.

    Raises:
        InputError: it asks for a protocol that OpenTelemetry for Python does not send.
        MissingExtraError: the exporter is not installed.
    """
    # By OpenTelemetry's specification the variable of one signal precedes that of all.
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}S_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    variable = next(filter(os.environ.get, variables), variables[-1])
    protocol = os.environ.get(variable) or "http/protobuf"
    if protocol not in EXPORTERS:
        raise InputError(
            f"{variable} is {protocol!r}; set it to {' or '.join(EXPORTERS)}, or unset it to send "
            "http/protobuf to the collector's port for HTTP (4318)"
        )
    name = f"opentelemetry.exporter.otlp.proto.{EXPORTERS[protocol]}.{signal}_exporter"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"OTLP by {protocol}", "OpenTelemetry's exporter", "otel"
        ) from error


def otel_resource() -> Resource:
    """Return what names this process in traces and metrics; OTEL_SERVICE_NAME renames it."""
    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "waltzrl",
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }
    )


class MetricsPush:
    """Sends the metrics of one process; those of its neighbours send their own."""

    def __init__(
        self, families: Callable[[], Sequence[Family]], exporter: MetricExporter, seconds: float
    ) -> None:
        """Describe what to send.

        Args:
            families: returns the present values, called in the thread of `run`.
            exporter: sends them, called in another thread.
            seconds: between two times.
        """
        self._families, self._exporter, self._seconds = families, exporter, seconds
        self._resource = otel_resource()
        self._started = time.time_ns()

    async def run(self) -> None:
        """Send until cancelled, and then once more."""
        try:
            while True:
                await asyncio.sleep(self._seconds)
                await self._push()
        finally:
            await self._push()
            self._exporter.shutdown()

    async def _push(self) -> None:
        metrics = list(_convert_families(self._families(), (self._started, time.time_ns())))
        scope = ScopeMetrics(InstrumentationScope("waltzrl"), metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        await asyncio.to_thread(self._exporter.export, data)  # it logs its failures


def open_push(families: Callable[[], Sequence[Family]]) -> MetricsPush:
    """Send metrics by OTLP, as the variables OTEL_EXPORTER_OTLP_... configure.

    OTEL_METRIC_EXPORT_INTERVAL is the time in milliseconds from one to the next.

    Raises:
        InputError: they ask for an unknown protocol, or for an impossible time.
        MissingExtraError: its exporter is not installed.
    """
    exporter = import_exporters("metric").OTLPMetricExporter()
    text = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or INTERVAL_MS
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0:
        raise InputError(
            f"OTEL_METRIC_EXPORT_INTERVAL: got {text!r}, need milliseconds above 0, such as 60000"
        )
    return MetricsPush(families, exporter, milliseconds / 1e3)


def otlp_name(name: str) -> str:
    """Return the name by OTLP of a metric of `/metrics`."""
    return OTLP_NAMES.get(name) or name.replace("waltzrl_", "waltzrl.", 1)


def _convert_families(families: Iterable[Family], times: tuple[int, int]) -> Iterator[Metric]:
    """Yield each family as a metric of the SDK; those without a value yet are left out.

    Args:
        families: of this process.
        times: of its start and of now, in nanoseconds since 1970.
    """
    for family in families:
        if not family.samples:
            continue
        data: Gauge | Histogram | Sum
        if family.type == "histogram":
            data = Histogram(list(_convert_distributions(family, times)), CUMULATIVE)
        else:
            start, now = times
            points = [
                NumberDataPoint(labels, start, now, value) for _, labels, value in family.samples
            ]
            data = Gauge(points) if family.type == "gauge" else Sum(points, CUMULATIVE, True)
        yield Metric(otlp_name(family.name), family.help, "", data)


def _convert_distributions(family: Family, times: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    """Yield the distribution of each label, whose samples follow each other."""
    for labels, group in groupby(family.samples, lambda sample: _without_bound(sample[1])):
        samples = list(group)
        buckets = [(s[1]["le"], round(s[2])) for s in samples if s[0] == f"{family.name}_bucket"]
        sums = [value for name, _, value in samples if name == f"{family.name}_sum"]
        counts = [count for _, count in buckets]
        yield HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=times[0],
            time_unix_nano=times[1],
            count=counts[-1],
            sum=sums[0] if sums else UNKNOWN,
            # Prometheus counts all below a bound, OTLP only what lies between two.
            bucket_counts=[counts[0], *(after - before for before, after in pairwise(counts))],
            # The last bound is infinity, which OTLP does not list.
            explicit_bounds=[float(bound) for bound, _ in buckets[:-1]],
            min=UNKNOWN,
            max=UNKNOWN,
        )


def _without_bound(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "le"}
