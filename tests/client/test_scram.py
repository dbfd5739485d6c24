import pytest

from logmark.client.errors import AuthenticationFailed
from logmark.client.scram import Scram

# The example exchange of RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
VERDICT = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def an_exchange() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", nonce=NONCE)


def test_the_exchange_is_that_of_the_rfc() -> None:
    scram = an_exchange()

    assert b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO" == scram.first()
    assert PROOF == scram.final(CHALLENGE)
    scram.check(VERDICT)


def test_a_name_is_escaped() -> None:
    assert b"n,,n=a=2Cb=3Dc,r=x" == Scram("SCRAM-SHA-512", "a,b=c", "p", nonce="x").first()


def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    scram = an_exchange()
    scram.final(CHALLENGE)

    with pytest.raises(AuthenticationFailed, match="could not prove"):
        scram.check(b"v=" + b"A" * 43 + b"=")
    with pytest.raises(AuthenticationFailed, match="could not prove"):
        scram.check(b"")


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (CHALLENGE.replace(b"i=4096", b"i=1000000000"), "iterations"),
        (CHALLENGE.replace(b"i=4096", b"i=2000000"), "2000000 SCRAM iterations"),
        (CHALLENGE.replace(b"i=4096", b"i=1"), "1 SCRAM iterations"),
        (CHALLENGE.replace(b"i=4096", b"i=x"), "iterations"),
        (CHALLENGE.replace(b"r=rOpr", b"r=XXXX"), "does not answer ours"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not answer ours"),
        (CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"!!"), "does not answer ours"),
        (b"e=unknown-user", "unknown-user"),
        (b"\xff\xff", "does not answer ours"),
    ],
)
def test_a_hostile_challenge_is_refused_before_any_work(challenge: bytes, message: str) -> None:
    with pytest.raises(AuthenticationFailed, match=message):
        an_exchange().final(challenge)
