"""Named clusters in a settings file: read exactly, or refused with a message that names the line."""

from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.offsets.contexts import read_contexts


def settings(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "logmark.toml"
    path.write_text(text)
    return path


def test_no_file_means_no_contexts(tmp_path: Path) -> None:
    found = read_contexts(tmp_path / "none.toml")

    assert ({}, None) == (found.known, found.current)


def test_a_context_is_a_cluster_with_its_properties(tmp_path: Path) -> None:
    (tmp_path / "prod.properties").write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    found = read_contexts(
        settings(
            tmp_path,
            'current = "prod"\n[contexts.prod]\nbootstrap_servers = "a:1,b:2"\ncommand_config = "prod.properties"\n'
            'read_only = true\n[contexts.prod.properties]\n"sasl.mechanism" = "SCRAM-SHA-256"\n"a.number" = 5\n',
        )
    )
    prod = found.named(found.current or "")

    assert ("a:1,b:2", True) == (prod.bootstrap_servers, prod.is_read_only)
    assert {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "a.number": "5"} == prod.properties


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("current =", "cannot be read"),
        ('contxts = "x"', "Did you mean contexts?"),
        ("contexts = 5", "a context is a table"),
        ("[contexts.prod]\n", "context prod has no bootstrap_servers"),
        ('[contexts.prod]\nbootstrap_server = "a:1"', "Did you mean bootstrap_servers?"),
        ("[contexts.prod]\nbootstrap_servers = 5", "must be a str"),
        ('current = "pro"\n[contexts.prod]\nbootstrap_servers = "a:1"', "Did you mean prod?"),
    ],
)
def test_wrong_settings_are_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match="Nothing was done") as refused:
        read_contexts(settings(tmp_path, text))

    assert message in str(refused.value)
    assert 2 == refused.value.exit_code
