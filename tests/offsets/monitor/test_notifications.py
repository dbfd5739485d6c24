"""Messages reach addresses and commands, signed and in order; who does not answer is tried again, and not for ever."""

import hashlib
import hmac
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from logmark.clock import ManualClock
from logmark.offsets.monitor.alert_file import Notifier
from logmark.offsets.monitor.alerts import AlertEvent, AlertRule, AlertState, AlertSubject
from logmark.offsets.monitor.notifications import (
    NotDelivered,
    NotificationDispatcher,
    build_message,
    format_message,
    retry_delay_s,
    run_command,
)
from tests.harness.node import wait_until

NOW_MS = 1_700_000_000_000
SECRET = b"s3cret"


class WebhookServer:
    """A server that takes messages, and answers with the statuses that a test gives it, then with 200."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[tuple[dict[str, str], bytes]] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.received.append((dict(self.headers), body))
                status, headers = hook.answers.pop(0) if hook.answers else (200, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hooks/token-in-path"

    @property
    def events(self) -> list[str]:
        return [json.loads(body)["event"] for _, body in self.received]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    hook = WebhookServer()
    yield hook
    hook.close()


def event(*, is_firing: bool = True, alert: str = "behind") -> AlertEvent:
    state = AlertState(
        rule=alert, subject=AlertSubject("billing", "orders"), since_ms=NOW_MS - 300_000, seen_ms=NOW_MS,
        fired_ms=NOW_MS,
        value=12.0, severity="page",
    )  # fmt: skip
    return AlertEvent(is_firing=is_firing, state=state, at_ms=NOW_MS, sentence="It is so.")


def message(**changes: Any) -> dict[str, Any]:
    return build_message(event(**changes), AlertRule(name="behind", when="lag"), cluster_id="c1", cluster_name="prod")


class NotifierDriver:
    """Notifiers that wait for nothing, and what they said and wrote."""

    def __init__(self, *notifiers: Notifier, queue_max: int = 1000) -> None:
        self.said: list[str] = []
        self.written: list[str] = []
        self.pauses: list[float] = []
        self.post = NotificationDispatcher(
            {one.name: one for one in notifiers},
            say=self.said.append,
            write=lambda one: self.written.append(format_message(one)),
            clock=ManualClock(NOW_MS),
            wait=self._pause,
            queue_max=queue_max,
        )

    def _pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return False

    def notify(self, *names: str, **changes: Any) -> None:
        self.post.send(names, message(**changes))
        assert self.post.flush(60)


def webhook(hook: WebhookServer, **changes: Any) -> Notifier:
    return Notifier(**{"name": "ops", "kind": "webhook", "url": hook.url, "secret": SECRET, **changes})


def test_a_message_says_everything_about_an_event() -> None:
    firing, resolved = message(), message(is_firing=False)

    assert {
        "version": 1, "id": firing["id"], "event": "firing", "alert": "behind", "when": "lag", "severity": "page",
        "cluster": {"id": "c1", "name": "prod"}, "group": "billing", "topic": "orders", "partition": None,
        "value": 12.0, "since": "2023-11-14T22:08:20.000Z", "at": "2023-11-14T22:13:20.000Z", "text": "It is so.",
    } == firing  # fmt: skip
    assert {"event": "resolved"} == {key: value for key, value in resolved.items() if value != firing[key]}


def test_a_webhook_gets_json_with_a_signature_over_time_and_body(hook: WebhookServer) -> None:
    driver = NotifierDriver(webhook(hook))

    driver.notify("ops")

    ((headers, body),) = hook.received
    assert message() == json.loads(body)
    assert "application/json" == headers["Content-Type"]
    assert "1700000000" == headers["X-Logmark-Timestamp"]
    expected = hmac.new(SECRET, b"1700000000." + body, hashlib.sha256).hexdigest()
    assert f"sha256={expected}" == headers["X-Logmark-Signature"]
    assert f"{message()['id']}-firing" == headers["X-Logmark-Id"]
    assert (1, 0, []) == (driver.post.delivered, driver.post.given_up, driver.post.waiting())


def test_without_a_secret_there_is_no_signature(hook: WebhookServer) -> None:
    NotifierDriver(webhook(hook, secret=b"")).notify("ops")

    assert "X-Logmark-Signature" not in hook.received[0][0]


def test_a_webhook_that_fails_is_tried_again_with_growing_pauses(hook: WebhookServer) -> None:
    hook.answers = [(500, {}), (503, {}), (429, {"Retry-After": "7"}), (200, {})]
    driver = NotifierDriver(webhook(hook))

    driver.notify("ops")

    assert 4 == len(hook.received)
    assert 1 == len({body for _, body in hook.received})
    first, second, third = driver.pauses
    assert 0.8 <= first <= 1.2 and 1.6 <= second <= 2.4 and 7 == third
    assert 1 == driver.post.delivered
    (line,) = driver.said
    where = hook.url.removesuffix("/hooks/token-in-path")
    assert f"The message 'behind' did not reach ops ({where}): it answered 500; trying again." == line


def test_a_webhook_that_never_takes_a_message_is_given_up(hook: WebhookServer) -> None:
    hook.answers = [(500, {})] * 3
    driver = NotifierDriver(webhook(hook, attempts=3))

    driver.notify("ops")

    assert 3 == len(hook.received)
    assert (0, 1, []) == (driver.post.delivered, driver.post.given_up, driver.post.waiting())
    assert driver.said[-1].endswith("it answered 500; it is given up.")


@pytest.mark.parametrize("answer", [(400, {}), (404, {}), (302, {"Location": "http://127.0.0.1:9/"})], ids=str)
def test_a_refusal_or_a_redirect_is_not_tried_again(hook: WebhookServer, answer: tuple[int, dict[str, str]]) -> None:
    hook.answers = [answer]
    driver = NotifierDriver(webhook(hook))

    driver.notify("ops")

    assert 1 == len(hook.received)
    assert (0, 1) == (driver.post.delivered, driver.post.given_up)


def test_an_address_where_nobody_listens_is_tried_again(hook: WebhookServer) -> None:
    hook.close()
    driver = NotifierDriver(webhook(hook, attempts=2))

    driver.notify("ops")

    assert 1 == len(driver.pauses)
    assert "Connection refused" in driver.said[0]


def test_messages_to_one_notifier_keep_their_order(hook: WebhookServer) -> None:
    hook.answers = [(500, {}), (500, {})]
    driver = NotifierDriver(webhook(hook))

    driver.post.send(["ops"], message())
    driver.post.send(["ops"], message(is_firing=False))
    assert driver.post.flush(60)

    assert ["firing", "firing", "firing", "resolved"] == hook.events


def test_a_notifier_that_does_not_answer_holds_up_nobody_else(hook: WebhookServer) -> None:
    held = threading.Event()
    driver = NotifierDriver(webhook(hook))
    slow = NotificationDispatcher(
        {"ops": webhook(hook, attempts=100)}, say=driver.said.append,
        write=lambda one: driver.written.append(format_message(one)),
        wait=lambda seconds: held.wait(60),
    )  # fmt: skip
    hook.answers = [(500, {})]

    slow.send(["ops", "stdout"], message())

    deadline = time.monotonic() + 60
    while not driver.written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ["2023-11-14T22:13:20.000Z FIRING [page] behind: It is so."] == driver.written
    assert [("ops", message())] == slow.waiting()
    held.set()
    assert slow.flush(60)
    slow.close()


def test_what_was_not_brought_before_the_end_is_still_waiting(hook: WebhookServer) -> None:
    hook.answers = [(500, {})] * 50
    post = NotificationDispatcher({"ops": webhook(hook)}, say=lambda _: None, write=lambda _: None)

    post.send(["ops"], message())
    post.send(["ops"], message(is_firing=False))
    post.close()

    assert [("ops", message()), ("ops", message(is_firing=False))] == post.waiting()


def test_a_full_queue_gives_up_the_oldest_message(hook: WebhookServer) -> None:
    held = threading.Event()
    said: list[str] = []
    hook.answers = [(500, {})]
    post = NotificationDispatcher(
        {"ops": webhook(hook)}, say=said.append, write=lambda _: None, wait=lambda _: held.wait(60), queue_max=2
    )
    for number in range(5):
        post.send(["ops"], message(alert=f"alert {number}"))
        while number == 0 and not hook.received:
            time.sleep(0.01)
    held.set()
    assert post.flush(60)

    assert ["alert 0", "alert 0", "alert 3", "alert 4"] == [json.loads(body)["alert"] for _, body in hook.received]
    assert 2 == sum("the oldest was given up" in one for one in said)
    assert (3, 2) == (post.delivered, post.given_up)
    post.close()


def test_nobody_named_means_standard_output() -> None:
    driver = NotifierDriver()

    driver.notify()

    assert ["2023-11-14T22:13:20.000Z FIRING [page] behind: It is so."] == driver.written


def command(*words: str, **changes: Any) -> Notifier:
    return Notifier(**{"name": "page", "kind": "command", "command": (sys.executable, "-c", *words), **changes})


def test_a_command_gets_the_message_on_its_input_and_no_shell_reads_its_words(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("import sys; open(sys.argv[1], 'w').write(sys.argv[2] + sys.stdin.read())", str(out), "$HOME; `id`")

    run_command(command(*words), message())

    assert "$HOME; `id`" + json.dumps(message()) + "\n" == out.read_text()


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(NotDelivered, match=r"it ended with 3 \(no such pager\)"):
        run_command(command("import sys; print('no such pager', file=sys.stderr); sys.exit(3)"), message())


def test_a_command_that_does_not_read_its_input_is_no_failure() -> None:
    run_command(command("pass"), {**message(), "text": "x" * 1_000_000})


def test_a_command_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    sleeper = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPS!r}, {str(tmp_path / 'alive')!r}])"

    with pytest.raises(NotDelivered, match=r"it took longer than 1 s"):
        run_command(command(sleeper, timeout_s=1.0), message())

    def is_still() -> bool:
        # A process that was killed while it made the file may still have made it.
        (tmp_path / "alive").unlink(missing_ok=True)
        time.sleep(0.3)
        return not (tmp_path / "alive").exists()

    wait_until(is_still, "nothing that the command started runs")


SLEEPS = "import sys, time, pathlib\nwhile True:\n    pathlib.Path(sys.argv[1]).touch()\n    time.sleep(0.05)"


def test_a_command_that_is_not_there_is_not_tried_again() -> None:
    driver = NotifierDriver(Notifier(name="page", kind="command", command=("/no/such/pager",)))

    driver.notify("page")

    (line,) = driver.said
    assert line.endswith("page (/no/such/pager): it cannot be run: No such file or directory; it is given up.")


@pytest.mark.parametrize(
    ("attempt", "retry_after", "expected"),
    [(1, None, 1), (2, None, 2), (6, None, 32), (7, None, 60), (1000, None, 60), (1, 5, 5), (1, 9999, 300), (1, -1, 0)],
)
def test_pauses_grow_up_to_a_minute_or_are_as_long_as_the_other_side_wants(
    attempt: int, retry_after: float | None, expected: float
) -> None:
    assert expected == retry_delay_s(attempt, retry_after)
