"""Servers that take OTLP, over HTTP and over gRPC, as a collector does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class OtlpCollector:
    """Keeps what it is sent."""

    def __init__(self):
        self.requests = []
        self.url = None

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


class OtlpServer(ThreadingHTTPServer):
    """Puts what comes over HTTP into a collector."""

    def __init__(self, collector):
        super().__init__(("127.0.0.1", 0), OtlpHandler)
        self.collector = collector


class OtlpHandler(BaseHTTPRequestHandler):
    """Decodes one request."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.collector.requests.append(KINDS[self.path].FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


class OtlpService:
    """Puts what comes over gRPC into a collector; both signals call their method Export."""

    def __init__(self, collector, response):
        self._collector, self._response = collector, response

    def keep(self, request, _context):
        self._collector.requests.append(request)
        return self._response()

    Export = keep


def attributes(thing):
    """Return the attributes of a span, a data point or a resource."""
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value"))
        for entry in thing.attributes
    }


@contextmanager
def collecting(protocol="http/protobuf"):
    """Run a collector for as long as the block runs."""
    collector = OtlpCollector()
    with _serving_grpc(collector) if protocol == "grpc" else _serving_http(collector) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector


@contextmanager
def _serving_http(collector):
    server = OtlpServer(collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _serving_grpc(collector):
    server = grpc.server(ThreadPoolExecutor(2))
    traces = OtlpService(collector, ExportTraceServiceResponse)
    metrics = OtlpService(collector, ExportMetricsServiceResponse)
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(traces, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(metrics, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(grace=None).wait()
