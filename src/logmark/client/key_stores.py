"""Key stores as Java keeps them, made into PEM: PKCS#12 is read by the program `openssl`, for Python cannot."""

import functools
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from logmark.client.errors import BadProperties

_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)
_TIMEOUT_S = 30
_Part = Literal["certificates", "own", "others"]
_ARGUMENTS: Mapping[_Part, tuple[str, ...]] = {
    "certificates": ("-nokeys",),
    "own": ("-nodes", "-clcerts"),
    "others": ("-nokeys", "-cacerts"),
}


def with_stores_read(tls: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with PKCS#12 stores replaced by their PEM; refuse JKS and say how to convert it."""
    found = dict(tls)
    if _is_pkcs12(tls.get("ssl.truststore.location", ""), tls.get("ssl.truststore.type", ""), "ssl.truststore"):
        path, password = found.pop("ssl.truststore.location"), tls.get("ssl.truststore.password", "")
        text = _read(path, password, "certificates", "ssl.truststore")
        if not text:
            raise BadProperties(f"The store {path} (ssl.truststore.location) holds no certificate to trust.")
        found["ssl.truststore.certificates"] = text
    if _is_pkcs12(tls.get("ssl.keystore.location", ""), tls.get("ssl.keystore.type", ""), "ssl.keystore"):
        path, password = found.pop("ssl.keystore.location"), tls.get("ssl.keystore.password", "")
        own = _read(path, password, "own", "ssl.keystore")
        blocks = {"KEY" if kind.endswith("KEY") else kind: match for match, kind in _blocks(own)}
        if {"KEY", "CERTIFICATE"} - set(blocks):
            raise BadProperties(f"The store {path} (ssl.keystore.location) holds no private key with its certificate.")
        found["ssl.keystore.key"] = blocks["KEY"]
        others = _read(path, password, "others", "ssl.keystore")
        found["ssl.keystore.certificate.chain"] = f"{blocks['CERTIFICATE']}\n{others}"
    return found


def _is_pkcs12(path: str, kind: str, name: str) -> bool:
    """Return whether the first bytes are PKCS#12, as Java looks at them too: a store named JKS may well be."""
    if not path or kind.upper() == "PEM":
        return False
    try:
        with Path(path).open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise BadProperties(f"The store {path} ({name}.location) cannot be read: {error.strerror}.") from None
    if head in _JKS:
        raise BadProperties(
            f"The store {path} ({name}.location) is a JKS store, which only Java can read. Convert it once: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore store.p12 -deststoretype PKCS12, and name that file."
        )
    if kind.upper() not in ("", "PEM", "PKCS12", "JKS"):
        raise BadProperties(f"{name}.type is {kind}; this client reads PEM and PKCS12.")
    return head.startswith(_DER_SEQUENCE)


def _read(path: str, password: str, part: _Part, name: str) -> str:
    changed_ns = Path(path).stat().st_mtime_ns
    return _converted(path, changed_ns, password, part, name)


@functools.lru_cache(maxsize=32)
def _converted(path: str, changed_ns: int, password: str, part: _Part, name: str) -> str:
    """Return the PEM blocks of one part of the store; cached, because each connection would ask again."""
    program = shutil.which("openssl")
    if program is None:
        raise BadProperties(
            f"The store {path} ({name}.location) is PKCS#12, which takes the program openssl to read, and there is "
            f"none on the PATH. Install it, or convert the store to PEM elsewhere: openssl pkcs12 -nodes -in {path}."
        )
    for more in ((), ("-legacy",)):  # older programs encrypted in a way that newer ones read only with an option
        answer = subprocess.run(  # noqa: S603
            [program, "pkcs12", "-in", path, "-passin", "stdin", *_ARGUMENTS[part], *more],
            input=password + "\n", capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        if answer.returncode == 0:
            return "\n".join(block for block, _ in _blocks(answer.stdout))
        if "Mac verify" in answer.stderr or "invalid password" in answer.stderr:
            raise BadProperties(f"The password in {name}.password does not open the store {path}.")
    reason = answer.stderr.strip().splitlines()
    raise BadProperties(f"The store {path} ({name}.location) cannot be read: {reason[-1] if reason else 'no reason'}.")


def _blocks(text: str) -> list[tuple[str, str]]:
    return [(match[0], match[1]) for match in _BLOCK.finditer(text)]
