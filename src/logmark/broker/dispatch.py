"""From a request's bytes to its answer's bytes: find the API, decode, call its handler, encode.

A handler answers at once with a message, or later with an awaitable. What it refuses with `Refused` becomes the
answer's error code here, once for every API. A request that cannot be read costs its connection, nothing else.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from logmark.broker import api
from logmark.broker.answers import Body, Buffers, LateAnswer, LateReply
from logmark.broker.api import produce
from logmark.broker.loop_watchdog import TimedCoroutine
from logmark.errors import ErrorCode, Malformed, Refused
from logmark.log.file_range import FileRange
from logmark.wire import frames, messages, usual

if TYPE_CHECKING:
    from logmark.broker.connection import Connection
    from logmark.broker.server import Broker

log = logging.getLogger(__name__)

API_VERSIONS_KEY = 18
NEVER = 1 << 15


class Request:
    """Who asks, in which version: what a handler may want to know beside the message."""

    __slots__ = ("broker", "client_id", "connection", "version")

    def __init__(self, broker: "Broker", connection: "Connection", version: int, client_id: str | None) -> None:
        self.broker = broker
        self.connection = connection
        self.version = version
        self.client_id = client_id

    @property
    def client_host(self) -> str:
        """The client's address as Kafka writes it."""
        return f"/{self.connection.peer_host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One entry of the table: everything the dispatcher knows of an API."""

    key: int
    name: str
    versions: range
    schema: ModuleType
    handler: ModuleType
    reads_frames: bool
    flexible_headers_from: int


def table() -> dict[int, Api]:
    """The APIs this broker serves, by key: one module of broker/api each."""
    found: dict[int, Api] = {}
    for handler in api.MODULES:
        schema: ModuleType = handler.schema
        flexible: int | None = schema.FLEXIBLE_FROM
        found[handler.KEY] = Api(
            key=handler.KEY,
            name="".join(word.capitalize() for word in handler.__name__.rpartition(".")[2].split("_")),
            versions=handler.VERSIONS,
            schema=schema,
            handler=handler,
            reads_frames=hasattr(handler, "handle_frame"),
            # The header of the answer to ApiVersions is plain in every version: who asks knows nothing yet.
            flexible_headers_from=NEVER if handler.KEY == API_VERSIONS_KEY or flexible is None else flexible,
        )
    return found


class Dispatcher:
    """Answers requests of every connection."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.apis = table()
        self._flexible_from: Callable[[int], int | None] = {
            key: entry.schema.FLEXIBLE_FROM for key, entry in self.apis.items()
        }.get
        self._tasks: set[asyncio.Task[Buffers | None]] = set()

    def name_of(self, key: int) -> str:
        """Return the name of an API by its key; the key for one that is not served."""
        entry = self.apis.get(key)
        return f"API key {key}" if entry is None else entry.name

    def close(self) -> None:
        """Abandon the requests that are not answered yet: every connection is closed."""
        for task in self._tasks:
            task.cancel()

    def answer(self, frame: memoryview, connection: "Connection") -> Body:
        """The answer to one request, ready, later or never (acks=0); Malformed when it cannot be read."""
        asked = None if self._broker.faults.is_armed else usual.read_produce(frame.obj)
        if asked is not None:
            written = produce.handle_usual(asked, frame, connection, self._broker)
            if isinstance(written, bytes):
                return [written]
            # A late answer to this request is whole already.
            return written if isinstance(written, LateAnswer) else self._whole(asked[1], True, written)
        header = frames.read_request_header(frame, self._flexible_from)
        entry = self.apis.get(header.api_key)
        if entry is None:
            raise Malformed(f"API key {header.api_key} is not served here")
        version = header.api_version
        if version not in entry.versions:
            if entry.key == API_VERSIONS_KEY:
                return self.framed(header.correlation_id, False, [entry.handler.unsupported_version(self.apis)])
            raise Malformed(f"{entry.name} version {version} is not served here")
        request = Request(self._broker, connection, version, header.client_id)
        flexible = version >= entry.flexible_headers_from
        planned = self._broker.faults.take(entry.name) if self._broker.faults.is_armed else None
        if planned is None:
            body = self._body(entry, frame, header.body_at, request, None)
        else:
            body = planned.carry_out(lambda code: self._body(entry, frame, header.body_at, request, code))
        return self._whole(header.correlation_id, flexible, body)

    def _whole(self, correlation_id: int, flexible: bool, body: Body) -> Body:
        """The answer with its header, as soon as there is a body."""
        if body is None:
            return None
        if isinstance(body, list):
            return self.framed(correlation_id, flexible, body)
        if isinstance(body, LateAnswer):
            body.convert(lambda buffers: self.framed(correlation_id, flexible, buffers))
            return body.result() if body.done() else body
        return self._later(correlation_id, flexible, body)

    def _body(
        self, entry: Api, frame: memoryview, body_at: int, request: Request, refuse_with: ErrorCode | None
    ) -> Body:
        if entry.reads_frames:
            answer: Body = entry.handler.handle_frame(frame, body_at, request, refuse_with=refuse_with)
            return answer
        message = messages.decode_request(entry.schema, request.version, frame[body_at:])
        if refuse_with is not None:
            return self._encoded(entry, request, refusal(entry, message, refuse_with, request.version))
        try:
            result = entry.handler.handle(message, request)
        except Refused as refused:
            result = refusal(entry, message, refused.code, request.version, refused.message)
        except Exception:
            log.exception("a handler failed", extra={"api": entry.name, "version": request.version})
            result = refusal(entry, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
        if isinstance(result, messages.Message):
            return self._encoded(entry, request, result)
        if isinstance(result, LateReply):
            return self._encoded_later(entry, message, request, result)
        assert inspect.isawaitable(result)
        finishing = TimedCoroutine(self._broker.watchdog, entry.name, self._finish(entry, message, result, request))
        task = asyncio.ensure_future(finishing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(
        self, entry: Api, message: messages.Message, result: Awaitable[Any], request: Request
    ) -> Buffers | None:
        try:
            reply = await result
        except Refused as refused:
            reply = refusal(entry, message, refused.code, request.version, refused.message)
        except Exception:
            log.exception("a handler failed", extra={"api": entry.name, "version": request.version})
            reply = refusal(entry, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
        # A handler encodes a long answer itself, so that others have their turn meanwhile.
        return reply if isinstance(reply, list) else self._encoded(entry, request, reply)

    def _encoded_later(self, entry: Api, message: messages.Message, request: Request, reply: LateReply) -> LateAnswer:
        late = LateAnswer()

        def complete(reply: messages.Message) -> None:
            try:
                late.complete(self._encoded(entry, request, reply))
            except Exception:
                log.exception("a handler failed", extra={"api": entry.name, "version": request.version})
                failed = refusal(entry, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
                late.complete(self._encoded(entry, request, failed))

        reply.when_complete(complete)
        return late

    def _encoded(self, entry: Api, request: Request, reply: Any) -> Buffers:
        return [messages.encode_response(entry.schema, request.version, reply)]

    def framed(self, correlation_id: int, flexible: bool, body: Buffers) -> Buffers:
        """Return a response with its length and header."""
        header = frames.response_header(correlation_id, flexible=flexible)
        if len(body) == 1 and not isinstance(only := body[0], FileRange):
            # One piece is one call of the transport, and a copy of a small answer is cheaper than a second piece.
            return [(len(header) + len(only)).to_bytes(4, "big") + header + only]
        size = len(header) + sum(map(len, body))
        return [size.to_bytes(4, "big") + header, *body]

    def _later(
        self, correlation_id: int, flexible: bool, body: asyncio.Future[Buffers | None]
    ) -> asyncio.Future[Buffers | None]:
        framed: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()

        def done(body: asyncio.Future[Buffers | None]) -> None:
            if framed.done():
                return
            if body.cancelled():
                framed.cancel()
            elif (error := body.exception()) is not None:
                framed.set_exception(error)
            else:
                buffers = body.result()
                framed.set_result(None if buffers is None else self.framed(correlation_id, flexible, buffers))

        body.add_done_callback(done)
        # A lost connection takes its waiting fetches with it; a join goes on, as its member does.
        if not isinstance(body, asyncio.Task):
            framed.add_done_callback(lambda framed: body.cancel() if framed.cancelled() else None)
        return framed


def refusal(
    entry: Api, message: messages.Message, code: ErrorCode, version: int, sentence: str | None = None
) -> messages.Message:
    """The API's answer that says nothing but an error: its own `refuse`, else the top-level code."""
    own: Callable[[Any, ErrorCode, int], messages.Message] | None = getattr(entry.handler, "refuse", None)
    if own is not None:
        return own(message, code, version)
    response = entry.schema.Response(error_code=int(code))
    if sentence is not None and hasattr(response, "error_message"):
        response.error_message = sentence
    assert isinstance(response, messages.Message)
    return response
