"""The topics inside a consumer's subscription: the one part of a member's metadata that the coordinator reads."""

import struct

from logmark.errors import Malformed

CONSUMER = "consumer"


def topics_of(subscription: bytes) -> frozenset[str]:
    """Return the topics of a consumer's subscription, read as version 0, which prefixes every later version."""
    try:
        version, count = struct.unpack_from(">hi", subscription, 0)
        if version < 0 or count < 0 or count * 2 > len(subscription):
            raise Malformed(f"a subscription of version {version} with {count} topics")
        at = 6
        topics = set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, at)
            at += 2
            if length < 0 or at + length > len(subscription):
                raise Malformed(f"a topic name of {length} bytes")
            topics.add(subscription[at : at + length].decode())
            at += length
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError) as error:
        raise Malformed("a subscription that ends too early") from error
