"""Envoy: an external processor that reviews the chats that pass through.

server, _port = await open_processor(guard, "0.0.0.0:9002")
await server.wait_for_termination()

The filter sends headers and, in the mode BUFFERED, both bodies: deploy/envoy.yaml.
"""

from collections.abc import AsyncIterator

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.guard import Guard
from waltzrl.gateway.wire.format import encode_error
from waltzrl_integrations import drafts
from waltzrl_integrations.chats import JSON, Chat, is_chat, read_chat, review_answer

with drafts.needs("Envoy", "xds-protos>=1.71"):
    import grpc
    from envoy.config.core.v3 import base_pb2 as core
    from envoy.service.ext_proc.v3 import external_processor_pb2 as messages
    from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
    from envoy.type.v3 import http_status_pb2 as http


async def open_processor(guard: Guard, address: str) -> tuple[grpc.aio.Server, int]:
    """Serve Envoy's external processing, without TLS; return the server and its port.

    The caller stops the server.

    Args:
        guard: has an upstream that revises, or is a gateway.
        address: `HOST:PORT`, out of reach of all but Envoy; 0 is any free port.
    """
    server = grpc.aio.server()
    service.add_ExternalProcessorServicer_to_server(ReviewProcessor(guard), server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


class ReviewProcessor(service.ExternalProcessorServicer):
    """Reviews and revises chats, streams included, and refuses all other routes with replies."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def Process(  # noqa: N802 - the protocol's name
        self,
        request_iterator: AsyncIterator[messages.ProcessingRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[messages.ProcessingResponse]:
        exchange = _Exchange(self._guard)
        async for request in request_iterator:
            try:
                yield await exchange.answer(request)
            except RequestError as error:
                yield _end_exchange(error)
                return


class _Exchange:
    """One request of a client through Envoy, and the answer to it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._is_chat = False
        self._chat: Chat | None = None
        self._status = ""

    async def answer(self, request: messages.ProcessingRequest) -> messages.ProcessingResponse:
        kind = request.WhichOneof("request")
        common = messages.CommonResponse()
        if kind == "request_headers":
            path = _find_header(request.request_headers, ":path").partition("?")[0]
            self._is_chat = is_chat(path)
            # An answer that is compressed could not be read.
            common.header_mutation.remove_headers.append("accept-encoding")
        elif kind == "response_headers":
            self._status = _find_header(request.response_headers, ":status")
        elif kind == "request_body" and self._is_chat:
            self._chat = read_chat(request.request_body.body)
            _replace_body(common, JSON, msgspec.json.encode(self._chat.body))
        elif kind == "response_body" and self._is_chat and self._status == "200":
            if self._chat is None:
                message = "the request was not seen; set request_body_mode of ext_proc to BUFFERED"
                raise RequestError(502, "unreviewed", message)
            answer = request.response_body.body
            _replace_body(common, *await review_answer(self._guard, self._chat, answer))
        if kind in {"request_trailers", "response_trailers"}:
            return messages.ProcessingResponse(**{kind: messages.TrailersResponse()})
        is_body = kind in {"request_body", "response_body"}
        answered = messages.BodyResponse if is_body else messages.HeadersResponse
        return messages.ProcessingResponse(**{kind: answered(response=common)})


def _find_header(sent: messages.HttpHeaders, name: str) -> str:
    for header in sent.headers.headers:
        if header.key == name:
            # Envoy fills one of the two, depending on its version.
            return header.value or header.raw_value.decode("latin-1")
    return ""


def _replace_body(common: messages.CommonResponse, kind: str, body: bytes) -> None:
    common.body_mutation.body = body
    # Envoy rejects a new body whose length is not that of the header.
    for name, value in (("content-type", kind), ("content-length", str(len(body)))):
        option = common.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
        option.append_action = core.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def _end_exchange(error: RequestError) -> messages.ProcessingResponse:
    ended = messages.ImmediateResponse(
        status=http.HttpStatus(code=error.status), body=encode_error(error)
    )
    option = ended.headers.set_headers.add()
    option.header.key, option.header.raw_value = "content-type", JSON.encode()
    return messages.ProcessingResponse(immediate_response=ended)
