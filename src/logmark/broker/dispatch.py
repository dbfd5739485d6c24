"""From a request's bytes to its answer's bytes: find the API, decode, call its handler, encode.

A handler answers at once with a message, or later with an awaitable. What it refuses with `Refused` becomes the
answer's error code here, once for every API. A request that cannot be read costs its connection, nothing else.

A large request is decoded in a thread, and the answer to it encoded in one: each takes the time of thousands of small
requests. Such long work holds its connection, so that its requests take effect in order, and the group that it changes:
later requests that change the same group wait behind it, whichever connection they come from.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from logmark.broker import api
from logmark.broker.answers import Body, Buffers, LateAnswer, LateReply, LongWork
from logmark.broker.api import produce
from logmark.broker.loop_watchdog import TimedCoroutine
from logmark.errors import ErrorCode, Malformed, Refused
from logmark.wire import fast_produce, frames, messages
from logmark.wire.primitives import BROKEN, Compact, Plain

if TYPE_CHECKING:
    from logmark.broker.connection import Connection
    from logmark.broker.server import Broker

log = logging.getLogger(__name__)

T = TypeVar("T")

API_VERSIONS_KEY = 18
NEVER = 1 << 15

# Requests above this size are decoded in a thread; one of this size takes a millisecond or two.
LARGE_REQUEST_BYTES = 16 * 1024
# A larger answer is sent in two pieces.
COPIED_BYTES_MAX = 16 * 1024
# A small request that changes a group is decided, written and applied, which takes about as long as four others. So
# many of all connections are handled in one turn of the event loop; beyond that a connection has one.
GROUP_CHANGE_COST = 4
GROUP_CHANGES_IN_A_TURN = 64
# Long work that is under way at one time, and the memory that each takes beside its request, about.
LONG_WORKS_AT_ONCE = 4
LOOK_UPS_AT_ONCE = 2
LONG_WORK_BYTES = 1024 * 1024
# What the objects of a request and of its answer take in memory, at most, for each byte of the request and in all.
MEMORY_PER_BYTE, MEMORY_OF_OBJECTS_MAX = 30, 600 * messages.REQUEST_OBJECTS_MAX


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
    # The first field of the body, if it names the groups that the request changes.
    group_field: str | None
    # Whether a larger request is refused before it is decoded.
    has_bytes_max: bool
    flexible_headers_from: int


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
            # The header of the answer to ApiVersions is plain in every version: the client knows nothing yet.
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
        self._tasks: set[asyncio.Task[Any]] = set()
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}
        # The last request in line of each group that long work is about to change.
        self._changing: dict[str, asyncio.Task[None]] = {}
        # The small requests of this turn of the event loop that change groups.
        self._changes_in_turn = 0
        self._long_works = asyncio.Semaphore(LONG_WORKS_AT_ONCE)
        # For look-ups by time, which read and unpack a batch.
        self.look_ups = asyncio.Semaphore(LOOK_UPS_AT_ONCE)
        # The first one starts with the first large request.
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

    def answer(self, frame: memoryview, connection: "Connection") -> Body:
        """Return the answer to one request: ready, later or never (acks=0). Raises Malformed if it cannot be read."""
        asked = None if self._broker.faults.is_armed else fast_produce.read_produce(frame.obj)
        if asked is not None:
            written = produce.handle_usual(asked, frame, connection, self._broker)
            if isinstance(written, bytes):
                return [written]
            # A late answer to this request is whole already.
            if isinstance(written, LateAnswer):
                return written
            if isinstance(written, LongWork):
                return self._whole(asked[1], True, self._work_long("Produce", written, connection))
            return self._whole(asked[1], True, written)
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
        """Return the response with its header, as soon as there is a body."""
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
            answer: Body | LongWork = entry.handler.handle_frame(frame, body_at, request, refuse_with=refuse_with)
            if isinstance(answer, LongWork):
                return self._work_long(entry.name, answer, request.connection)
            return answer
        if len(frame) > LARGE_REQUEST_BYTES:
            if entry.has_bytes_max and len(frame) > entry.handler.request_bytes_max(self._broker):
                refused = refusal(entry, entry.schema.Request(), ErrorCode.MESSAGE_TOO_LARGE, request.version)
                return self._encoded(entry, request, refused)
            groups = _first_group(entry, frame, body_at, request.version)
            large = LongWork(self._answer_large(entry, frame, body_at, request, refuse_with))
            # The connection holds the memory of the request itself.
            memory_bytes = len(frame) + min(MEMORY_PER_BYTE * len(frame), MEMORY_OF_OBJECTS_MAX)
            return self._work_long(entry.name, large, request.connection, memory_bytes, groups)
        message = messages.decode_request(entry.schema, request.version, frame[body_at:])
        groups = _changed_groups(entry, message)
        if groups:
            self._count_change(request.connection)
        if self._changing and not self._changing.keys().isdisjoint(groups):
            behind = LongWork(self._answer_message(entry, message, request, refuse_with))
            return self._work_long(entry.name, behind, request.connection, LONG_WORK_BYTES, groups)
        result = self._handle(entry, message, request, refuse_with)
        if isinstance(result, messages.Message):
            return self._encoded(entry, request, result)
        if isinstance(result, LateReply):
            return self._encoded_later(entry, message, request, result)
        if isinstance(result, LongWork):
            result.work = self._finish(entry, message, result.work, request, is_long=True)
            return self._work_long(entry.name, result, request.connection, LONG_WORK_BYTES, groups)
        assert inspect.isawaitable(result)
        return self._start(entry.name, self._finish(entry, message, result, request))

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

    def _work_long(
        self,
        api: str,
        long: LongWork,
        connection: "Connection",
        memory_bytes: int = 0,
        groups: Collection[str] = (),
    ) -> "asyncio.Future[Buffers | None]":
        """Hold the connection and the groups while the handler works; what it waits for afterwards does not hold them.

        It waits for the disk, say, or as a join for the other members. The request waits behind all that
        change one of the groups before this returns.
        """
        answered: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()
        before = {self._changing[group] for group in groups if group in self._changing}

        async def work() -> None:
            try:
                body = await self._in_line(long, memory_bytes, before)
            except Malformed as error:
                connection.refuse(str(error))
                body = None
            except Exception as error:  # noqa: BLE001 - the connection logs it and is closed
                if not answered.done():
                    answered.set_exception(error)
                return
            if isinstance(body, asyncio.Future | LateAnswer):
                body.add_done_callback(lambda body: _copy(body, answered))
                # A lost connection takes its waiting fetches with it; a join goes on, as its member does.
                if not isinstance(body, asyncio.Task):
                    answered.add_done_callback(lambda answered: body.cancel() if answered.cancelled() else None)
            elif not answered.done():
                answered.set_result(body)

        task = self._start(api, work())
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

    def _handle(
        self, entry: Api, message: messages.Message, request: Request, refuse_with: ErrorCode | None
    ) -> "messages.Message | LateReply | LongWork | Awaitable[Any]":
        if refuse_with is not None:
            return refusal(entry, message, refuse_with, request.version)
        try:
            result: messages.Message | LateReply | LongWork | Awaitable[Any] = entry.handler.handle(message, request)
        except Refused as refused:
            return refusal(entry, message, refused.code, request.version, refused.message)
        except Exception:
            log.exception("a handler failed", extra={"api": entry.name, "version": request.version})
            return refusal(entry, message, ErrorCode.UNKNOWN_SERVER_ERROR, request.version)
        return result

    def _start(self, api: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(TimedCoroutine(self._broker.watchdog, api, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_line(self, long: LongWork, memory_bytes: int, before: "set[asyncio.Task[None]]") -> Any:
        """Do long work when the work before it is done, few others are at work, and there is memory for it.

        Thousands of connections may ask for all topics at once, and read none of the answers.
        """
        try:
            if before:
                await asyncio.wait(before)
            if not long.is_in_line:
                return await long.work
            async with self._long_works:
                if not memory_bytes:
                    return await long.work
                async with self.working(memory_bytes):
                    body = await long.work
            # What a large request waits for may be in line itself.
            return await body.work if isinstance(body, LongWork) else body
        finally:
            # It was never begun if this was cancelled in the line.
            long.work.close()

    def share(self, api: str, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Future[T]":
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
                async with self._long_works, self.working(LONG_WORK_BYTES):
                    del self._shared[key]
                    shared.set_result(await make())
            except BaseException as error:
                if self._shared.get(key) is shared:
                    del self._shared[key]
                if isinstance(error, asyncio.CancelledError):
                    shared.cancel()
                    raise
                shared.set_exception(error)

        self._start(api, work())
        return shared

    async def _answer_large(
        self, entry: Api, frame: memoryview, body_at: int, request: Request, refuse_with: ErrorCode | None
    ) -> "Buffers | asyncio.Future[Buffers | None] | LongWork | None":
        """Return the answer, or a future if the request has taken effect and waits for others, as a join does.

        Memory is held for the work and not for the wait: what a join says about its member counts as its group's.
        """
        try:
            message = await self.in_thread(
                partial(messages.decode_request, entry.schema, request.version, frame[body_at:])
            )
        except Malformed as error:
            request.connection.refuse(str(error))
            return None
        return await self._answer_message(entry, message, request, refuse_with)

    async def _answer_message(
        self, entry: Api, message: messages.Message, request: Request, refuse_with: ErrorCode | None
    ) -> "Buffers | asyncio.Future[Buffers | None] | LongWork | None":
        result = self._handle(entry, message, request, refuse_with)
        if isinstance(result, messages.Message):
            return await self.in_thread(partial(self._encoded, entry, request, result))
        if isinstance(result, LongWork):
            result.work = self._finish(entry, message, result.work, request, is_long=True)
            return await result.work if result.is_in_line else result
        waiting = _as_future(result) if isinstance(result, LateReply) else result
        return self._start(entry.name, self._finish(entry, message, waiting, request, is_long=True))

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Return what a call returns that takes long; not in the threads that wait for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @asynccontextmanager
    async def working(self, memory_bytes: int) -> AsyncIterator[None]:
        """Hold memory for long work, which waits for it if others have taken too much."""
        budget = self._broker.budget
        begun = asyncio.Event()
        if budget.begin_work(memory_bytes, begun.set):
            begun.set()
        try:
            await begun.wait()
            yield
        finally:
            # Who is cancelled while it waits may have been granted the memory in the same turn.
            if begun.is_set():
                budget.end_work(memory_bytes)
            else:
                budget.withdraw_work(begun.set)

    async def _finish(
        self, entry: Api, message: messages.Message, result: Awaitable[Any], request: Request, *, is_long: bool = False
    ) -> Buffers | None:
        try:
            reply = await result
        except Refused as refused:
            # A handler that waits for a future refers to it, and so to this error: a circle with the whole request.
            refused.__traceback__ = None
            encode = partial(self._refused, entry, message, request, refused.code, refused.message)
        except Exception:
            log.exception("a handler failed", extra={"api": entry.name, "version": request.version})
            encode = partial(self._refused, entry, message, request, ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            # A handler may encode a long answer itself, so that others have their turn meanwhile.
            if isinstance(reply, list):
                return reply
            encode = partial(self._encoded, entry, request, reply)
        return await self.in_thread(encode) if is_long else encode()

    def _refused(
        self, entry: Api, message: messages.Message, request: Request, code: ErrorCode, sentence: str | None = None
    ) -> Buffers:
        return self._encoded(entry, request, refusal(entry, message, code, request.version, sentence))

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
        if len(body) == 1 and isinstance(only := body[0], bytes | memoryview) and len(only) <= COPIED_BYTES_MAX:
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


def _copy(done: "asyncio.Future[Buffers | None] | LateAnswer", to: "asyncio.Future[Buffers | None]") -> None:
    if to.done():
        return
    if done.cancelled():
        to.cancel()
    elif (error := done.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(done.result())


def refusal(
    entry: Api, message: messages.Message, code: ErrorCode, version: int, sentence: str | None = None
) -> messages.Message:
    """Return the API's response that only has an error: by its own `refuse`, else with the top-level code."""
    own: Callable[[Any, ErrorCode, int], messages.Message] | None = getattr(entry.handler, "refuse", None)
    if own is not None:
        return own(message, code, version)
    response = entry.schema.Response(error_code=int(code))
    if sentence is not None and hasattr(response, "error_message"):
        response.error_message = sentence
    assert isinstance(response, messages.Message)
    return response
