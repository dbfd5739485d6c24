from array import array
from collections.abc import Iterable
from enum import IntEnum

DEPTH_MAX: int

class Kind(IntEnum):
    STRING = 0
    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    DECIMAL = 7
    BOOLEAN = 8
    TIMESTAMP = 9
    DATE = 10
    BINARY = 11
    STRUCT = 12
    ARRAY = 13
    MAP = 14

class Node:
    kind: int
    name: bytes
    wanted: str
    children: list[Node]
    count: int
    nulls: int
    validity: bytearray | None
    offsets: array[int] | None
    data: bytearray | array[int] | array[float] | None
    def __init__(
        self,
        kind: Kind,
        *,
        name: bytes = b"",
        wanted: str = "",
        children: Iterable[Node] = (),
        precision: int = 0,
        scale: int = 0,
    ) -> None: ...
    def decode(
        self, data: bytes | bytearray | memoryview, offsets: array[int], validity: bytearray | None
    ) -> list[tuple[int, str]]: ...
