"""The client's half of SCRAM (RFC 5802): it proves that it knows the password, and checks that the broker does too."""

import base64
import binascii
import hashlib
import hmac
import secrets

from logmark.client.errors import AuthenticationFailed

MECHANISMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# A hostile server could ask for work without end; Kafka's own servers allow at most 16384.
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000


class Scram:
    """One exchange: `first()`, then `final(challenge)`, then `check(verdict)`."""

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        self._hash = MECHANISMS[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the opening message: the user and our nonce."""
        return b"n,," + self._first_bare.encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the proof that answers the broker's salt, nonce and iteration count."""
        fields = _fields(challenge)
        if "e" in fields:
            raise AuthenticationFailed(f"The broker refused the credentials: {fields['e']}.")
        nonce, salt, iterations = fields.get("r", ""), _decoded(fields.get("s", "")), _count(fields.get("i", ""))
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not salt:
            raise AuthenticationFailed("The broker's SCRAM challenge does not answer ours; somebody may be in between.")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(
                f"The broker asks for {iterations} SCRAM iterations; between {ITERATIONS_MIN} and {ITERATIONS_MAX} "
                "are accepted."
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        signed = b",".join((self._first_bare.encode(), challenge, without_proof.encode()))
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, verdict: bytes) -> None:
        """Refuse a broker that does not know the password either."""
        fields = _fields(verdict)
        if "e" in fields:
            raise AuthenticationFailed(f"The broker refused the credentials: {fields['e']}.")
        if not hmac.compare_digest(self._server_signature, _decoded(fields.get("v", ""))):
            raise AuthenticationFailed("The broker could not prove that it knows the password; do not trust it.")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


def _fields(message: bytes) -> dict[str, str]:
    text = message.decode("utf-8", "replace")
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
