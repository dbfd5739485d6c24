"""Apache Kafka's command-line tools, many calls in one JVM: a call takes milliseconds instead of half a second."""

import functools
import logging
from types import TracebackType
from typing import Any, Self

from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.harness import distribution
from tests.harness.kafka_archive import sharing_of
from tests.harness.tools import GATEWAY, QUICK_JVM, HasAddress, ToolResult


class _Exit(Exception):
    """A tool has asked to end the JVM."""


class _ExitProcedure:
    """What `Exit.exit` calls in the place of `System.exit`; what a tool prints after that is not its own."""

    class Java:
        implements = ["org.apache.kafka.common.utils.Exit$Procedure"]  # noqa: RUF012 - py4j reads this name

    def __init__(self, tools: "JavaTools") -> None:
        self._tools = tools

    def execute(self, code: int, message: str | None) -> None:
        self._tools.ended(code)
        raise _Exit

    def toString(self) -> str:
        return "exit procedure"


def _thrown_by_java(error: BaseException | None) -> Py4JJavaError | None:
    """Return the exception of the tool behind an error of Python.

    Once a Spark was started in this process, every exception of any JVM goes through a function of PySpark, which looks
    for classes of Spark and fails where there are none.
    """
    found = None
    while error is not None:
        if isinstance(error, Py4JJavaError):
            found = error
        error = error.__context__
    return found


class JavaTools:
    """One JVM that runs the main method of Kafka's tools, one after the other, each with streams of its own."""

    def __init__(self, *, sharing: str | None = None) -> None:
        # It reports every exception that Python throws into Java, and that is how a tool is ended here.
        logging.getLogger("py4j.java_gateway").setLevel(logging.CRITICAL)
        self._port, self._process = launch_gateway(
            classpath=distribution.class_path(),
            javaopts=[*QUICK_JVM, sharing or sharing_of(GATEWAY)],
            java_path=distribution.java(),
            die_on_exit=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=self._port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        listening = self._gateway.get_callback_server().get_listening_port()
        java = self.jvm.java
        self._gateway.java_gateway_server.resetCallbackClient(java.net.InetAddress.getByName("127.0.0.1"), listening)
        self._exit = _ExitProcedure(self)
        self.jvm.org.apache.kafka.common.utils.Exit.setExitProcedure(self._exit)
        self._streams = (java.io.ByteArrayOutputStream(), java.io.ByteArrayOutputStream())
        self._printed: tuple[int, str, str] | None = None
        for setter, stream in zip((java.lang.System.setOut, java.lang.System.setErr), self._streams, strict=True):
            setter(java.io.PrintStream(stream, True, "UTF-8"))

    @property
    def jvm(self) -> Any:
        return self._gateway.jvm

    def ended(self, code: int) -> None:
        """Keeps what the tool had printed when it first asked to end."""
        if self._printed is None:
            self._printed = (code, *(str(stream.toString("UTF-8")) for stream in self._streams))

    def run(self, main_class: str, *args: str) -> ToolResult:
        """Runs one tool to its end."""
        for stream in self._streams:
            stream.reset()
        self._printed = None
        given = self._gateway.new_array(self.jvm.java.lang.String, len(args))
        for index, each in enumerate(args):
            given[index] = each
        main = self.jvm
        for part in main_class.split("."):
            main = getattr(main, part)
        uncaught = ""
        try:
            main.main(given)
            self.ended(0)
        except Exception as error:
            thrown = _thrown_by_java(error)
            if thrown is None:
                raise
            uncaught = f'Exception in thread "main" {thrown.java_exception.toString()}\n'
            self.ended(1)
        assert self._printed is not None
        code, out, err = self._printed
        return ToolResult(exit_code=code, stdout=out, stderr=err + (uncaught if code else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._gateway.shutdown()
        self._process.terminate()
        self._process.wait(60)


@functools.cache
def tools_of_this_process() -> JavaTools:
    """The one JVM of this process, started by the first test that needs it."""
    return JavaTools()


def call_tool(main_class: str, *args: str, broker: HasAddress | None = None) -> ToolResult:
    """Runs a tool that ends by itself and reads nothing, as `run_tool` does, in the one JVM of this process."""
    address = () if broker is None else ("--bootstrap-server", broker.bootstrap_servers)
    done = tools_of_this_process().run(main_class, *address, *args)
    stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("SLF4J"))
    return ToolResult(exit_code=done.exit_code, stdout=done.stdout, stderr=stderr)


def end() -> None:
    """Ends the JVM of this process, when there is one."""
    if tools_of_this_process.cache_info().currsize:
        with tools_of_this_process():
            tools_of_this_process.cache_clear()
