"""PKCS#12 stores as openssl and as Java's keytool write them."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from logmark.client.errors import BadProperties
from logmark.client.key_stores import with_stores_read
from logmark.client.properties import Security, librdkafka_properties
from tests.client.test_security import CERTIFICATES

PASSWORD = "change it"
CERTIFICATE = ssl.PEM_cert_to_DER_cert((CERTIFICATES / "broker.pem").read_text())


def run(*command: str) -> None:
    program = shutil.which(command[0])
    assert program is not None, f"{command[0]} is needed to make the store"
    subprocess.run([program, *command[1:]], check=True, capture_output=True, timeout=60)


def by_openssl(folder: Path, *more: str) -> Path:
    store = folder / "store.p12"
    run(
        "openssl", "pkcs12", "-export", "-in", str(CERTIFICATES / "broker.pem"), "-inkey",
        str(CERTIFICATES / "key.pem"), "-passout", f"pass:{PASSWORD}", "-out", str(store), *more,
    )  # fmt: skip
    return store


def by_keytool(folder: Path, *more: str) -> Path:
    store = folder / "trust.p12"
    run(
        "keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", str(CERTIFICATES / "broker.pem"),
        "-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD, *more,
    )  # fmt: skip
    return store


@pytest.mark.parametrize("kind", [{}, {"ssl.keystore.type": "PKCS12"}, {"ssl.keystore.type": "JKS"}])
@pytest.mark.parametrize("more", [(), ("-legacy",)])
def test_a_client_certificate_is_read_from_a_store(tmp_path: Path, kind: dict[str, str], more: tuple[str, ...]) -> None:
    store = by_openssl(tmp_path, *more)
    given = {"ssl.keystore.location": str(store), "ssl.keystore.password": PASSWORD, **kind}

    read = with_stores_read(given)
    Security.of({"security.protocol": "SSL", **given}).tls_context()

    assert CERTIFICATE == ssl.PEM_cert_to_DER_cert(read["ssl.keystore.certificate.chain"].strip())
    assert read["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----")
    assert "ssl.keystore.location" not in read


def test_what_java_trusts_is_trusted(tmp_path: Path) -> None:
    given = {"ssl.truststore.location": str(by_keytool(tmp_path)), "ssl.truststore.password": PASSWORD}

    context = Security.of({"security.protocol": "SSL", **given}).tls_context()

    assert CERTIFICATE in context.get_ca_certs(binary_form=True)
    told = librdkafka_properties({"security.protocol": "SSL", **given})
    assert CERTIFICATE == ssl.PEM_cert_to_DER_cert(told["ssl.ca.pem"])


def test_a_wrong_password_is_an_error(tmp_path: Path) -> None:
    given = {"ssl.keystore.location": str(by_openssl(tmp_path)), "ssl.keystore.password": "wrong"}

    with pytest.raises(BadProperties, match=r"The password in ssl\.keystore\.password does not open the store"):
        Security.of({"security.protocol": "SSL", **given}).tls_context()


def test_a_store_without_a_key_is_an_error(tmp_path: Path) -> None:
    given = {"ssl.keystore.location": str(by_keytool(tmp_path)), "ssl.keystore.password": PASSWORD}

    with pytest.raises(BadProperties, match="holds no private key with its certificate"):
        with_stores_read(given)


def test_without_openssl_the_way_to_pem_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = by_openssl(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BadProperties, match="takes the program openssl to read, and there is none on the PATH"):
        with_stores_read({"ssl.keystore.location": str(store), "ssl.keystore.password": PASSWORD})


def test_a_file_that_is_no_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.p12").write_bytes(b"\x30\x82nonsense")

    with pytest.raises(BadProperties, match=r"broken\.p12 \(ssl\.truststore\.location\) cannot be read"):
        with_stores_read({"ssl.truststore.location": str(tmp_path / "broken.p12")})
