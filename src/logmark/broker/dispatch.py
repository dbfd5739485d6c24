"""From a request's bytes to its response's bytes: find the API, decode, call its handler, encode.

Every request enters by `Dispatcher.answer`, which reads its header and makes the `Request` that all handlers get. A
handler answers at once with a message, or later with an awaitable. What it refuses with `Refused` becomes the
response's error code here, once for every API. A request that cannot be read costs its connection, nothing else.

A large request is decoded in turns of the event loop, and the answer to it encoded in turns: each takes the time of
thousands of small requests. Such long work holds its connection, so that its requests take effect in order, and the
group that it changes: later requests that change the same group wait behind it, whichever connection they come from. It
begins when its memory is reserved, in the order of `work_line`.
"""

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from logmark.broker import api
from logmark.broker.answers import Answer, Buffers, LateAnswer, LateReply, LongWork, encode_long
from logmark.broker.connection_limit import HEALTH_KEYS, TOO_MANY
from logmark.broker.event_loop_turns import STEPS_IN_A_TURN, Pace
from logmark.broker.loop_watchdog import TimedCoroutine
from logmark.broker.work_line import Reservation, WorkLine
from logmark.errors import ErrorCode, Malformed, Refused
from logmark.wire import fast_requests, frames, messages
from logmark.wire.primitives import BROKEN, Compact, Plain

if TYPE_CHECKING:
    from logmark.broker.connection import Connection
    from logmark.broker.server import Broker

log = logging.getLogger(__name__)

T = TypeVar("T")

API_VERSIONS_KEY = 18
NEVER = 1 << 15

# Requests above this size are decoded in turns; one of this size takes a millisecond or two.
LARGE_REQUEST_BYTES = 16 * 1024
# A larger answer is sent in two pieces.
COPIED_BYTES_MAX = 16 * 1024
# A small request that changes a group is decided, written and applied, which takes about as long as four others. So
# many of all connections are handled in one turn of the event loop; beyond that a connection has one.
GROUP_CHANGE_COST = 4
GROUP_CHANGES_IN_A_TURN = 64
LOOK_UPS_AT_ONCE = 2
# What long work takes beside its request if its handler says nothing else.
LONG_WORK_BYTES = 1024 * 1024
# Batches that are compressed again at one time. Each takes a processor for as long as half a second.
RECOMPRESSIONS_AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
# What the objects of a request and of its answer take in memory, at most, for each byte of the request and in all.
MEMORY_PER_BYTE, MEMORY_OF_OBJECTS_MAX = 30, 600 * messages.REQUEST_OBJECTS_MAX


class Request:
    """Who asks, in which version: what a handler may want to know beside the message."""

    __slots__ = ("api", "broker", "client_id", "connection", "correlation_id", "reservation", "version")

    def __init__(
        self,
        broker: "Broker",
        connection: "Connection",
        version: int,
        client_id: str | None,
        correlation_id: int,
        api: "Api",
    ) -> None:
        self.broker = broker
        self.connection = connection
        self.version = version
        self.client_id = client_id
        self.correlation_id = correlation_id
        self.api = api
        # The memory of its answer, while long work makes it.
        self.reservation: Reservation | None = None

    @property
    def client_host(self) -> str:
        """The client's address as Kafka writes it."""
        return f"/{self.connection.peer_host}"

    @property
    def principal(self) -> str:
        """Who the client is, as Kafka writes it."""
        return self.connection.principal

    def frame(self, body: Buffers) -> Buffers:
        """Return the whole response with this body: its length, its header and the body."""
        header = frames.response_header(self.correlation_id, flexible=self.version >= self.api.flexible_responses_from)
        if len(body) == 1 and isinstance(only := body[0], bytes | memoryview) and len(only) <= COPIED_BYTES_MAX:
            # One piece is one call of the transport, and a copy of a small answer is cheaper than a second piece.
            return [(len(header) + len(only)).to_bytes(4, "big") + header + only]
        size = len(header) + sum(map(len, body))
        return [size.to_bytes(4, "big") + header, *body]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One entry of the table: everything the dispatcher knows of an API."""

    key: int
    name: str
    versions: range
    schema: ModuleType
    handler: ModuleType
    reads_frames: bool
    # The first field of the body, if it names the groups that the request changes.
    group_field: str | None
    # Whether a larger request is refused before it is decoded.
    has_bytes_max: bool
    # Whether an answer may take much more memory than its request.
    has_answer_bytes_max: bool
    # The version from which on the header of a response has tagged fields.
    flexible_responses_from: int


def table() -> dict[int, Api]:
    """Return the APIs that this broker serves, by key: one module of broker/api each."""
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
            group_field=getattr(handler, "GROUP_FIELD", None),
            has_bytes_max=hasattr(handler, "request_bytes_max"),
            has_answer_bytes_max=hasattr(handler, "answer_bytes_max"),
            # The header of the response to ApiVersions is plain in every version: the client knows nothing yet.
            flexible_responses_from=NEVER if handler.KEY == API_VERSIONS_KEY or flexible is None else flexible,
        )
    return found


class Dispatcher:
    """Answers requests of every connection."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.apis = table()
        self._flexible_from: dict[int, int | None] = {
            key: entry.schema.FLEXIBLE_FROM for key, entry in self.apis.items()
        }
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}
        # The last request in line of each group that long work is about to change.
        self._changing: dict[str, asyncio.Task[None]] = {}
        # The small requests of this turn of the event loop that change groups.
        self._changes_in_turn = 0
        # The bytes that compressed batches of all connections have unpacked to in this turn; small ones do not count.
        self.unpacked_in_turn = 0
        self.work_line = WorkLine(broker.budget)
        # For look-ups by time, which read and unpack a batch.
        self.look_ups = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        # For batches that are compressed again: in threads of their own, because large batches wait for the others.
        self._recompressions = asyncio.Semaphore(RECOMPRESSIONS_AT_ONCE)
        self._recompressors = ThreadPoolExecutor(RECOMPRESSIONS_AT_ONCE, thread_name_prefix="logmark-recompression")
        # The first one starts with the first large batch or fetch.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="logmark-large-requests")

    def name_of(self, key: int) -> str:
        """Return the name of an API by its key; the key for one that is not served."""
        entry = self.apis.get(key)
        return f"API key {key}" if entry is None else entry.name

    def close(self) -> None:
        """Abandon the requests that are not answered yet: every connection is closed."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._recompressors.shutdown(wait=False, cancel_futures=True)

    def answer(self, frame: memoryview, connection: "Connection") -> Answer:
        """Return the response to one request: ready, later or never (acks=0).

        Raises Malformed if the request cannot be read, or if the connection may not send it.
        """
        header = fast_requests.read_header(frame.obj, self._flexible_from)
        if header is None:
            header = frames.read_request_header(frame, self._flexible_from.get)
        key, version, correlation_id, client_id, body_at = header
        if connection.is_in_reserve and key not in HEALTH_KEYS:
            raise Malformed(TOO_MANY)
        entry = self.apis.get(key)
        if entry is None:
            raise Malformed(f"API key {key} is not served here")
        request = Request(self._broker, connection, version, client_id, correlation_id, entry)
        if version not in entry.versions:
            if key == API_VERSIONS_KEY:
                return request.frame([entry.handler.unsupported_version(self.apis)])
            raise Malformed(f"{entry.name} version {version} is not served here")
        if not self._broker.faults.is_armed:
            return self._answer(frame, body_at, request, None)
        planned = self._broker.faults.take(entry.name)
        if planned is None:
            return self._answer(frame, body_at, request, None)
        start = partial(self._start, entry.name)
        return _detach(planned.carry_out(lambda code: self._answer(frame, body_at, request, code), start))

    def _answer(self, frame: memoryview, body_at: int, request: Request, refuse_with: ErrorCode | None) -> Answer:
        entry = request.api
        if entry.reads_frames:
            answer: Answer | LongWork = entry.handler.handle_frame(frame, body_at, request, refuse_with=refuse_with)
            if isinstance(answer, LongWork):
                return self._work_long(request, answer, memory_bytes=0)
            return answer
        if len(frame) > LARGE_REQUEST_BYTES:
            if entry.has_bytes_max and len(frame) > entry.handler.request_bytes_max(self._broker):
                refused = refusal(entry, entry.schema.Request(), ErrorCode.MESSAGE_TOO_LARGE, request.version)
                return _encode(request, refused)
            groups = _first_group(entry, frame, body_at, request.version)
            large = LongWork(self._answer_large(frame, body_at, request, refuse_with))
            # The connection holds the memory of the request itself. What it asks for is known when it is decoded.
            memory_bytes = len(frame) + min(MEMORY_PER_BYTE * len(frame), MEMORY_OF_OBJECTS_MAX)
            if entry.has_answer_bytes_max:
                memory_bytes += entry.handler.answer_bytes_max(self._broker, len(frame))
            return self._work_long(request, large, memory_bytes, groups)
        message = messages.decode_request(entry.schema, request.version, frame[body_at:])
        groups = _changed_groups(entry, message)
        if groups:
            self._count_change(request.connection)
        if self._changing and not self._changing.keys().isdisjoint(groups):
            behind = LongWork(self._answer_message(message, request, refuse_with))
            return self._work_long(request, behind, LONG_WORK_BYTES, groups)
        result = _handle(message, request, refuse_with)
        if isinstance(result, messages.Message):
            return _encode(request, result)
        if isinstance(result, LateReply):
            return _encode_later(message, request, result)
        if isinstance(result, LongWork):
            result.wrap(self._finish(message, result.work, request, is_long=True))
            return self._work_long(request, result, LONG_WORK_BYTES, groups)
        assert inspect.isawaitable(result)
        return _detach(self._start(entry.name, self._finish(message, result, request)))

    def _count_change(self, connection: "Connection") -> None:
        """Let connections that change groups give way sooner than those with requests that are answered from memory."""
        self._changes_in_turn += 1
        if self._changes_in_turn == 1:
            self._broker.loop.call_soon(self._begin_turn)
        if self._changes_in_turn > GROUP_CHANGES_IN_A_TURN:
            connection.end_turn_soon()
        else:
            connection.add_cost(GROUP_CHANGE_COST)

    def _begin_turn(self) -> None:
        self._changes_in_turn = 0

    def count_unpacked(self, size_bytes: int) -> None:
        """Count what a compressed batch has unpacked to on the event loop, for all connections."""
        if not self.unpacked_in_turn:
            self._broker.loop.call_soon(self._begin_unpacking_turn)
        self.unpacked_in_turn += size_bytes

    def _begin_unpacking_turn(self) -> None:
        self.unpacked_in_turn = 0

    def _work_long(
        self, request: Request, long: LongWork, memory_bytes: int, groups: Collection[str] = ()
    ) -> "asyncio.Future[Buffers | None]":
        """Hold the connection and the groups while the handler works; what it waits for afterwards does not hold them.

        It waits for the disk, say, or as a join for the other members. The request waits behind all that
        change one of the groups before this returns.
        """
        connection = request.connection
        answered: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()
        before = {self._changing[group] for group in groups if group in self._changing}

        async def work() -> None:
            try:
                answer = await self._in_line(request, long, memory_bytes, before)
            except Malformed as error:
                connection.refuse(str(error))
                answer = None
            except Exception as error:  # noqa: BLE001 - the connection logs it and is closed
                if not answered.done():
                    answered.set_exception(error)
                return
            if isinstance(answer, asyncio.Future | LateAnswer):
                _pass_on(answer, answered)
            elif not answered.done():
                answered.set_result(answer)

        task = self._start(request.api.name, work())
        # It was never begun if this was cancelled in the line.
        task.add_done_callback(lambda _: long.close())
        if groups:
            self._hold_groups(groups, task)
        connection.hold_during(task)
        return answered

    def _hold_groups(self, groups: Collection[str], task: "asyncio.Task[None]") -> None:
        """Let later requests that change these groups wait for a task."""

        def end(task: "asyncio.Task[None]") -> None:
            for group in groups:
                if self._changing.get(group) is task:
                    del self._changing[group]

        self._changing.update(dict.fromkeys(groups, task))
        task.add_done_callback(end)

    def _start(self, api: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(TimedCoroutine(self._broker.watchdog, api, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_line(
        self, request: Request, long: LongWork, memory_bytes: int, before: "set[asyncio.Task[None]]"
    ) -> Any:
        """Do long work when the work before it is done, its turn has come, and there is memory for it.

        Thousands of connections may ask for all topics at once, and read none of the answers.
        """
        if before:
            await asyncio.wait(before)
        answer: Any = long
        while isinstance(answer, LongWork):
            # What a large request waits for may be in line itself.
            long = answer
            try:
                answer = await self._work_in_turn(request, long, memory_bytes)
            finally:
                long.close()
        return answer

    async def _work_in_turn(self, request: Request, long: LongWork, memory_bytes: int) -> Any:
        if not long.is_in_line:
            return await long.work
        if long.memory_bytes is not None:
            memory_bytes = max(long.memory_bytes(), 1)
        async with self.work_line.begin(request.api.name, request.connection, memory_bytes) as request.reservation:
            try:
                return await long.work
            finally:
                request.reservation = None

    def share(
        self, request: Request, key: Hashable, memory_bytes: Callable[[], int], make: Callable[[], Awaitable[T]]
    ) -> "asyncio.Future[T]":
        """Return the result of long work, which all requests share that ask for the same before it begins.

        Thousands of connections may ask for all topics at once. Requests that come while the work is under way share
        the next one.
        """
        shared = self._shared.get(key)
        if shared is not None:
            return shared
        shared = self._shared[key] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                # Nobody's own: the line lets it begin as that of a new connection.
                async with self.work_line.begin(request.api.name, shared, memory_bytes()) as request.reservation:
                    del self._shared[key]
                    shared.set_result(await make())
            except BaseException as error:
                if self._shared.get(key) is shared:
                    del self._shared[key]
                if isinstance(error, asyncio.CancelledError):
                    shared.cancel()
                    raise
                shared.set_exception(error)
            finally:
                request.reservation = None

        self._start(request.api.name, work())
        return shared

    async def _answer_large(
        self, frame: memoryview, body_at: int, request: Request, refuse_with: ErrorCode | None
    ) -> "Buffers | asyncio.Future[Buffers | None] | LongWork | None":
        """Return the answer, or a future if the request has taken effect and waits for others, as a join does.

        Memory is held for the work and not for the wait: what a join says about its member counts as its group's.
        """
        try:
            message = await self._decode_in_turns(request, frame[body_at:])
        except Malformed as error:
            request.connection.refuse(str(error))
            return None
        return await self._answer_message(message, request, refuse_with)

    async def _decode_in_turns(self, request: Request, body: memoryview) -> messages.Message:
        pace = Pace()
        portions = messages.decode_request_in_portions(request.api.schema, request.version, body)
        while True:
            try:
                next(portions)
            except StopIteration as stop:
                message: messages.Message = stop.value
                return message
            await pace.step(STEPS_IN_A_TURN)

    async def _answer_message(
        self, message: messages.Message, request: Request, refuse_with: ErrorCode | None
    ) -> "Buffers | asyncio.Future[Buffers | None] | LongWork | None":
        result = _handle(message, request, refuse_with)
        if isinstance(result, messages.Message):
            return request.frame(await encode_long(request.api.schema, request, result))
        if isinstance(result, LongWork):
            finished = self._finish(message, result.work, request, is_long=True)
            if result.is_in_line:
                return await finished
            result.wrap(finished)
            return result
        waiting = _as_future(result) if isinstance(result, LateReply) else result
        return self._start(request.api.name, self._finish(message, waiting, request, is_long=True))

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Return what a call returns that takes long; not in the threads that wait for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def recompress(self, call: Callable[[], T], memory_bytes: int) -> T:
        """Return what a call returns that compresses a batch: few at a time, in the order in which they came."""
        async with self._recompressions, self.working(memory_bytes):
            return await asyncio.get_running_loop().run_in_executor(self._recompressors, call)

    def working(self, memory_bytes: int) -> "AbstractAsyncContextManager[Reservation]":
        """Hold memory for long work, which waits for it if others have taken too much."""
        return self.work_line.reserve(memory_bytes)

    async def _finish(
        self, message: messages.Message, result: Awaitable[Any], request: Request, *, is_long: bool = False
    ) -> Buffers | None:
        try:
            reply = await result
        except Refused as refused:
            # A handler that waits for a future refers to it, and so to this error: a circle with the whole request.
            refused.__traceback__ = None
            refuse = partial(refusal, request.api, message, refused.code, request.version, refused.message)
            reply = await self.in_thread(refuse) if is_long else refuse()
        except Exception:  # noqa: BLE001 - logged with its traceback
            _log_failed_handler(request)
            refuse = partial(refusal, request.api, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
            reply = await self.in_thread(refuse) if is_long else refuse()
        # A handler may encode a long answer itself.
        if isinstance(reply, list):
            return request.frame(reply)
        if not is_long:
            return _encode(request, reply)
        return request.frame(await encode_long(request.api.schema, request, reply))


def _handle(
    message: messages.Message, request: Request, refuse_with: ErrorCode | None
) -> "messages.Message | LateReply | LongWork | Awaitable[Any]":
    if refuse_with is not None:
        return refusal(request.api, message, refuse_with, request.version)
    try:
        result: messages.Message | LateReply | LongWork | Awaitable[Any] = request.api.handler.handle(message, request)
    except Refused as refused:
        return refusal(request.api, message, refused.code, request.version, refused.message)
    except Exception:  # noqa: BLE001 - logged with its traceback
        _log_failed_handler(request)
        return refusal(request.api, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
    return result


def _log_failed_handler(request: Request) -> None:
    log.exception("a handler failed", extra={"api": request.api.name, "version": request.version})


def _encode(request: Request, reply: Any) -> Buffers:
    return request.frame([messages.encode_response(request.api.schema, request.version, reply)])


def _encode_refusal(message: messages.Message, request: Request, code: ErrorCode, text: str | None = None) -> Buffers:
    return _encode(request, refusal(request.api, message, code, request.version, text))


def _encode_later(message: messages.Message, request: Request, reply: LateReply) -> LateAnswer:
    late = LateAnswer()

    def complete(reply: messages.Message) -> None:
        try:
            late.complete(_encode(request, reply))
        except Exception:  # noqa: BLE001 - logged with its traceback
            _log_failed_handler(request)
            late.complete(_encode_refusal(message, request, ErrorCode.UNKNOWN_SERVER_ERROR))

    reply.when_complete(complete)
    return late


def _changed_groups(entry: Api, message: messages.Message) -> Collection[str]:
    if entry.group_field is None:
        return ()
    named: str | list[str] = getattr(message, entry.group_field)
    return (named,) if isinstance(named, str) else named


def _first_group(entry: Api, frame: memoryview, body_at: int, version: int) -> Collection[str]:
    """Return the group that a large request changes, which is read without decoding the rest.

    None for DeleteGroups, which names many: to read them all would hold the event loop.
    """
    if entry.group_field != "group_id":
        return ()
    encoding = Compact if messages.is_flexible(entry.schema, version) else Plain
    try:
        group, _ = encoding.read_string(frame, body_at)
    except BROKEN as error:
        raise Malformed(f"a request is broken: {error}") from error
    return () if group is None else (group,)


def _as_future(late: LateReply) -> "asyncio.Future[messages.Message]":
    future: asyncio.Future[messages.Message] = asyncio.get_running_loop().create_future()

    def complete(reply: messages.Message) -> None:
        if not future.done():
            future.set_result(reply)

    late.when_complete(complete)
    return future


def _detach(answer: Answer) -> Answer:
    """Return an answer that a lost connection may cancel: what makes it is not cancelled, if that is a task."""
    if not isinstance(answer, asyncio.Task):
        return answer
    answered: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()
    _pass_on(answer, answered)
    return answered


def _pass_on(answer: "asyncio.Future[Buffers | None] | LateAnswer", to: "asyncio.Future[Buffers | None]") -> None:
    """Complete a future with an answer."""

    def copy(done: "asyncio.Future[Buffers | None] | LateAnswer") -> None:
        if to.done():
            return
        if done.cancelled():
            to.cancel()
        elif (error := done.exception()) is not None:
            to.set_exception(error)
        else:
            to.set_result(done.result())

    answer.add_done_callback(copy)
    # A lost connection takes its waiting fetches with it; a join goes on, as its member does.
    if not isinstance(answer, asyncio.Task):
        to.add_done_callback(lambda to: answer.cancel() if to.cancelled() else None)


def refusal(
    entry: Api, message: messages.Message, code: ErrorCode, version: int, text: str | None = None
) -> messages.Message:
    """Return the API's response that only has an error: by its own `refuse`, else with the top-level code."""
    own: Callable[[Any, ErrorCode, int], messages.Message] | None = getattr(entry.handler, "refuse", None)
    if own is not None:
        return own(message, code, version)
    response = entry.schema.Response(error_code=int(code))
    if text is not None and hasattr(response, "error_message"):
        response.error_message = text
    assert isinstance(response, messages.Message)
    return response
