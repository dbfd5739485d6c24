"""One minute with the command line, the same on our broker and on Apache Kafka."""

from tests.cli.conftest import CommandResult, run
from tests.harness.brokers import BrokerUnderTest


def test_a_first_minute_is_the_same_on_any_kafka(broker: BrokerUnderTest) -> None:
    topic, email, analytics = broker.unique("orders"), broker.group("email"), broker.group("analytics")

    def logmark(*arguments: str, stdin: str = "") -> CommandResult:
        done = run(*arguments, stdin=stdin, servers=broker.bootstrap_servers)
        assert 0 == done.exit_code, done.error
        return done

    def read_lag() -> dict[str, tuple[int, int, int]]:
        rows = logmark("lag", email, analytics, "--output", "json").json
        return {row["group"]: (row["committed"], row["last_processed"], row["lag"]) for row in rows}

    assert [f"Created topic {topic}."] == logmark("topics", "create", topic, "--partitions", "1").lines
    written = logmark("produce", topic, stdin="ORD-1001\nORD-1002\nORD-1003\n")
    assert [f"Wrote 3 records to {topic}, partition 0: offsets 0 to 2."] == written.lines
    assert ["ORD-1001", "ORD-1002", "ORD-1003"] == logmark("consume", topic, "--group", email).lines
    assert ["ORD-1001", "ORD-1002"] == logmark("consume", topic, "--group", analytics, "--max", "2").lines
    assert {email: (3, 2, 0), analytics: (2, 1, 1)} == read_lag()

    plan = logmark("offsets", "reset", email, "--topic", topic, "--to-offset", "1", "--yes")
    assert " ".join(plan.words[2]).startswith(f"{topic} 0 3 2 1 2 0 2 ")
    assert ["ORD-1002", "ORD-1003"] == logmark("consume", topic, "--group", email).lines
    assert {email: (3, 2, 0), analytics: (2, 1, 1)} == read_lag()

    assert [f"Deleted group {email}."] == logmark("groups", "delete", email).lines
    assert [f"Deleted topic {topic}."] == logmark("topics", "delete", topic).lines
