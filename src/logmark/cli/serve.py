"""`logmark serve`: one broker in the foreground until it is told to stop."""

import asyncio
import gc
import ipaddress
import json
import logging
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from logmark import __version__, properties
from logmark.broker.config import BrokerConfig
from logmark.broker.loops import new_event_loop
from logmark.broker.server import Address, Broker, Listener
from logmark.cli.stop_signals import StopSignals, stop_signals
from logmark.errors import UserError
from logmark.escaping import escape
from logmark.memory import GarbageCollection, keep_freed_buffers

log = logging.getLogger("logmark")

DEFAULT_DATA_DIR = "logmark-data"
DEFAULT_PORT = 9092
SWITCH_SECONDS = 0.0005
USELESS = 3


class Durability(StrEnum):
    """When a record is acknowledged."""

    SYNC = "sync"
    OS = "os"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


def serve(
    data_dir: Annotated[
        str | None, typer.Option(help=f"Where the log is kept. Unless given: ./{DEFAULT_DATA_DIR}.", metavar="DIR")
    ] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to listen; may be repeated; port 0 takes any free one. Unless given: 127.0.0.1:9092 and ::1.",
            metavar="HOST:PORT",
        ),
    ] = None,
    advertise: Annotated[
        list[str] | None,
        typer.Option(
            help="What clients are told to connect to: one for each --listen, in the same order.", metavar="HOST:PORT"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A file of settings under Kafka's server.properties names.", metavar="FILE")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting; wins over the file.", metavar="NAME=VALUE")
    ] = None,
    durability: Annotated[
        Durability,
        typer.Option(help="sync: acknowledged when the disk has it. os: when the system has it, as with Kafka."),
    ] = Durability.SYNC,
    log_format: Annotated[LogFormat, typer.Option(help="How log lines are written.")] = LogFormat.TEXT,
) -> None:
    """Run a broker in the foreground until it is told to stop.

    SIGTERM or Ctrl-C stops it; a third signal ends it without closing the logs.
    """
    _log_as(log_format)
    settings = properties.read(config) if config is not None else {}
    for given in set_ or []:
        name, equals, value = given.partition("=")
        if not equals:
            raise UserError(f"--set {given!r} is not name=value. Nothing was started.", exit_code=2)
        settings[name] = value
    broker_config = BrokerConfig(settings)
    for warning in broker_config.warnings:
        log.warning(warning)
    listeners = _listeners(
        listen or _from_settings(broker_config, "listeners"),
        advertise or _from_settings(broker_config, "advertised.listeners"),
    )
    where = os.path.abspath(data_dir or broker_config.text("log.dirs") or DEFAULT_DATA_DIR)
    broker = Broker(data_dir=where, config=broker_config, listeners=listeners, durability=durability.value)
    keep_freed_buffers()
    stop_signals.install()
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(broker, where, stop_signals))
    finally:
        stop_signals.ignore()
        loop.close()


async def _serve(broker: Broker, where: str, signals: StopSignals) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals.call_on_first(lambda: loop.call_soon_threadsafe(stopping.set))
    if signals.is_stop_requested:
        return
    # The threads that write to the disk need the interpreter for microseconds, and a record waits for them.
    sys.setswitchinterval(SWITCH_SECONDS)
    # What the start makes stays for good: thousands of partitions are never searched for garbage, which would hold up
    # every client for half a second.
    gc.disable()
    await broker.start()
    GarbageCollection().manage()
    gc.enable()
    for listener in broker.listeners:
        if not listener.is_loopback:
            log.warning(
                "%s can be reached from other machines and there is no authentication: "
                "anybody who can connect can read and write everything.",
                Address(listener.host, listener.port),
            )
    addresses = ", ".join(str(Address(listener.host, listener.port)) for listener in broker.listeners)
    print(
        f"Logmark {__version__} listening on {addresses}, data in {where}, durability {broker.durability}", flush=True
    )
    broker.on_useless = stopping.set
    await stopping.wait()
    is_clean = await broker.stop()
    if broker.liveness.is_over:
        raise UserError("The broker has ended itself: the lines above say why.", exit_code=USELESS)
    if not is_clean:
        raise UserError(
            f"The broker has stopped, but could not close {where} cleanly: the lines above say why. "
            "What was acknowledged is kept. The next start recovers the directory."
        )


def _from_settings(config: BrokerConfig, name: str) -> list[str]:
    found = []
    for entry in filter(None, (part.strip() for part in config.text(name).split(","))):
        protocol, separator, address = entry.rpartition("://")
        if separator and protocol.upper() not in ("PLAINTEXT",):
            raise UserError(
                f"{name}={entry}: this Logmark speaks PLAINTEXT only; TLS and SASL are not there yet. "
                "Nothing was started.",
                exit_code=2,
            )
        found.append(address)
    return found


def _address(text: str, option: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise UserError(f"{option} {text!r} is not HOST:PORT. Nothing was started.", exit_code=2)
    return Address(host or "0.0.0.0", int(port))  # noqa: S104 - an empty host means every address, as in Kafka


def _listeners(listen: list[str], advertise: list[str]) -> list[Listener]:
    if not listen:
        address = _address(advertise[0], "--advertise") if advertise else Address("127.0.0.1", DEFAULT_PORT)
        return [
            Listener(host="127.0.0.1", port=DEFAULT_PORT, advertised=address),
            Listener(host="::1", port=DEFAULT_PORT, advertised=address, is_optional=True),
        ]
    if advertise and len(advertise) != len(listen):
        raise UserError(
            f"{len(listen)} --listen and {len(advertise)} --advertise: give one --advertise for each --listen, in the "
            "same order. Nothing was started.",
            exit_code=2,
        )
    found = []
    for index, text in enumerate(listen):
        address = _address(text, "--listen")
        if advertise:
            advertised = _address(advertise[index], "--advertise")
        elif _is_unspecified(address.host):
            raise UserError(
                f"--listen {text} means every address, and no client can connect to that. Nothing was started; "
                "say what clients shall connect to with --advertise HOST:PORT.",
                exit_code=2,
            )
        else:
            advertised = address
        found.append(Listener(host=address.host, port=address.port, advertised=advertised))
    return found


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class _JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event and the fields that came with it."""

    _USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in self._USUAL})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextLines(_JsonLines):
    """One line for people, the fields behind the event."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in vars(record).items() if name not in self._USUAL)
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{when} {record.levelname.lower():7} {record.getMessage()}" + (f" ({fields})" if fields else "")
        return escape(line) + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def _log_as(log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format is LogFormat.JSON else _TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
