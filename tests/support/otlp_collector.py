"""A server that takes OTLP over HTTP, as a collector does."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class OtlpCollector(ThreadingHTTPServer):
    """Keeps what it is sent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), OtlpHandler)
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def spans(self):
        """Return every span, as it was sent."""
        return [
            span
            for sent in self._of(ExportTraceServiceRequest)
            for resource in sent.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self):
        """Return the metrics of the last time by their names."""
        (resource,) = self._of(ExportMetricsServiceRequest)[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def resource(self):
        """Return the attributes of whoever sent the metrics."""
        (resource,) = self._of(ExportMetricsServiceRequest)[-1].resource_metrics
        return attributes(resource.resource)

    def _of(self, kind):
        return [request for request in self.requests if isinstance(request, kind)]


class OtlpHandler(BaseHTTPRequestHandler):
    """Decodes one request."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(KINDS[self.path].FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def attributes(thing):
    """Return the attributes of a span, a data point or a resource."""
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value"))
        for entry in thing.attributes
    }


@contextmanager
def collecting():
    """Run a collector for as long as the block runs."""
    server = OtlpCollector()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
