
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
    ("properties", "sentence"),
    [
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security.protcol": "SSL"}, "security.protcol is not known"),
        ({"ssl.ca.locaton": "x"}, "ssl.ca.locaton is not known"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "speaks PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "needs a name and a password"),
    ],
)
def test_properties_that_cannot_be_are_refused_with_a_sentence(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadProperties, match=sentence):
        Security.of(properties)


def test_properties_of_other_clients_are_left_alone() -> None:
    assert "PLAINTEXT" == Security.of({"retries": "3", "request.timeout.ms": "500"}).protocol


@pytest.mark.parametrize("store", ["ssl.truststore", "ssl.keystore"])
def test_a_java_key_store_is_refused_with_the_way_to_pem(store: str) -> None:
    security = Security.of({"security.protocol": "SSL", f"{store}.location": "/etc/client.jks"})

    with pytest.raises(BadProperties, match="convert it to PEM"):
        security.tls_context()


def test_a_missing_certificate_file_is_a_sentence() -> None:
    with pytest.raises(BadProperties, match="cannot be"):
        Security.of({"security.protocol": "SSL", "ssl.ca.location": "/nowhere/ca.pem"}).tls_context()


def test_security_is_told_to_librdkafka_in_its_own_names() -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
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
