"""The partitions of columns of keys, against the same hash one key at a time."""

import random

import pyarrow as pa
import pytest

from logmark.offsets.partitioner import partition_for_key
from logmark.spark.sink.key_hashes import partitions_of_keys


def keys(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice([0, 1, 2, 3, 4, 5, 7, 8, 20, 127, 128, 129, 400])) for _ in range(500)]


@pytest.mark.parametrize("count", [1, 3, 7, 64])
def test_a_column_of_keys_has_the_partitions_of_its_keys(count: int) -> None:
    given = keys(count)

    assert [partition_for_key(key, count) for key in given] == partitions_of_keys(pa.array(given, pa.binary()), count)


def test_a_part_of_a_column_and_nulls_in_it_change_nothing() -> None:
    given = [None if number % 3 == 0 else key for number, key in enumerate(keys(9))]
    column = pa.array(given, pa.binary()).slice(11, 200)

    found = partitions_of_keys(column, 5)

    assert [(row, partition_for_key(key, 5)) for row, key in enumerate(column.to_pylist()) if key is not None] == [
        (row, number) for row, number in enumerate(found) if column[row].is_valid
    ]


def test_no_keys_and_only_empty_ones_have_partitions() -> None:
    assert [] == partitions_of_keys(pa.array([], pa.binary()), 5)
    assert [partition_for_key(b"", 5)] * 3 == partitions_of_keys(pa.array([b""] * 3, pa.binary()), 5)
