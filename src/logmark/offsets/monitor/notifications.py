"""Tells people and programs of alerts: a line, a signed message to an address, or a command with JSON on its input.

Each of them has a thread and a bounded queue of its own, so that one that does not answer holds up nobody else, and
messages to one of them keep their order: nothing is resolved before it has fired.
"""

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import random
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from urllib.parse import urlsplit

from logmark import __version__
from logmark.clock import Clock, SystemClock
from logmark.offsets.monitor.alert_file import COMMAND, STDOUT, WEBHOOK, Notifier
from logmark.offsets.monitor.alerts import AlertEvent, AlertRule
from logmark.offsets.times import format_time

QUEUE_MAX = 1000
_FIRST_PAUSE_S, _PAUSE_MAX_S = 1.0, 60.0
_RETRY_AFTER_MAX_S = 300.0
_ANSWER_BYTES_MAX = 4096
_RETRIED_STATUSES = frozenset({408, 425, 429})

Message = Mapping[str, Any]


class NotDelivered(Exception):
    """A message did not arrive; `is_final` tells that it never will."""

    def __init__(self, reason: str, *, is_final: bool = False, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.is_final = is_final
        self.retry_after_s = retry_after_s


def build_message(event: AlertEvent, rule: AlertRule | None, *, cluster_id: str, cluster_name: str) -> dict[str, Any]:
    """Return the message about an event for programs; `id` is the same for firing and resolved."""
    state = event.state
    return {
        "version": 1,
        "id": state.id,
        "event": "firing" if event.is_firing else "resolved",
        "alert": state.rule,
        "when": rule.when if rule else None,
        "severity": state.severity or None,
        "cluster": {"id": cluster_id, "name": cluster_name},
        "group": state.subject.group,
        "topic": state.subject.topic,
        "partition": state.subject.partition,
        "value": state.value,
        "since": format_time(state.since_ms),
        "at": format_time(event.at_ms),
        "text": event.sentence,
    }


def format_message(message: Message) -> str:
    """Return the message about an event for people."""
    severity = f" [{message['severity']}]" if message["severity"] else ""
    return f"{message['at']} {message['event'].upper()}{severity} {message['alert']}: {message['text']}"


def sign_body(secret: bytes, timestamp_s: int, body: bytes) -> str:
    """HMAC-SHA256 of the time in seconds, a dot and the body."""
    return "sha256=" + hmac.new(secret, b"%d." % timestamp_s + body, hashlib.sha256).hexdigest()


def retry_delay_s(attempt: int, retry_after_s: float | None = None, *, jitter: float = 1.0) -> float:
    """How long to wait after an attempt: a second after the first, then twice as long each time, or as it was asked."""
    if retry_after_s is not None:
        return min(max(retry_after_s, 0.0), _RETRY_AFTER_MAX_S)
    return min(_FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 30), _PAUSE_MAX_S) * jitter


def send_webhook(notifier: Notifier, message: Message, *, now_ms: int) -> None:
    """Send a message to a URL; raises NotDelivered unless the answer is a success."""
    body = json.dumps(message, ensure_ascii=False).encode()
    timestamp_s = now_ms // 1000
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"logmark/{__version__}",
        "X-Logmark-Id": f"{message['id']}-{message['event']}",
        "X-Logmark-Timestamp": str(timestamp_s),
    }
    if notifier.secret:
        headers["X-Logmark-Signature"] = sign_body(notifier.secret, timestamp_s, body)
    # The scheme was checked when the file was read.
    request = urllib.request.Request(notifier.url, data=body, headers=headers, method="POST")  # noqa: S310
    try:
        with _OPENER.open(request, timeout=notifier.timeout_s) as answer:
            answer.read(_ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(error.code, error.headers.get("Retry-After")) from None
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NotDelivered(f"{reason}") from None


def _refusal(status: int, retry_after: str | None) -> NotDelivered:
    is_final = status < 500 and status not in _RETRIED_STATUSES
    with contextlib.suppress(ValueError):
        return NotDelivered(f"it answered {status}", is_final=is_final, retry_after_s=float(retry_after or ""))
    return NotDelivered(f"it answered {status}", is_final=is_final)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other that does not take the message: what is signed goes nowhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def run_command(notifier: Notifier, message: Message) -> None:
    """Run a command with the message on its standard input; raises NotDelivered unless it ends with 0 in time."""
    try:
        process = subprocess.Popen(  # noqa: S603 - the words are the operator's, and no shell reads them
            list(notifier.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(f"it cannot be run: {error.strerror}", is_final=True) from None
    body = json.dumps(message, ensure_ascii=False).encode() + b"\n"
    try:
        _, said = process.communicate(body, timeout=notifier.timeout_s)
    except subprocess.TimeoutExpired:
        # With what it has started: nobody else would end that.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise NotDelivered(f"it took longer than {notifier.timeout_s:g} s") from None
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NotDelivered(f"it ended with {process.returncode}{f' ({last[0][:200]})' if last else ''}")


def describe_notifier(notifier: Notifier) -> str:
    """Return a notifier in words, without the parts of its address that may be secret."""
    if notifier.kind == WEBHOOK:
        parts = urlsplit(notifier.url)
        return f"{notifier.name} ({parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''})"
    return f"{notifier.name} ({notifier.command[0]})" if notifier.kind == COMMAND else notifier.name


class NotificationWorker:
    """Brings messages to one notifier, in order, in a thread of its own.

    `done` gets the key of each message, and whether it was delivered.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        say: Callable[[str], None],
        done: Callable[[str, bool], None],
        write: Callable[[Message], None],
        clock: Clock | None = None,
        wait: Callable[[float], bool] | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._notifier = notifier
        self._say = say
        self._done = done
        self._write = write
        self._clock = clock or SystemClock()
        self._queue: deque[tuple[str, Message]] = deque()
        self._queue_max = queue_max
        self._changed = threading.Condition()
        self._closing = threading.Event()
        # A worker that waits between two attempts stops waiting when it is closed.
        self._wait = wait or self._closing.wait
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name=f"notify-{notifier.name}", daemon=True)
        self._thread.start()

    def take(self, key: str, message: Message) -> None:
        """Queue a message; if the queue is full, the oldest one is dropped."""
        dropped = None
        with self._changed:
            if len(self._queue) >= self._queue_max:
                dropped = self._queue.popleft()
            self._queue.append((key, message))
            self._changed.notify_all()
        if dropped is not None:
            self._say(f"Too many messages wait for {describe_notifier(self._notifier)}; the oldest was given up.")
            self._done(dropped[0], False)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every message is delivered or dropped, at most `timeout_s`; return whether none is left."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Try each queued message once more, at most `timeout_s`, and stop; what is left was not delivered."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing.is_set())
                if not self._queue:
                    return
                key, message = self._queue.popleft()
                self._is_busy = True
            try:
                self._bring(key, message)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _bring(self, key: str, message: Message) -> None:
        for attempt in range(1, self._notifier.attempts + 1):
            try:
                self._deliver(message)
            except NotDelivered as failure:
                is_last = failure.is_final or attempt == self._notifier.attempts
                if attempt == 1 or is_last:
                    is_kept = self._closing.is_set()
                    what = "it is given up" if is_last else "it is kept" if is_kept else "trying again"
                    self._say(
                        f"The message {message['alert']!r} did not reach {describe_notifier(self._notifier)}: "
                        f"{failure}; {what}."
                    )
                if is_last:
                    self._done(key, False)
                    return
                self._wait(retry_delay_s(attempt, failure.retry_after_s, jitter=random.uniform(0.8, 1.2)))  # noqa: S311
                if self._closing.is_set():
                    return
            else:
                self._done(key, True)
                return

    def _deliver(self, message: Message) -> None:
        if self._notifier.kind == WEBHOOK:
            send_webhook(self._notifier, message, now_ms=self._clock.now_ms())
        elif self._notifier.kind == COMMAND:
            run_command(self._notifier, message)
        else:
            try:
                self._write(message)
            except OSError as error:
                raise NotDelivered(f"{error.strerror}", is_final=True) from None


class NotificationDispatcher:
    """Everybody who is told, and the messages that have not arrived: those outlive a restart."""

    def __init__(
        self,
        notifiers: Mapping[str, Notifier],
        *,
        say: Callable[[str], None],
        write: Callable[[Message], None],
        clock: Clock | None = None,
        wait: Callable[[float], bool] | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        everybody = {STDOUT: Notifier(name=STDOUT, kind=STDOUT), **notifiers}
        self.delivered = self.given_up = 0
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[str, Message]] = {}
        self._count = 0
        self._couriers = {
            name: NotificationWorker(
                one, say=say, done=self._done, write=write, clock=clock, wait=wait, queue_max=queue_max
            )
            for name, one in everybody.items()
        }

    def send(self, names: Sequence[str], message: Message) -> None:
        """Hands a message to those who are to be told, or writes it to standard output if nobody is named."""
        for name in names or (STDOUT,):
            if name in self._couriers:
                self.resend(name, message)

    def resend(self, name: str, message: Message) -> None:
        """Hands a message to one of them."""
        courier = self._couriers.get(name)
        if courier is None:
            return
        with self._lock:
            self._count += 1
            key = str(self._count)
            self._waiting[key] = (name, message)
        courier.take(key, message)

    def waiting(self) -> list[tuple[str, Message]]:
        """Return the messages that are neither delivered nor dropped, oldest first."""
        with self._lock:
            return list(self._waiting.values())

    def flush(self, timeout_s: float) -> bool:
        """Wait until no message is queued, at most `timeout_s` for each notifier."""
        is_empty = [courier.flush(timeout_s) for courier in self._couriers.values()]
        return all(is_empty)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop the threads; undelivered messages are still in `waiting`."""
        for courier in self._couriers.values():
            courier.close(timeout_s)

    def _done(self, key: str, is_delivered: bool) -> None:
        with self._lock:
            self._waiting.pop(key, None)
            if is_delivered:
                self.delivered += 1
            else:
                self.given_up += 1
