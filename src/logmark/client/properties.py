"""A client's properties: Java's names and librdkafka's, from a file or a mapping, for our client and for theirs."""

import difflib
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from logmark.client.errors import BadProperties
from logmark.client.key_stores import with_stores_read
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
    "ssl.truststore.password", "ssl.keystore.type", "ssl.keystore.password", "ssl.crl.location", "ssl.protocol",
    "ssl.enabled.protocols", *_TRUST, *_KEYS,
}  # fmt: skip
# How Java checks certificates is how we do it; another way would be another promise.
_ONLY_AS = {"ssl.trustmanager.algorithm": ("pkix",), "ssl.keymanager.algorithm": ("sunx509", "pkix", "newsunx509")}
_NO_KERBEROS = "Kerberos (GSSAPI) is not spoken here: use SCRAM-SHA-512, or a client certificate with SSL"
_NO_OAUTH = "OAUTHBEARER is not spoken here: use SCRAM-SHA-512, or a client certificate with SSL"
_NO_JAVA = "it names Java code, which cannot run here; leave it out"
_NO_CHOICE = "the TLS library chooses by itself here; leave it out"
# By the beginning of their names, the longest first.
_REFUSED = {
    "sasl.kerberos.": _NO_KERBEROS,
    "sasl.oauthbearer.": _NO_OAUTH,
    "sasl.login.callback.handler.class": _NO_JAVA,
    "sasl.login.class": _NO_JAVA,
    "sasl.login.": _NO_OAUTH,
    "sasl.client.callback.handler.class": _NO_JAVA,
    "ssl.engine.": _NO_JAVA,
    "ssl.provider": _NO_JAVA,
    "security.providers": _NO_JAVA,
    "ssl.secure.random.implementation": _NO_JAVA,
    "ssl.cipher.suites": _NO_CHOICE,
    "ssl.curves.list": _NO_CHOICE,
    "ssl.sigalgs.list": _NO_CHOICE,
    "ssl.ca.certificate.stores": "the stores of Windows are not read here: name a PEM file with ssl.ca.location",
}
_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
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
        """Return what these properties ask for; raise BadProperties if they are unknown or incomplete."""
        for name, value in properties.items():
            _check_name(name, str(value))
        protocol = properties.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise BadProperties(f"security.protocol is {protocol}; it must be one of {', '.join(PROTOCOLS)}.")
        tls = {name: value for name, value in properties.items() if name.startswith(("ssl.", "enable.ssl."))}
        if not protocol.startswith("SASL_"):
            return cls(protocol=protocol, tls=tls)
        mechanism = (properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "").upper()
        if mechanism not in MECHANISMS:
            raise BadProperties(
                f"sasl.mechanism is {mechanism or 'not set'}; this client speaks {', '.join(MECHANISMS)}, and TLS with "
                "client certificates."
            )
        username, password = _credentials(properties)
        return cls(protocol=protocol, mechanism=mechanism, username=username, password=password, tls=tls)

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that checks the broker's certificate and name unless the properties say otherwise."""
        try:
            return _context(with_stores_read(self.tls))
        except ssl.SSLError as error:
            raise BadProperties(f"A TLS certificate or key cannot be used: {error.reason or error}.") from None
        except OSError as error:
            raise BadProperties(f"The TLS file {error.filename} cannot be read: {error.strerror}.") from None


def _check_name(name: str, value: str) -> None:
    """Refuse a security property that would have no effect here: its author counts on its effect."""
    if not name.startswith(("security.", "sasl.", "ssl.", "enable.ssl.")) or name in _USED or not value.strip():
        return
    if value.strip().lower() in _ONLY_AS.get(name, ()):
        return
    for start, why in _REFUSED.items():
        if name.startswith(start):
            raise BadProperties(f"The client property {name} cannot be used: {why}.")
    if name in _ONLY_AS:
        raise BadProperties(f"The client property {name} cannot be used: {_NO_JAVA}.")
    close = difflib.get_close_matches(name, sorted(_USED), n=1, cutoff=0.8)
    hint = f"did you mean {close[0]}?" if close else "see the docs for those that are."
    raise BadProperties(f"The client property {name} is not known here; {hint}")


def _credentials(properties: Mapping[str, str]) -> tuple[str, str]:
    username, password = properties.get("sasl.username"), properties.get("sasl.password")
    jaas = properties.get("sasl.jaas.config")
    if jaas and (username is None or password is None):
        options = {
            match[1]: re.sub(r"\\(.)", r"\1", match[2] or match[3] or "") if match[4] is None else match[4]
            for match in _JAAS_OPTION.finditer(jaas)
        }
        if options.get("tokenauth", "").lower() == "true":
            raise BadProperties(
                "sasl.jaas.config asks for a delegation token (tokenauth), which is not used here: log in with a name "
                "and a password themselves."
            )
        username, password = options.get("username"), options.get("password")
    if username is None or password is None:
        raise BadProperties(
            "SASL needs a name and a password: set sasl.jaas.config with username and password, "
            "or sasl.username and sasl.password."
        )
    return username, password


def _context(tls: Mapping[str, str]) -> ssl.SSLContext:
    authority = tls.get("ssl.ca.location") or tls.get("ssl.truststore.location")
    text = tls.get("ssl.ca.pem") or tls.get("ssl.truststore.certificates")
    context = ssl.create_default_context(cafile=authority, cadata=text)
    if tls.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
        context.check_hostname = False
    if tls.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if revoked := tls.get("ssl.crl.location"):
        context.load_verify_locations(revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    _set_versions(context, tls)
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


def _set_versions(context: ssl.SSLContext, tls: Mapping[str, str]) -> None:
    """Allow the versions that ssl.enabled.protocols lists; the highest that ssl.protocol names."""
    listed = [name.strip() for name in tls.get("ssl.enabled.protocols", "").split(",") if name.strip()]
    highest = tls.get("ssl.protocol", "").strip()
    for name in [*listed, *([highest] if highest not in ("", "TLS") else [])]:
        if name not in _TLS_VERSIONS:
            raise BadProperties(
                f"ssl.enabled.protocols or ssl.protocol names {name}; this client speaks {', '.join(_TLS_VERSIONS)}."
            )
    if listed:
        context.minimum_version = min(_TLS_VERSIONS[name] for name in listed)
        context.maximum_version = max(_TLS_VERSIONS[name] for name in listed)
    elif highest in _TLS_VERSIONS:
        context.maximum_version = _TLS_VERSIONS[highest]


_LIBRDKAFKA_NAMES = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def librdkafka_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the same security in librdkafka's names, for confluent-kafka."""
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
    for name, value in with_stores_read(security.tls).items():
        if name in ("enable.ssl.certificate.verification", "ssl.crl.location", *_TRUST, *_KEYS):
            found[_LIBRDKAFKA_NAMES.get(name, name)] = value
    if keystore := found.pop("ssl.keystore.location", None):
        found |= {"ssl.certificate.location": keystore, "ssl.key.location": keystore}
    if "ssl.endpoint.identification.algorithm" in security.tls:
        found["ssl.endpoint.identification.algorithm"] = (
            security.tls["ssl.endpoint.identification.algorithm"].lower() or "none"
        )
    return found
