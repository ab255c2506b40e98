import subprocess
import sys
import time
from itertools import pairwise

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from support.otlp_collector import collecting
from support.served_examples import REFUSAL, SAFE, SECRET, UNSAFE, failed, reply, served
from waltzrl.foundation.logs import RequestContext
from waltzrl.gateway.traces import Traces, open_traces

REVISED = served((UNSAFE, reply(20.0)), (SAFE, None), decision="revised")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(what, traceparent=""):
    """Trace one choice, and return its spans in the order of their begin; the request is first."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces = Traces(provider)
    context = RequestContext("req-1", "", {"traceparent": traceparent})
    request = msgspec.structs.replace(what.request, context=context)
    traces.served(msgspec.structs.replace(what, request=request))
    traces.close()
    return sorted(exporter.get_finished_spans(), key=lambda span: (span.start_time, span.end_time))


def request_span(what, traceparent=""):
    return next(s for s in spans_of(what, traceparent) if s.name == "waltzrl.request")


@pytest.mark.promise("Logs", "Memory and traces hold the client's ids")
def test_the_clients_own_id_is_an_attribute():
    exchange = msgspec.structs.replace(REVISED.exchange, client_request_id="shop-17")
    span = request_span(msgspec.structs.replace(REVISED, exchange=exchange))
    assert span.attributes["waltzrl.client_request_id"] == "shop-17"


def test_each_turn_is_a_span_below_the_request():
    spans = spans_of(REVISED)
    root = request_span(REVISED)
    assert sorted(span.name for span in spans) == [
        "waltzrl.conversation.generate",
        "waltzrl.conversation.revise",
        "waltzrl.feedback.evaluate",
        "waltzrl.feedback.evaluate",
        "waltzrl.request",
    ]
    (top,) = [span for span in spans if span.parent is None]
    assert top.name == "waltzrl.request"
    assert {span.parent.span_id for span in spans if span is not top} == {top.context.span_id}
    assert {span.context.trace_id for span in spans} == {top.context.trace_id}
    assert root.kind is SpanKind.SERVER


def test_turns_follow_each_other_and_the_request_ends_now():
    before = time.time_ns()
    spans = spans_of(REVISED)
    top = next(span for span in spans if span.parent is None)
    turns = [span for span in spans if span is not top]
    assert [(span.end_time - span.start_time) / 1e6 for span in turns] == [40, 2, 20, 2]
    assert turns[0].start_time == top.start_time
    assert all(a.end_time == b.start_time for a, b in pairwise(turns))
    assert top.end_time - top.start_time == 100_000_000
    assert before <= top.end_time <= time.time_ns()


def test_attributes_have_the_names_of_the_genai_conventions():
    draft, feedback = (
        next(span for span in spans_of(REVISED) if span.name == name).attributes
        for name in ("waltzrl.conversation.generate", "waltzrl.feedback.evaluate")
    )
    assert draft["gen_ai.operation.name"] == "chat"
    assert draft["gen_ai.request.model"] == "llama"
    assert draft["gen_ai.usage.input_tokens"] == 7
    assert draft["gen_ai.usage.output_tokens"] == 9
    assert draft["gen_ai.response.finish_reasons"] == ("stop",)
    assert feedback["gen_ai.operation.name"] == "apply_guardrail"
    assert feedback["waltzrl.feedback.unsafe"] is True
    assert feedback["waltzrl.feedback.risk"] == 0.9
    assert feedback["waltzrl.feedback.rules"] == ("harm/a", "harm/b")
    attributes = request_span(REVISED).attributes
    assert attributes["waltzrl.decision"] == "revised"
    assert attributes["waltzrl.caller"] == "ada"
    assert attributes["gen_ai.response.id"] == "wz1"


def test_handing_a_choice_to_the_recorder_is_a_span_of_its_request():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces, collected = Traces(provider), []
    probe = msgspec.structs.replace(REVISED.exchange, probe=True)
    collect = traces.collecting(collected.append)
    for choice in (REVISED, msgspec.structs.replace(REVISED, exchange=probe)):
        traces.served(choice)
        collect(choice)
    traces.close()
    assert len(collected) == 2
    spans = exporter.get_finished_spans()
    (span,) = [each for each in spans if each.name == "waltzrl.training.collect_interaction"]
    parent = next(each for each in spans if each.name == "waltzrl.request")
    assert span.parent.span_id == parent.context.span_id
    assert dict(span.attributes) == {"gen_ai.response.id": "wz1"}
    assert span.end_time >= span.start_time


def test_the_spans_join_the_trace_of_the_caller():
    span = request_span(REVISED, f"00-{TRACE}-{SPAN}-01")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN


@pytest.mark.parametrize("header", ["", "rubbish", f"00-{'0' * 32}-{SPAN}-01", "\xff"])
def test_a_header_that_cannot_be_read_starts_a_new_trace(header):
    assert request_span(REVISED, header).parent is None


def test_a_caller_that_does_not_sample_is_followed():
    assert spans_of(REVISED, f"00-{TRACE}-{SPAN}-00") == []


def test_a_failure_is_a_span_with_its_kind_and_no_turns():
    (span,) = spans_of(failed("upstream_timeout"))
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "upstream_timeout"
    assert "error.type" not in request_span(REVISED).attributes


def test_a_canned_refusal_is_no_turn():
    spans = spans_of(served((UNSAFE, REFUSAL), decision="refused"))
    assert "waltzrl.conversation.revise" not in {span.name for span in spans}


def test_no_word_that_anybody_wrote_is_in_a_span():
    assert all(SECRET not in span.to_json() for span in spans_of(REVISED))


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_spans_go_to_the_collector_that_the_environment_names(monkeypatch, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    with collecting(protocol) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        traces = open_traces()
        traces.served(failed("upstream"))
        traces.close()
    assert [span.name for span in collector.spans()] == ["waltzrl.request"]


def test_without_opentelemetry_tracing_says_what_to_install():
    script = (
        "import sys; sys.modules['opentelemetry.context'] = None; import waltzrl.gateway.traces"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "OTLP needs OpenTelemetry: pip install 'waltzrl[otel]'" in ran.stderr
