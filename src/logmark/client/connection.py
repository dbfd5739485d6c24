"""One socket to one broker: requests may be sent ahead, answers come in their order, each within a deadline."""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections import deque
from types import ModuleType
from typing import NamedTuple

from logmark import __version__
from logmark.client.errors import AuthenticationFailed, BadProperties, BrokerUnreachable, RefusedByBroker, error_code
from logmark.client.properties import Security
from logmark.client.scram import Scram
from logmark.errors import ErrorCode, Malformed
from logmark.wire import frames
from logmark.wire.messages import Message, decode_response, encode_request
from logmark.wire.schema import api_versions, sasl_authenticate, sasl_handshake

RESPONSE_BYTES_MAX = 256 << 20
_BUFFER_BYTES = 64 << 10


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Awaited(NamedTuple):
    correlation_id: int
    has_tags: bool


class Connection:
    """A negotiated and authenticated connection; any failure closes it, and it is not used again."""

    def __init__(
        self,
        address: Address,
        *,
        security: Security,
        tls: ssl.SSLContext | None = None,
        client_id: str = "logmark",
        timeout_s: float = 30.0,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
    ) -> None:
        """Connect, agree on versions and authenticate within `timeout_s`."""
        self.address = address
        self.is_closed = False
        self._security = security
        self._client_id = client_id
        self._response_bytes_max = response_bytes_max
        self._awaited: deque[_Awaited] = deque()
        self._last_correlation_id = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._versions: dict[int, range] = {}
        self._expires_at = float("inf")
        deadline = time.monotonic() + timeout_s
        self._socket: socket.socket = _connect(address, deadline)
        try:
            if security.is_tls:
                self._socket = self._secured(tls or security.tls_context(), deadline)
            self._negotiate(deadline)
            if security.is_sasl:
                self._authenticate(deadline)
        except BaseException:
            self.close()
            raise

    @property
    def is_stale(self) -> bool:
        """It is closed by either side, or the broker will close it because the login has expired."""
        return self.is_closed or time.monotonic() >= self._expires_at or self._is_closed_by_broker()

    def _is_closed_by_broker(self) -> bool:
        """Return whether there are unexpected bytes, or the end of them: a request sent now would be lost."""
        if self._awaited or isinstance(self._socket, ssl.SSLSocket):
            return False  # TLS may have sent a session ticket.
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(0))

    def close(self) -> None:
        """Close the socket and drop the requests that were not answered."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def version_of(self, key: int, ours: range, *, at_most: int | None = None) -> int:
        """Return the highest version of an API that both sides speak."""
        theirs = self._versions.get(key, range(0))
        highest = min(ours[-1], theirs[-1] if theirs else -1, ours[-1] if at_most is None else at_most)
        if not theirs or highest < max(ours[0], theirs[0]):
            raise RefusedByBroker(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The broker at {self.address} does not offer API {key} at a version that this client speaks; "
                "it is too old, too new, or this is not part of what it does.",
            )
        return highest

    def offers(self, key: int) -> bool:
        """Return whether the broker has this API at some version."""
        return key in self._versions

    def call(self, schema: ModuleType, message: Message, *, timeout_s: float, version: int | None = None) -> Message:
        """Send one request and return the response."""
        assert not self._awaited, "earlier answers are still to be received"
        deadline = time.monotonic() + timeout_s
        if version is None:
            version = self.version_of(schema.KEY, schema.VERSIONS)
        has_tags = schema.FLEXIBLE_FROM is not None and version >= schema.FLEXIBLE_FROM
        self.send(schema.KEY, version, encode_request(schema, version, message), flexible=has_tags, deadline=deadline)
        body = self.receive(deadline)
        try:
            answer: Message = decode_response(schema, version, body)
        except Malformed as error:
            raise self._lost(f"sent an answer that cannot be read ({error})") from None
        return answer

    def send(self, key: int, version: int, body: bytes, *, flexible: bool, deadline: float) -> None:
        """Send one request; its response will come after those of the requests before it."""
        self._last_correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        frame = frames.request_frame(
            key, version, self._last_correlation_id, self._client_id, flexible=flexible, body=body
        )
        # The answer to ApiVersions never has tags in its header: a client must read it before it knows the versions.
        self._awaited.append(_Awaited(self._last_correlation_id, flexible and key != api_versions.KEY))
        try:
            self._socket.settimeout(seconds_left(deadline))
            self._socket.sendall(frame)
        except OSError as error:
            raise self._lost(_reason(error)) from None

    def receive(self, deadline: float) -> memoryview:
        """Return the body of the next response, valid until the next call: the buffer is used again."""
        awaited = self._awaited.popleft()
        head = self._read(memoryview(bytearray(4)), deadline)
        size = int.from_bytes(head, "big", signed=True)
        if not 4 <= size <= self._response_bytes_max:
            raise self._lost(_not_kafka(bytes(head), size, self._response_bytes_max))
        if size > len(self._buffer):
            self._buffer = bytearray(size)  # A new one: a reader may still hold a view of the old.
        answer = self._read(memoryview(self._buffer)[:size], deadline)
        try:
            correlation_id, at = frames.read_response_header(answer, flexible=awaited.has_tags)
        except Malformed:
            raise self._lost("sent an answer that cannot be read") from None
        if correlation_id != awaited.correlation_id:
            raise self._lost("answered a request that was not asked")
        return answer[at:]

    def _read(self, into: memoryview, deadline: float) -> memoryview:
        at, size = 0, len(into)
        try:
            while at < size:
                self._socket.settimeout(seconds_left(deadline))
                count = self._socket.recv_into(into[at:])
                if not count:
                    raise self._lost(
                        "closed the connection; it may want TLS or a login (see security.protocol), have no connection "
                        "left, or be stopping"
                    )
                at += count
        except OSError as error:
            raise self._lost(_reason(error)) from None
        return into

    def _lost(self, what: str) -> BrokerUnreachable:
        self.close()
        return BrokerUnreachable(f"The broker at {self.address} {what}.")

    def _secured(self, context: ssl.SSLContext, deadline: float) -> socket.socket:
        try:
            self._socket.settimeout(seconds_left(deadline))
            return context.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(
                f"The certificate of the broker at {self.address} is not trusted: {error.verify_message}. "
                "Name its authority with ssl.ca.location (a PEM file) in the client properties."
            ) from None
        except ssl.SSLError as error:
            raise self._lost(f"does not speak TLS here ({error.reason or error}); see security.protocol") from None
        except OSError as error:
            raise self._lost(_reason(error)) from None

    def _negotiate(self, deadline: float) -> None:
        request = api_versions.Request(client_software_name="logmark", client_software_version=__version__)
        version = api_versions.VERSIONS[-1]
        while True:
            flexible = version >= 3
            body = encode_request(api_versions, version, request)
            self.send(api_versions.KEY, version, body, flexible=flexible, deadline=deadline)
            answer = self.receive(deadline)
            code = int.from_bytes(answer[:2], "big", signed=True)
            # A broker that does not know our version answers in the oldest one, which every client can read.
            unknown = code == ErrorCode.UNSUPPORTED_VERSION and version > 0
            try:
                response = decode_response(api_versions, 0 if unknown else version, answer)
            except Malformed:
                raise self._lost("does not speak Kafka's protocol; check the port") from None
            assert isinstance(response, api_versions.Response)
            if not unknown:
                break
            theirs = [key.max_version for key in response.api_keys if key.api_key == api_versions.KEY]
            version = min(version - 1, max(theirs, default=0))
        if code:
            raise self._lost(f"answered {error_code(code).name} when asked for its versions")
        self._versions = {key.api_key: range(key.min_version, key.max_version + 1) for key in response.api_keys}

    def _authenticate(self, deadline: float) -> None:
        security = self._security
        if not self.offers(sasl_handshake.KEY):
            raise AuthenticationFailed(
                f"The broker at {self.address} has no SASL on this port; use its SASL listener or another "
                "security.protocol."
            )
        shake = self.call(
            sasl_handshake,
            sasl_handshake.Request(mechanism=security.mechanism),
            timeout_s=seconds_left(deadline),
            version=1,
        )
        assert isinstance(shake, sasl_handshake.Response)
        if shake.error_code:
            raise AuthenticationFailed(
                f"The broker at {self.address} does not offer {security.mechanism}; "
                f"it offers {', '.join(shake.mechanisms) or 'nothing'}."
            )
        if security.mechanism == "PLAIN":
            self._exchange(b"\0".join((b"", security.username.encode(), security.password.encode())), deadline)
            return
        scram = Scram(security.mechanism, security.username, security.password)
        challenge = self._exchange(scram.first(), deadline)
        scram.check(self._exchange(scram.final(challenge), deadline))

    def _exchange(self, token: bytes, deadline: float) -> bytes:
        request = sasl_authenticate.Request(auth_bytes=token)
        answer = self.call(sasl_authenticate, request, timeout_s=seconds_left(deadline))
        assert isinstance(answer, sasl_authenticate.Response)
        if answer.error_code:
            raise AuthenticationFailed(
                f"The broker at {self.address} refused the login of {self._security.username}: "
                f"{answer.error_message or error_code(answer.error_code).name}"
            )
        if answer.session_lifetime_ms > 0:
            # A connection is replaced before the broker would close it in the middle of a request.
            self._expires_at = time.monotonic() + answer.session_lifetime_ms / 1000 * 0.85
        return answer.auth_bytes


def _connect(address: Address, deadline: float) -> socket.socket:
    last: OSError | None = None
    targets = _resolve(address, deadline)
    for index, (family, target) in enumerate(targets):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            # One dead address of a name must not use up the time of the others.
            connection.settimeout(max(seconds_left(deadline) / (len(targets) - index), 0.1))
            connection.connect(target)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            connection.close()
            last = error
    raise BrokerUnreachable(f"The broker at {address} {_reason(last)}; check the address, and that it runs.") from None


_Target = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def _resolve(address: Address, deadline: float) -> list[_Target]:
    """Return the addresses behind a name, in a thread of its own: the resolver knows no deadline."""
    found: list[_Target] = []
    failed: list[OSError | UnicodeError] = []

    def ask() -> None:
        try:
            for family, _, _, _, target in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
                found.append((family, target))  # type: ignore[arg-type]
        except (OSError, UnicodeError) as error:
            failed.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds_left(deadline))
    if failed or asking.is_alive() or not found:
        raise BrokerUnreachable(f"The broker at {address} cannot be found: the host name is not known; check it.")
    return found


def seconds_left(deadline: float) -> float:
    """Return the seconds until the deadline; never 0, for a timeout of zero means something else."""
    return max(deadline - time.monotonic(), 0.001)


def _reason(error: BaseException | None) -> str:
    match error:
        case TimeoutError():
            return "did not answer in time"
        case ConnectionRefusedError():
            return "refused the connection (nothing listens there)"
        case ConnectionResetError() | BrokenPipeError():
            return "closed the connection"
        case ssl.SSLError():
            return f"broke the TLS connection ({error.reason or error})"
        case OSError():
            return f"cannot be reached ({error.strerror or error})"
    return "cannot be reached"


def _not_kafka(head: bytes, size: int, size_max: int) -> str:
    if head[:4] == b"HTTP":
        return "speaks HTTP, not Kafka's protocol; check the port"
    if head[0] == 0x15:
        return "speaks TLS; set security.protocol to SSL or SASL_SSL in the client properties"
    return f"announced an answer of {size} bytes, which is no answer of a broker (at most {size_max} are accepted)"


def as_addresses(bootstrap_servers: str, *, default_port: int = 9092) -> list[Address]:
    """Return the addresses in a list such as `host:9092,[::1]:9093`; raise BadProperties for what is none."""
    found = []
    for part in bootstrap_servers.split(","):
        text = part.strip()
        if not text:
            continue
        text = text.rpartition("://")[2]
        host, colon, port = text.rpartition(":")
        if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
            host, port = text, str(default_port)  # No port, or an IPv6 address without brackets.
        host = host.strip("[]")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise BadProperties(f"{part.strip()!r} is not an address: write HOST:PORT, such as 127.0.0.1:9092.")
        found.append(Address(host, int(port)))
    if not found:
        raise BadProperties("No broker address was given: write HOST:PORT, such as 127.0.0.1:9092.")
    return found
