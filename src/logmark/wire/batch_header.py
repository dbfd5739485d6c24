"""The header of a record batch (magic 2): where its fields are, and the flags in its attributes.

`batch_header.pxd` has the same for the compiled modules, as constants of C.
"""

OVERHEAD = 12  # the offset and the length, which the length does not count
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21  # here begins what the CRC covers
FLAGS_AT = 22  # the low byte of the attributes
LAST_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
COUNT_AT = 57

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp is when tombstones may go
