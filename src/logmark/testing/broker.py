"""`Broker`: a real broker for tests, as a context manager, with faults and a clock."""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from logmark.broker.loops import new_event_loop
from logmark.disk.file_system import FileSystem
from logmark.errors import ErrorCode
from logmark.log.group_commit import Durability
from logmark.testing import control

T = TypeVar("T")


class Broker:
    """A broker on a free port of loopback, in this process or in one of its own; restarts keep port and data."""

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        durability: Durability = "os",
        data_dir: str | None = None,
        subprocess: bool = False,
        files: FileSystem | None = None,
    ) -> None:
        """Take Kafka's server.properties names in `config`; `files` replaces the disk (in process only)."""
        if files is not None and subprocess:
            raise ValueError("a file system can be given to a broker in this process only")
        self._config = dict(config or {})
        self._durability = durability
        self._own_dir = data_dir is None
        self.data_dir = data_dir or tempfile.mkdtemp(prefix="logmark-test-")
        self._files = files
        self._runner: _InProcess | _Subprocess | None = None
        self._in_subprocess = subprocess
        self._port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker; it serves when this returns."""
        assert self._runner is None, "this broker runs already"
        options: dict[str, Any] = {
            "data_dir": self.data_dir,
            "config": self._config,
            "durability": self._durability,
            "port": self._port,
        }
        self._runner = _Subprocess(options) if self._in_subprocess else _InProcess({**options, "files": self._files})
        self._port = int(self._runner.bootstrap_servers.rpartition(":")[2])

    def stop(self) -> None:
        """Stop cleanly; the data stays for a restart."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None

    def kill(self) -> None:
        """Kill the process as `kill -9` does; needs `subprocess=True`."""
        if not isinstance(self._runner, _Subprocess):
            raise ValueError("only a broker in a process of its own can be killed: Broker(subprocess=True)")
        self._runner.kill()
        self._runner = None

    def restart(self) -> None:
        """Stop cleanly if it runs, then serve again on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the data directory if it was this broker's own."""
        self.stop()
        if self._own_dir:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        return self._runner is not None

    @property
    def pid(self) -> int | None:
        """The process of a broker that has its own."""
        return self._runner.pid if isinstance(self._runner, _Subprocess) else None

    @property
    def bootstrap_servers(self) -> str:
        """What a client puts into bootstrap.servers; the same after a restart."""
        assert self._port, "this broker has not been started"
        return f"127.0.0.1:{self._port}"

    # -- what a test may ask -------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name."""
        self._ask("create_topic", name, partitions, dict(config or {}))
        return name

    def fail_next(self, api: str, error: ErrorCode | str | int, *, times: int = 1) -> None:
        """Answer the next requests of that API with the error; they do nothing."""
        code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
        self._ask("fail_next", api, int(code), times)

    def delay(self, api: str, seconds: float) -> None:
        """Handle requests of that API that much later, until a delay of 0."""
        self._ask("delay", api, seconds)

    def clear_faults(self) -> None:
        """End all failures and delays."""
        self._ask("clear_faults")

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward: sessions, retention and expiry come due."""
        self._ask("advance", seconds)

    def apply_retention(self) -> None:
        """Delete now what is past its retention, instead of at the next check."""
        self._ask("apply_retention")

    def compact(self) -> None:
        """Compact now every log that is due, instead of at the next check."""
        self._ask("compact")

    def _ask(self, verb: str, *arguments: Any) -> Any:
        assert self._runner is not None, "this broker does not run"
        return self._runner.ask(verb, *arguments)


class _InProcess:
    """The broker on a loop in a thread of this process."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="logmark-broker", daemon=True)
        self._thread.start()
        try:
            self._broker = self._await(control.start(**options))
        except BaseException:
            self._end_loop()
            raise
        self.bootstrap_servers = self._broker.bootstrap_servers

    def ask(self, verb: str, *arguments: Any) -> Any:
        return self._await(control.carry_out(self._broker, verb, arguments))

    def stop(self) -> None:
        try:
            self._await(self._broker.stop())
        finally:
            self._end_loop()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Subprocess:
    """The broker in a process of its own."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "logmark.testing.broker_process", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.bootstrap_servers: str = self._answer()["bootstrap_servers"]

    def ask(self, verb: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer().get("result")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker's process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def kill(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
