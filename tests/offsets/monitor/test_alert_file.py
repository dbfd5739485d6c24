"""A file of alerts is read whole, and every mistake in it gets a message with its line."""

from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.offsets.monitor.alert_file import AlertFile, Notifier, read_alert_file
from logmark.offsets.monitor.alerts import AlertRule


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Reads a file with this text."""

    def reading(text: str) -> AlertFile:
        path = tmp_path / "alerts.toml"
        path.write_text(text)
        return read_alert_file(path)

    return reading


def mistakes(read, text: str) -> list[str]:  # type: ignore[no-untyped-def]
    """What is wrong with a text, without the path."""
    with pytest.raises(UserError) as caught:
        read(text)
    assert 2 == caught.value.exit_code
    head, *rest = str(caught.value).split("\n")
    assert head.endswith("nothing is watched.")
    return [line.split("alerts.toml", 1)[1].lstrip(":") for line in rest]


def test_every_kind_of_alert_is_read(read, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("HOOK_SECRET", "s3cret\n")

    found = read("""
        quiet_after_reset = "2h"
        [notify.ops]
        kind = "webhook"
        url = "https://hooks.example.org/x"
        secret_env = "HOOK_SECRET"
        timeout = "3s"
        attempts = 5
        [notify.pager]
        kind = "command"
        command = ["/bin/page", "--team", "data"]
        [[alert]]
        name = "behind"
        when = "lag"
        over = 10000
        for = "5m"
        clear_for = "1m"
        groups = ["billing-*", "!billing-test"]
        topics = "orders"
        per = "topic"
        severity = "page"
        notify = ["ops", "pager", "stdout"]
        [[alert]]
        name = "old"
        when = "seconds"
        over = "10m"
        [[alert]]
        name = "old in numbers"
        when = "seconds"
        over = 90
        [[alert]]
        name = "stuck"
        when = "verdict"
        is = ["stalled"]
        [[alert]]
        name = "any bad verdict"
        when = "verdict"
        [[alert]]
        name = "gone"
        when = "gone"
        groups = ["billing"]
        [[alert]]
        name = "falling"
        when = "falling-off"
        within = "6h"
        [[alert]]
        name = "expiring"
        when = "expiring"
        within = "1d"
        [[alert]]
        name = "down"
        when = "unreachable"
        for = "2m"
    """)

    assert 7_200_000 == found.quiet_after_reset_ms
    assert {
        "ops": Notifier(
            name="ops", kind="webhook", url="https://hooks.example.org/x", secret=b"s3cret", timeout_s=3, attempts=5
        ),
        "pager": Notifier(name="pager", kind="command", command=("/bin/page", "--team", "data"), attempts=3),
    } == found.notifiers
    assert [
        AlertRule(
            name="behind", when="lag", over=10000, for_ms=300_000, clear_for_ms=60_000, per="topic", severity="page",
            groups=("billing-*", "!billing-test"), topics=("orders",), notify=("ops", "pager", "stdout"),
        ),
        AlertRule(name="old", when="seconds", over=600),
        AlertRule(name="old in numbers", when="seconds", over=90),
        AlertRule(name="stuck", when="verdict", verdicts=frozenset({"STALLED"})),
        AlertRule(name="any bad verdict", when="verdict", verdicts=frozenset({"STALLED", "STOPPED", "REWOUND"})),
        AlertRule(name="gone", when="gone", groups=("billing",)),
        AlertRule(name="falling", when="falling-off", within_s=21_600),
        AlertRule(name="expiring", when="expiring", within_s=86_400),
        AlertRule(name="down", when="unreachable", for_ms=120_000),
    ] == found.rules  # fmt: skip


def test_an_empty_file_watches_nothing(read) -> None:  # type: ignore[no-untyped-def]
    assert AlertFile(rules=[], notifiers={}) == read("")


GOOD = '[[alert]]\nname = "a"\nwhen = "lag"\nover = 1\n'
MISTAKES = [
    ("alerts = 1", ["1: alerts means nothing here. Did you mean alert?"]),
    (GOOD + 'form = "5m"', ["5: form means nothing for when = 'lag'. Did you mean for?"]),
    (GOOD + "for = 5", ['5: for: 5 is not a length of time: write "30s", "5m" or "2h".']),
    (
        GOOD + 'for = "5 minutes"',
        [
            "5: for: '5 minutes' is not a length of time that is understood: write 2h, 3d, 1h30m, or PT2H, P3D, "
            "PT1H30M."
        ],
    ),
    (GOOD + 'notify = ["opps"]\n[notify.ops]\nkind = "stdout"', ["5: there is no [notify.opps]. Did you mean ops?"]),
    (GOOD + 'within = "1h"', ["5: within means nothing for when = 'lag'. It belongs to falling-off, expiring."]),
    (GOOD.replace("= 1", '= "1h"'), ["4: over: '1h' is not a number of records: write 10000."]),
    (GOOD.replace("= 1", "= -1"), ["4: over: -1 is not a number of records: write 10000."]),
    (GOOD + GOOD, ["6: two alerts are called 'a'; messages would be mixed up."]),
    (
        GOOD.replace('"lag"', '"lagg"'),
        ["3: when: 'lagg' is none of lag, seconds, verdict, gone, falling-off, expiring, unreachable. "
         "Did you mean lag?"],
    ),
    ('[[alert]]\nname = "a"\nwhen = "lag"', ["1: alert 'a' needs over: write over = 10000."]),
    (
        '[[alert]]\nname = "a"',
        ["1: alert 'a' does not say when: write when = \"lag\" or seconds, verdict, gone, falling-off, expiring, "
         "unreachable."],
    ),
    ('[[alert]]\nwhen = "gone"', ["1: alert 1 has no name."]),
    (
        '[[alert]]\nname = "a"\nwhen = "verdict"\nis = ["STALED"]',
        ["4: is: 'STALED' is none of OK, SLOW, STALLED, STOPPED, REWOUND. Did you mean STALLED?"],
    ),
    (GOOD + 'per = "groups"', ["5: per: 'groups' is none of group, topic, partition. Did you mean group?"]),
    (GOOD + "groups = []", ['5: groups: [] is not a list of texts: write ["a", "b"].']),
    ('[notify.x]\nkind = "webhok"', ["2: kind: 'webhok' is none of stdout, webhook, command. Did you mean webhook?"]),
    ('[notify.x]\nkind = "webhook"', ["1: notify.x needs url."]),
    (
        '[notify.x]\nkind = "webhook"\nurl = "ftp://a"',
        ["3: url: this is not an address that takes messages: write https://host/path."],
    ),
    (
        '[notify.x]\nkind = "webhook"\nurl = "http://a"\nsecret = "no"',
        ["4: secret means nothing for kind = 'webhook'. Did you mean secret_env?"],
    ),
    (
        '[notify.x]\nkind = "webhook"\nurl = "http://a"\nsecret_env = "NOT_THERE"',
        ["4: secret_env: the environment has no NOT_THERE."],
    ),
    (
        '[notify.x]\nkind = "command"\ncommand = "page --now"',
        ['3: command: no shell is used: write ["page", "--option"], one text for each word.'],
    ),
    (
        '[notify.x]\nkind = "command"\ncommand = ["page"]\nattempts = 0',
        ["4: attempts: 0 is not a number of attempts from 1 to 100."],
    ),
    (
        '# several at once\n[notify.x]\nkind = "stdout"\nurl = "http://a"\n\n[[alert]]\nname = "a"\nwhen = "gone"\n'
        'topics = ["x"]\n\n[[alert]]\nname = "b"\nwhen = "seconds"\nover = true\n',
        [
            "4: url means nothing for kind = 'stdout'.",
            "9: topics means nothing for when = 'gone'. It belongs to lag, seconds, verdict, falling-off.",
            '14: over: True is not a length of time: write "30s", "5m" or "2h".',
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_an_error_with_its_line(read, text: str, expected: list[str]) -> None:  # type: ignore[no-untyped-def]
    assert expected == mistakes(read, text)


def test_what_is_no_toml_is_said_with_its_line(read) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=r"cannot be read: .* \(at line 2, column 8\)\. Nothing is watched\."):
        read("[[alert]]\nname = ?\n")


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_alert_file(tmp_path / "none.toml")


def test_a_secret_may_stand_in_a_file_next_to_it(read, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "secret").write_text("s3cret\n")

    found = read('[notify.x]\nkind = "webhook"\nurl = "http://a"\nsecret_file = "secret"')

    assert b"s3cret" == found.notifiers["x"].secret
    assert "s3cret" not in repr(found)
