"""OpenTelemetry spans, made from the record after an answer was sent, so that no client waits.

    waltzrl.request
    |-- waltzrl.conversation.generate
    |-- waltzrl.feedback.evaluate
    |-- waltzrl.conversation.revise
    `-- waltzrl.training.collect_interaction   with a memory

Spans contain no text of prompts or replies. The GenAI semantic conventions still change (status
"development"; for guardrails only proposals exist), so their names occur only in `SPANS` and
`ATTRIBUTES`.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Literal

from waltzrl.errors import MissingExtraError
from waltzrl.foundation.otlp import import_exporters, otel_resource
from waltzrl.gateway.exchange import ServedChoice
from waltzrl.gateway.gateway import Listener
from waltzrl.records import Feedback, Reply

try:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingExtraError("tracing", "OpenTelemetry", "otel") from error

Step = Literal["request", "draft", "feedback", "revision", "collect"]
Facts = Mapping[str, str | bool | int | float | tuple[str, ...] | None]

SPANS: Mapping[Step, tuple[str, str | None, SpanKind]] = {
    "request": ("waltzrl.request", "invoke_workflow", SpanKind.SERVER),
    "draft": ("waltzrl.conversation.generate", "chat", SpanKind.CLIENT),
    "feedback": ("waltzrl.feedback.evaluate", "apply_guardrail", SpanKind.INTERNAL),
    "revision": ("waltzrl.conversation.revise", "chat", SpanKind.CLIENT),
    "collect": ("waltzrl.training.collect_interaction", None, SpanKind.INTERNAL),
}
"""The name, the `gen_ai.operation.name` and the kind of each span; None where the conventions have
no operation."""

ATTRIBUTES = {
    "operation": "gen_ai.operation.name",
    "model": "gen_ai.request.model",
    "id": "gen_ai.response.id",
    "finish": "gen_ai.response.finish_reasons",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "error": "error.type",
    "client_id": "waltzrl.client_request_id",
    "api": "waltzrl.api",
    "mode": "waltzrl.mode",
    "caller": "waltzrl.caller",
    "bundle": "waltzrl.bundle",
    "policy": "waltzrl.policy",
    "stage": "waltzrl.stage",
    "decision": "waltzrl.decision",
    "round": "waltzrl.round",
    "unsafe": "waltzrl.feedback.unsafe",
    "overrefuse": "waltzrl.feedback.overrefuse",
    "doubtful": "waltzrl.feedback.doubtful",
    "well_formed": "waltzrl.feedback.well_formed",
    "risk": "waltzrl.feedback.risk",
    "rules": "waltzrl.feedback.rules",
}
"""Our name for each fact -> the span attribute."""

LONGEST_NAME = 100
"""The most characters kept of the model's name, which the client chooses."""


class Traces:
    """Makes spans of the choices that were served."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("waltzrl")
        self._propagator = TraceContextTextMapPropagator()
        self._last: tuple[ServedChoice, Context] | None = None
        """The last choice that was not collected yet, and the context of its span."""

    def served(self, served: ServedChoice) -> None:
        """Make the spans of a choice that has just been answered or has failed.

        They join the trace of the request's `traceparent` header (W3C Trace Context); without a
        valid one they start a new trace.
        """
        parent = self._propagator.extract(served.request.context.headers)
        milliseconds = served.exchange.milliseconds
        begin = time.time_ns() - _convert_to_nanoseconds(milliseconds)
        facts = _collect_facts(served)
        context = self._span("request", (begin, milliseconds), facts, parent)
        for step, took, facts in _yield_parts(served):
            self._span(step, (begin, took), facts, context)
            begin += _convert_to_nanoseconds(took)
        self._last = served, context

    def collecting(self, collect: Listener) -> Listener:
        """Return a listener that also makes the span of handing a choice to the recorder.

        Args:
            collect: takes a choice, to be stored and learned from; called after `served`.
        """

        def listener(choice: ServedChoice) -> None:
            begin, started = time.time_ns(), time.perf_counter()
            collect(choice)
            milliseconds = 1e3 * (time.perf_counter() - started)
            last, self._last = self._last, None
            if last is not None and last[0] is choice and not choice.exchange.probe:
                facts = {"id": choice.request.chat.prompt.id}
                self._span("collect", (begin, milliseconds), facts, last[1])

        return listener

    def close(self) -> None:
        """Send the spans that are waiting, and stop."""
        self._provider.shutdown()

    def _span(self, step: Step, when: tuple[int, float], facts: Facts, context: Context) -> Context:
        """Make one span, and return the context in which its children are made.

        Args:
            step: its kind.
            when: start in nanoseconds since 1970, and duration in milliseconds.
            facts: by the keys of `ATTRIBUTES`; None is left out.
            context: holds the parent span.
        """
        name, operation, kind = SPANS[step]
        begin, milliseconds = when
        all_facts = {"operation": operation, **facts}
        span = self._tracer.start_span(
            name,
            context,
            kind,
            {ATTRIBUTES[fact]: value for fact, value in all_facts.items() if value is not None},
            start_time=begin,
        )
        if facts.get("error"):
            span.set_status(StatusCode.ERROR)
        span.end(begin + _convert_to_nanoseconds(milliseconds))
        return set_span_in_context(span, context)


def open_traces() -> Traces:
    """Send spans by OTLP, as the variables OTEL_EXPORTER_OTLP_... configure.

    OpenTelemetry's other variables apply too, such as OTEL_TRACES_SAMPLER.

    Raises:
        InputError: they ask for an unknown protocol.
        MissingExtraError: its exporter is not installed.
    """
    exporter = import_exporters("trace").OTLPSpanExporter()
    provider = TracerProvider(resource=otel_resource())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Traces(provider)


def _collect_facts(served: ServedChoice) -> Facts:
    exchange = served.exchange
    return {
        "api": exchange.api,
        "model": exchange.model[:LONGEST_NAME],
        "id": served.request.chat.prompt.id,
        "client_id": exchange.client_request_id or None,
        "mode": exchange.mode,
        "caller": exchange.caller,
        "bundle": exchange.bundle,
        "policy": exchange.policy or None,
        "stage": exchange.stage,
        "decision": exchange.decision,
        "error": exchange.reason if exchange.decision == "error" else None,
    }


def _yield_parts(served: ServedChoice) -> Iterator[tuple[Step, float, Facts]]:
    """Yield the turns in order, with their milliseconds; the pauses between are negligible."""
    collaboration, model = served.exchange.said, served.exchange.model
    if collaboration is None:
        return
    draft = collaboration.draft
    if draft.origin == "policy":
        yield "draft", draft.milliseconds, _describe_reply(draft, 0, model)
    # A review that failed has a time and no round.
    for number, (turn, milliseconds) in enumerate(
        zip(collaboration.rounds, served.review_milliseconds, strict=False), 1
    ):
        yield "feedback", milliseconds, _describe_feedback(turn.feedback, number)
        if (revision := turn.revision) is not None and revision.origin == "policy":
            yield "revision", revision.milliseconds, _describe_reply(revision, number, model)


def _describe_reply(reply: Reply, number: int, model: str) -> Facts:
    return {
        "round": number,
        "model": model[:LONGEST_NAME],
        "finish": (reply.finish,),
        "input_tokens": None if reply.usage is None else reply.usage.input_tokens,
        "output_tokens": None if reply.usage is None else reply.usage.output_tokens,
    }


def _describe_feedback(feedback: Feedback, number: int) -> Facts:
    return {
        "round": number,
        "unsafe": feedback.unsafe,
        "overrefuse": feedback.overrefuse,
        "doubtful": feedback.doubtful,
        "well_formed": feedback.well_formed,
        "risk": feedback.risk,
        "rules": feedback.rules,
    }


def _convert_to_nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
