"""OpenTelemetry spans of tasks that a program runs; they hold no text of tasks or replies.

waltzrl.task
|-- waltzrl.conversation.generate
`-- waltzrl.feedback.evaluate
"""

import time

from waltzrl.errors import MissingExtraError
from waltzrl.gateway.traces import ATTRIBUTES, SPANS
from waltzrl_routing.runner import EndedTask

try:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import StatusCode, set_span_in_context
except ImportError as error:
    raise MissingExtraError("tracing", "OpenTelemetry", "otel") from error


class TaskTraces:
    """Makes spans of tasks, in the trace of whoever runs the plan."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("waltzrl")

    def add(self, ended: EndedTask) -> None:
        """Make the spans of a task that has just ended: its agent's time, then its reviews'."""
        result, end = ended.result, time.time_ns()
        steps = {"draft": result.generation_ms, "feedback": result.evaluation_ms}
        lengths = {step: round(milliseconds * 1e6) for step, milliseconds in steps.items()}
        # The task has ended, so its times are counted back from now.
        begin = end - sum(lengths.values())
        attributes: dict[str, str | int | float] = {
            "waltzrl.task.type": result.task_type,
            "waltzrl.task.agent": result.agent_id,
            "waltzrl.task.state": result.state,
            ATTRIBUTES["round"]: result.rounds,
        }
        if result.risk is not None:
            attributes[ATTRIBUTES["risk"]] = result.risk
        span = self._tracer.start_span("waltzrl.task", attributes=attributes, start_time=begin)
        if result.fault:
            span.set_status(StatusCode.ERROR, result.fault)
        context = set_span_in_context(span)
        for step, (name, _operation, kind) in SPANS.items():
            if length := lengths.get(step, 0):
                child = self._tracer.start_span(name, context, kind, start_time=begin)
                begin += length
                child.end(begin)
        span.end(end)
