"""Brings Apache Kafka into the cache before tests run, or says in one sentence why it cannot be had."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import distribution


def main() -> int:
    """0 when tests that need Apache Kafka can run, or may be left out."""
    reason = distribution.why_not()
    if reason is None:
        return 0
    print(reason, file=sys.stderr)
    if os.environ.get("ALLOW_NO_KAFKA") == "1":
        print("ALLOW_NO_KAFKA=1 is set: the tests that need it are left out.", file=sys.stderr)
        return 0
    print("To test without it, set ALLOW_NO_KAFKA=1.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
