import ssl
from pathlib import Path

import pytest

from logmark.client.errors import BadProperties
from logmark.client.properties import Security, librdkafka_properties

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="s3\\"cret";'


def test_no_properties_mean_plain_text() -> None:
    security = Security.of({})

    assert ("PLAINTEXT", False, False) == (security.protocol, security.is_tls, security.is_sasl)


@pytest.mark.parametrize(
    "credentials",
    [
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS},
        {"sasl.mechanisms": "plain", "sasl.username": "alice", "sasl.password": 's3"cret'},
    ],
)
def test_credentials_are_read_in_javas_and_in_librdkafkas_names(credentials: dict[str, str]) -> None:
    security = Security.of({"security.protocol": "sasl_ssl", **credentials})

    assert ("SASL_SSL", "PLAIN", "alice", 's3"cret') == (
        security.protocol, security.mechanism, security.username, security.password,
    )  # fmt: skip


def test_a_password_is_not_shown() -> None:
    security = Security.of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "a",
            "sasl.password": "hush",
        }
    )

    assert "hush" not in repr(security)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security.protcol": "SSL"}, "security.protcol is not known"),
        ({"ssl.ca.locaton": "x"}, "ssl.ca.locaton is not known here; did you mean ssl.ca.location?"),
        ({"enable.ssl.certificate.verificatoin": "x"}, "verificatoin is not known"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "speaks PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs a name and a password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "speaks PLAIN, SCRAM-SHA-256"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": "ScramLoginModule required username='a' password='b' tokenauth=true;",
            },
            "asks for a delegation token",
        ),
    ],
)
def test_invalid_properties_are_refused_with_an_error(properties: dict[str, str], message: str) -> None:
    with pytest.raises(BadProperties, match=message):
        Security.of(properties)


def test_properties_of_other_clients_are_left_alone() -> None:
    assert "PLAINTEXT" == Security.of({"retries": "3", "request.timeout.ms": "500"}).protocol


# Every security property of Java's clients and of librdkafka that is not used here, with one word of the reason.
WITHOUT_MEANING = {
    "sasl.kerberos.service.name": "GSSAPI",
    "sasl.kerberos.keytab": "GSSAPI",
    "sasl.oauthbearer.token.endpoint.url": "OAUTHBEARER",
    "sasl.login.callback.handler.class": "Java",
    "sasl.client.callback.handler.class": "Java",
    "sasl.login.class": "Java",
    "sasl.login.refresh.window.factor": "OAUTHBEARER",
    "ssl.engine.factory.class": "Java",
    "ssl.provider": "Java",
    "ssl.providers": "Java",
    "security.providers": "Java",
    "ssl.secure.random.implementation": "Java",
    "ssl.trustmanager.algorithm": "Java",
    "ssl.keymanager.algorithm": "Java",
    "ssl.cipher.suites": "by itself",
    "ssl.curves.list": "by itself",
    "ssl.sigalgs.list": "by itself",
    "ssl.ca.certificate.stores": "Windows",
}


@pytest.mark.parametrize(("name", "reason"), WITHOUT_MEANING.items())
def test_a_security_property_without_meaning_here_is_refused_by_name_and_never_ignored(name: str, reason: str) -> None:
    with pytest.raises(BadProperties, match=rf"{name} cannot be used: .*{reason}"):
        Security.of({"security.protocol": "SSL", name: "x"})


def test_javas_own_defaults_may_be_named() -> None:
    given = {"ssl.trustmanager.algorithm": "PKIX", "ssl.keymanager.algorithm": "SunX509", "ssl.cipher.suites": ""}

    assert "SSL" == Security.of({"security.protocol": "SSL", **given}).protocol


def test_versions_of_tls_are_as_asked() -> None:
    def context(**given: str) -> ssl.SSLContext:
        named = {name.replace("_", "."): value for name, value in given.items()}
        return Security.of({"security.protocol": "SSL", **named}).tls_context()

    only = context(ssl_enabled_protocols="TLSv1.2")
    assert (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2) == (only.minimum_version, only.maximum_version)
    assert ssl.TLSVersion.TLSv1_2 == context(ssl_protocol="TLSv1.2").maximum_version
    assert ssl.TLSVersion.TLSv1_3 == context(ssl_enabled_protocols="TLSv1.2,TLSv1.3").maximum_version
    with pytest.raises(BadProperties, match=r"names TLSv1; this client speaks TLSv1\.2"):
        context(ssl_enabled_protocols="TLSv1")


@pytest.mark.parametrize("store", ["ssl.truststore", "ssl.keystore"])
def test_a_java_key_store_is_refused_with_the_way_to_pkcs12(store: str, tmp_path: Path) -> None:
    (tmp_path / "client.jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    security = Security.of({"security.protocol": "SSL", f"{store}.location": str(tmp_path / "client.jks")})

    with pytest.raises(BadProperties, match=r"is a JKS store.*-deststoretype PKCS12"):
        security.tls_context()


def test_a_store_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(BadProperties, match=r"/nowhere/ca\.p12 \(ssl\.truststore\.location\) cannot be read"):
        Security.of({"security.protocol": "SSL", "ssl.truststore.location": "/nowhere/ca.p12"}).tls_context()


def test_a_missing_certificate_file_is_an_error() -> None:
    with pytest.raises(BadProperties, match="cannot be"):
        Security.of({"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}).tls_context()


def test_security_is_told_to_librdkafka_in_its_own_names() -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/client.pem",
        "ssl.endpoint.identification.algorithm": "",
        "retries": "3",
    }
    expected = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": 's3"cret',
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert expected == librdkafka_properties(properties)
