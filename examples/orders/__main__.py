"""Runs the example: `python -m examples.orders`, or with a broker of yours `python -m examples.orders HOST:PORT`."""

import sys

from confluent_kafka import KafkaException

from examples.orders.orders import tell
from logmark.testing import Broker


def main() -> int:
    """0 if the story was told to its end."""
    try:
        if len(sys.argv) > 1:
            tell(sys.argv[1], print)
        else:
            with Broker() as broker:
                tell(broker.bootstrap_servers, print)
    except (KafkaException, RuntimeError) as error:
        print(f"The example stopped: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
