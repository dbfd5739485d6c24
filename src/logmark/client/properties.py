"""A client's properties: Java's names and librdkafka's, from a file or a mapping, for our client and for theirs."""

import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from logmark.client.errors import BadProperties
from logmark.client.scram import MECHANISMS as SCRAM_MECHANISMS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)

_TRUST = ("ssl.ca.location", "ssl.ca.pem", "ssl.truststore.location", "ssl.truststore.certificates")
_KEYS = (
    "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password",
    "ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key",
)  # fmt: skip
_USED = {
    "security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password",
    "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification", "ssl.truststore.type",
    "ssl.keystore.type", *_TRUST, *_KEYS,
}  # fmt: skip
# Java's names that change nothing for us. Any other security name is a typo, and a typo here would weaken a connection.
_WITHOUT_EFFECT = {
    "ssl.protocol", "ssl.enabled.protocols", "ssl.provider", "ssl.cipher.suites", "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm", "ssl.secure.random.implementation", "ssl.engine.factory.class",
    "ssl.truststore.password", "ssl.keystore.password", "security.providers", "sasl.client.callback.handler.class",
    "sasl.login.callback.handler.class", "sasl.login.class", "sasl.kerberos.service.name",
}  # fmt: skip
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a connection is secured: whether by TLS, and who we say we are."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> "Security":
        """What these properties ask for; refuses what is unknown or incomplete with a sentence."""
        for name in properties:
            if name.startswith(("security.", "sasl.", "ssl.")) and name not in _USED | _WITHOUT_EFFECT:
                raise BadProperties(f"The client property {name} is not known here; see the docs for those that are.")
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise BadProperties(f"security.protocol is {protocol}; it must be one of {', '.join(PROTOCOLS)}.")
        tls = {name: value for name, value in properties.items() if name.startswith(("ssl.", "enable.ssl."))}
        if not protocol.startswith("SASL_"):
            return cls(protocol=protocol, tls=tls)
        mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
        if mechanism not in MECHANISMS:
            raise BadProperties(
                f"sasl.mechanism is {mechanism or 'not set'}; this client speaks {', '.join(MECHANISMS)}."
            )
        username, password = _credentials(properties)
        return cls(protocol=protocol, mechanism=mechanism, username=username, password=password, tls=tls)

    def tls_context(self) -> ssl.SSLContext:
        """A context that checks the broker's certificate and name unless the properties say otherwise."""
        _refuse_java_stores(self.tls)
        try:
            return _context(self.tls)
        except ssl.SSLError as error:
            raise BadProperties(f"A TLS certificate or key cannot be used: {error.reason or error}.") from None
        except OSError as error:
            raise BadProperties(f"The TLS file {error.filename} cannot be read: {error.strerror}.") from None


def _credentials(properties: Mapping[str, str]) -> tuple[str, str]:
    username, password = properties.get("sasl.username"), properties.get("sasl.password")
    jaas = properties.get("sasl.jaas.config")
    if jaas and (username is None or password is None):
        options = {
            match[1]: re.sub(r"\\(.)", r"\1", match[2] or match[3] or "") if match[4] is None else match[4]
            for match in _JAAS_OPTION.finditer(jaas)
        }
        username, password = options.get("username"), options.get("password")
    if username is None or password is None:
        raise BadProperties(
            "SASL needs a name and a password: set sasl.jaas.config with username and password, "
            "or sasl.username and sasl.password."
        )
    return username, password


def _refuse_java_stores(tls: Mapping[str, str]) -> None:
    for store in ("ssl.truststore", "ssl.keystore"):
        location, kind = tls.get(f"{store}.location", ""), tls.get(f"{store}.type", "").upper()
        if location and (kind in ("JKS", "PKCS12") or location.lower().endswith((".jks", ".p12", ".pfx"))):
            raise BadProperties(
                f"{store}.location names a Java key store, which cannot be read here: "
                f"convert it to PEM (keytool -exportcert -rfc, or openssl pkcs12) and set {store}.type=PEM."
            )


def _context(tls: Mapping[str, str]) -> ssl.SSLContext:
    authority = tls.get("ssl.ca.location") or tls.get("ssl.truststore.location")
    text = tls.get("ssl.ca.pem") or tls.get("ssl.truststore.certificates")
    context = ssl.create_default_context(cafile=authority, cadata=text)
    if tls.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    if tls.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    chain = tls.get("ssl.certificate.location") or tls.get("ssl.keystore.location")
    if chain:
        context.load_cert_chain(chain, tls.get("ssl.key.location"), tls.get("ssl.key.password"))
    chain_text = tls.get("ssl.certificate.pem") or tls.get("ssl.keystore.certificate.chain")
    key_text = tls.get("ssl.key.pem") or tls.get("ssl.keystore.key")
    if chain_text and key_text:
        # Python reads a key from a file only; this one is readable by us alone and gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{chain_text}\n{key_text}\n")
            file.flush()
            context.load_cert_chain(file.name, password=tls.get("ssl.key.password"))
    return context


_LIBRDKAFKA_NAMES = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def librdkafka_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The same security in librdkafka's names, for confluent-kafka."""
    security = Security.of(properties)
    found = {"security.protocol": security.protocol}
    if security.is_sasl:
        found |= {
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
        }
    if not security.is_tls:
        return found
    _refuse_java_stores(security.tls)
    for name, value in security.tls.items():
        if name in ("enable.ssl.certificate.verification", *_TRUST, *_KEYS):
            found[_LIBRDKAFKA_NAMES.get(name, name)] = value
    if keystore := found.pop("ssl.keystore.location", None):
        found |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    if "ssl.endpoint.identification.algorithm" in security.tls:
        found["ssl.endpoint.identification.algorithm"] = (
            security.tls["ssl.endpoint.identification.algorithm"].lower() or "none"
        )
    return found
