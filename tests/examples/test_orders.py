"""The small example tells the truth about offsets."""

from examples.orders.orders import tell
from logmark.testing import Broker


def test_the_worked_example_goes_as_it_is_told(logmark_broker: Broker) -> None:
    told: list[str] = []

    tell(logmark_broker.bootstrap_servers, told.append)

    assert [
        "The broker numbers the records:",
        "  ORD-1001 is at offset 0",
        "  ORD-1002 is at offset 1",
        "  ORD-1003 is at offset 2",
        "email-service processes two orders and commits each:",
        "  sent the mail for ORD-1001 (offset 0); committed 1 (last processed 0)",
        "  sent the mail for ORD-1002 (offset 1); committed 2 (last processed 1)",
        "It takes a third one and dies before it commits:",
        "  took ORD-1003 (offset 2); committed 2 (last processed 1)",
        "analytics-service knows nothing of all that, and begins at the beginning:",
        "  counted up to ORD-1003 (offset 2); committed 3 (last processed 2)",
        "ORD-1004 arrives at offset 3. email-service comes back:",
        "  sent the mail for ORD-1003 (offset 2); committed 3 (last processed 2)",
        "  sent the mail for ORD-1004 (offset 3); committed 4 (last processed 3)",
    ] == told
