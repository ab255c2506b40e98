"""Metrics and spans of a real gateway, as a collector receives them by OTLP."""

import asyncio
import io
import json
import logging
import subprocess
import sys

import pytest

from support.otlp_collector import attributes, collecting
from support.small_gateway import Model, ask, chat, gateway
from support.small_site import header
from support.timing import until
from waltzrl.errors import InputError, MissingExtraError
from waltzrl.foundation.catalogue import IMPROVEMENTS, METRICS
from waltzrl.foundation.logs import JsonLines
from waltzrl.foundation.otlp import import_exporters, open_push, otel_resource, otlp_name
from waltzrl.store.audit.reading import read_entries

REQUEST_LABELS = {
    "api": "chat",
    "stage": "1",
    "decision": "revised",
    "draft_verdict": "unsafe",
    "final_verdict": "safe",
}


@pytest.fixture(params=["http/protobuf"])
def collector(monkeypatch, request):
    with collecting(request.param) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
        yield server


def serve(work, *settings, model=None):
    async def live():
        async with gateway("traces=true", "push_metrics=true", *settings, model=model) as app:
            return await work(app)

    return asyncio.run(live())


async def two_requests(app):
    await chat(app, "unsafe")
    await chat(app, "echo")
    return (await ask(app, "/metrics", method="GET")).text


def lines_of(exposition, kind):
    """Return the samples of an exposition in Prometheus's format, by name and labels."""
    samples = [line.rpartition(" ") for line in exposition.splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in samples if name.startswith(kind)}


@pytest.mark.promise(
    "Metrics",
    "OTLP carries the numbers of `/metrics`, by the requirement's names; a collector that is away "
    "fails no request",
)
@pytest.mark.parametrize("collector", ["http/protobuf", "grpc"], indirect=True)
def test_a_collector_gets_the_numbers_of_the_metrics_page_by_the_requirements_names(collector):
    page = lines_of(serve(two_requests), "waltzrl_")
    metrics = collector.metrics()
    for name in ("total_time_ms", "safety_score", "helpfulness_score", "dir_reward"):
        assert metrics[f"waltzrl.{name}"].WhichOneof("data") == "histogram"
    assert metrics["waltzrl.feedback_trigger_rate"].WhichOneof("data") == "gauge"
    assert metrics["waltzrl.changes_made"].sum.is_monotonic
    points = metrics["waltzrl.requests"].sum.data_points
    (revised,) = [point for point in points if attributes(point).items() >= REQUEST_LABELS.items()]
    assert revised.as_double == 1
    assert revised.start_time_unix_nano < revised.time_unix_nano
    assert {"waltzrl.conversation.generation_time_ms", "waltzrl.feedback.evaluation_time_ms"} <= (
        metrics.keys()
    )
    declared = {otlp_name(name.removesuffix("_total")) for name in METRICS}
    ours = {name for name in metrics if name.startswith("waltzrl.")}
    assert ours <= declared
    with_values = {name.partition("{")[0] for name in page}
    with_values = {otlp_name(name.removesuffix("_total")) for name in with_values}
    assert ours >= with_values & declared  # no metric of the page is missing
    (total,) = metrics["waltzrl.total_time_ms"].histogram.data_points
    origin = f'{{bundle="{attributes(total)["bundle"]}",stage="1"}}'
    assert total.count == page[f"waltzrl_total_time_ms_count{origin}"] == 2
    assert total.sum == page[f"waltzrl_total_time_ms_sum{origin}"]
    assert sum(total.bucket_counts) == 2
    assert len(total.bucket_counts) == len(total.explicit_bounds) + 1
    assert not total.HasField("min")


def test_a_histogram_of_values_below_zero_has_buckets_and_no_sum(collector):
    serve(two_requests)
    (gain,) = collector.metrics()["waltzrl.dir_reward"].histogram.data_points
    assert list(gain.explicit_bounds) == list(IMPROVEMENTS)
    assert (gain.count, sum(gain.bucket_counts), gain.HasField("sum")) == (1, 1, False)


def test_metrics_are_pushed_while_the_gateway_runs(collector, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")

    async def work(app):
        await chat(app, "echo")
        await until(lambda: collector.requests and "waltzrl.requests" in collector.metrics())

    serve(work)
    resource = collector.resource()
    assert resource["service.name"] == "shop"
    assert resource["service.instance.id"]  # workers of one gateway are told apart


@pytest.mark.promise(
    "Metrics",
    "OTLP carries the numbers of `/metrics`, by the requirement's names; a collector that is away "
    "fails no request",
)
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_is_away_fails_no_request(monkeypatch, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")

    async def work(app):
        return (await chat(app, "echo")).status

    assert serve(work) == 200


@pytest.mark.promise(
    "Metrics", "One id leads from a response to log, spans, audit record and upstream"
)
@pytest.mark.parametrize("given", [{"x_request_id": "shop-17"}, {}])
def test_one_id_leads_from_the_response_to_log_span_audit_and_upstream(collector, tmp_path, given):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    ours = logging.getLogger("waltzrl")
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    model = Model()
    try:
        response = serve(
            lambda app: chat(app, "unsafe", **given),
            f"audit.folder={tmp_path / 'audit'}",
            model=model,
        )
    finally:
        ours.removeHandler(handler)
    request_id = response.headers["x-request-id"]
    assert request_id == given.get("x_request_id", request_id)
    assert all(header(head, "x-request-id") == [request_id] for head in model.heads)
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    (line,) = [line for line in logged if line["message"] == "the reply was revised"]
    assert line["request_id"] == request_id
    (span,) = [span for span in collector.spans() if span.name == "waltzrl.request"]
    named = attributes(span)
    assert request_id == named.get("waltzrl.client_request_id", named["gen_ai.response.id"])
    (entry,) = [e for e in read_entries(tmp_path / "audit") if e.event == "decision"]
    assert request_id in (entry.decision.client_request_id, entry.decision.id)
    assert line["id"] == named["gen_ai.response.id"] == entry.decision.id


@pytest.mark.slow
@pytest.mark.promise("Requirements", "observability: metric names, alerts, dashboards")
def test_what_the_memory_collects_is_a_span_of_its_request(collector, tmp_path):
    serve(
        lambda app: chat(app, "echo"),
        f"memory.url=sqlite:///{tmp_path / 'memory.db'}",
        f"memory.subject_key={tmp_path / 'memory.key'}",
        "memory.niceness=0",
    )
    spans = {span.name: span for span in collector.spans()}
    collected = spans["waltzrl.training.collect_interaction"]
    assert collected.parent_span_id == spans["waltzrl.request"].span_id


@pytest.mark.promise(
    "Bad input", "A protocol of OTLP that is not sent: the variable, and what to set"
)
@pytest.mark.parametrize("setting", ["traces", "push_metrics"])
def test_a_protocol_that_is_not_sent_is_refused_at_the_start(monkeypatch, setting):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")

    async def start():
        async with gateway(f"{setting}=true"):
            pass

    with pytest.raises(InputError, match=r"is 'http/json'; set it to http/protobuf or grpc"):
        asyncio.run(start())


def test_without_opentelemetry_the_push_says_what_to_install():
    script = "import sys; sys.modules['opentelemetry.sdk.metrics.export'] = None\n"
    script += "import waltzrl.foundation.otlp"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "OTLP needs OpenTelemetry: pip install 'waltzrl[otel]'" in ran.stderr


def test_without_the_exporter_of_the_protocol_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
    with pytest.raises(MissingExtraError, match=r"OTLP by grpc .* pip install 'waltzrl\[otel\]'"):
        import_exporters("metric")


@pytest.mark.parametrize("interval", ["1m", "0", "-5", "nan"])
def test_an_interval_that_cannot_be_is_refused_and_an_empty_one_is_none(monkeypatch, interval):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(InputError, match=f"got '{interval}', need milliseconds above 0"):
        open_push(list)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "")
    open_push(list)
    assert otel_resource().attributes["service.name"] == "waltzrl"
