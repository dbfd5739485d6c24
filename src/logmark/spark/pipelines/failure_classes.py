"""Which failures of Spark and Python are transient and which are final: one table.

`failures.py` looks up what it finds in the text of a failed query. docs/pipeline-failures.md shows the same table. What
is in no row is unknown: it is tried again, but not for ever (`FailureStreak`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from logmark.errors import UserError
from logmark.spark.errors import FailureKind, StateIncompatible, StateUnreadable

PERMANENT, TRANSIENT, UNKNOWN = FailureKind.PERMANENT, FailureKind.TRANSIENT, FailureKind.UNKNOWN


class Origin(StrEnum):
    """Where the name of a failure comes from.

    CONDITION   an error condition of Spark or PySpark, with its subclass after a dot; a row counts for its subclasses
    SQL_STATE   the beginning of the SQLSTATE of a condition that has no row of its own
    PYTHON      an exception of Python outside of the pipeline's own code
    TEXT        words of a message that has no condition
    JAVA        the last exception of a Java trace
    """

    CONDITION = "condition"
    SQL_STATE = "SQLSTATE"
    PYTHON = "Python exception"
    TEXT = "message"
    JAVA = "Java exception"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """A row of the table.

    `meaning` says it to people. `exception` is the class by which the command line knows what to do next.
    `is_of_data` says that a record may be the cause, so that it is worth looking for.
    """

    origin: Origin
    names: Sequence[str]
    kind: FailureKind
    meaning: str
    exception: type[UserError] | None = None
    is_of_data: bool = False


FAILURE_CLASSES: Sequence[FailureClass] = (
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE", "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
            "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE", "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
            "STATE_STORE_VALUE_SCHEMA_EVOLUTION_THRESHOLD_EXCEEDED",
            "STATE_STORE_STATE_SCHEMA_FILES_THRESHOLD_EXCEEDED", "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
            "STATE_STORE_INVALID_CONFIG_AFTER_RESTART", "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
            "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
            "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
            "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS",
        ),
        kind=PERMANENT,
        meaning="The query was changed, and the state in its checkpoint does not fit it any more.",
        exception=StateIncompatible,
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
            "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS",
            "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE",
            "CANNOT_LOAD_STATE_STORE.CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT",
            "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_KEY_SIZE",
            "CANNOT_LOAD_STATE_STORE.CANNOT_READ_SNAPSHOT_FILE_KEY_SIZE",
            "CANNOT_LOAD_STATE_STORE.CANNOT_READ_SNAPSHOT_FILE_VALUE_SIZE",
            "CANNOT_LOAD_STATE_STORE.INVALID_CHANGE_LOG_READER_VERSION",
            "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED", "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED",
        ),
        kind=PERMANENT,
        meaning="A part of the checkpoint is missing or damaged, so the state cannot be read.",
        exception=StateUnreadable,
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "STATE_STORE_INVALID_PROVIDER", "UNSUPPORTED_FEATURE.STATE_STORE_MULTIPLE_COLUMN_FAMILIES",
            "UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS", "STATE_STORE_UNSUPPORTED_OPERATION",
        ),
        kind=PERMANENT,
        meaning="The state store of the query cannot do what the query needs: set another one, or none, in the "
        "pipeline's conf.",
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "RESULT_COLUMN_NAMES_MISMATCH", "RESULT_COLUMN_SCHEMA_MISMATCH", "RESULT_COLUMN_TYPES_MISMATCH",
            "RESULT_ROWS_MISMATCH", "INPUT_NOT_FULLY_CONSUMED", "OUTPUT_EXCEEDS_INPUT_ROWS", "UDF_RETURN_TYPE",
            "UDTF_EVAL_METHOD_ARGUMENTS_DO_NOT_MATCH_SIGNATURE",
            "UDTF_RETURN_NOT_ITERABLE", "UDTF_RETURN_SCHEMA_MISMATCH", "UDTF_INVALID_OUTPUT_ROW_TYPE",
            "DATA_SOURCE_RETURN_SCHEMA_MISMATCH", "UNSUPPORTED_DATA_TYPE_FOR_ARROW", "NOT_ITERABLE",
            "INVALID_RETURN_TYPE_FOR_PANDAS_UDF", "INVALID_RETURN_TYPE_FOR_ARROW_UDF",
        ),
        kind=PERMANENT,
        meaning="A function of the pipeline returns something else than was declared.",
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "FAILED_EXECUTE_UDF", "TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR",
            "FLATMAPGROUPSWITHSTATE_USER_FUNCTION_ERROR",
        ),
        kind=PERMANENT,
        meaning="A function of the JVM that the pipeline calls has failed.",
        is_of_data=True,
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=("PYTHON_VERSION_MISMATCH", "PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION"),
        kind=PERMANENT,
        meaning="The machines of Spark do not have the Python, or the packages, that the pipeline needs.",
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "CANNOT_WRITE_STATE_STORE", "STREAMING_CHECKPOINT_LOG_WRITE_FAILURE",
            "CANNOT_LOAD_STATE_STORE.HDFS_STORE_PROVIDER_OUT_OF_MEMORY",
            "STATE_STORE_UNEXPECTED_EMPTY_FILE_IN_ROCKSDB_ZIP", "STATE_STORE_OPERATION_OUT_OF_ORDER",
            "UNABLE_TO_ACQUIRE_MEMORY", "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "CANNOT_OPEN_SOCKET",
            "STREAMING_PYTHON_RUNNER_INITIALIZATION_COMMUNICATION_FAILURE",
            "STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE",
        ),
        kind=TRANSIENT,
        meaning="A disk, a socket or the memory was short of something for the moment.",
    ),
    FailureClass(
        origin=Origin.CONDITION,
        names=(
            "CANNOT_LOAD_STATE_STORE", "CONCURRENT_STREAM_LOG_UPDATE", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
            "PYTHON_DATA_SOURCE_ERROR", "PYTHON_EXCEPTION", "STREAMING_PYTHON_RUNNER_INITIALIZATION_FAILURE",
            "INTERNAL_ERROR", "TASK_WRITE_FAILED", "STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR",
        ),
        kind=UNKNOWN,
        meaning="The condition alone does not tell: what is inside of it decides.",
    ),
    FailureClass(
        origin=Origin.SQL_STATE,
        names=("21", "22", "23", "P0001"),
        kind=PERMANENT,
        meaning="An expression fails on the data, such as a cast, a division by zero or `raise_error`.",
        is_of_data=True,
    ),
    FailureClass(
        origin=Origin.SQL_STATE,
        names=("0A", "42"),
        kind=PERMANENT,
        meaning="Spark cannot do what the pipeline asks for: a column, a function or a feature is not there.",
        is_of_data=True,
    ),
    FailureClass(
        origin=Origin.SQL_STATE,
        names=("38000",),
        kind=PERMANENT,
        meaning="A function that an expression calls has failed.",
        is_of_data=True,
    ),
    FailureClass(
        origin=Origin.SQL_STATE,
        names=("08", "53", "58"),
        kind=TRANSIENT,
        meaning="A connection, a resource or the file system failed.",
    ),
    FailureClass(
        origin=Origin.PYTHON,
        names=(
            "MemoryError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError",
            "ConnectionAbortedError", "BrokenPipeError", "TimeoutError", "timeout", "gaierror", "herror", "URLError",
            "Timeout", "ConnectTimeout", "ReadTimeout", "ConnectError", "ReadError", "RemoteDisconnected",
            "IncompleteRead", "OutOfMemoryError", "Py4JNetworkError",
        ),
        kind=TRANSIENT,
        meaning="Memory or a network failed, also in the pipeline's own code.",
    ),
    FailureClass(
        origin=Origin.PYTHON,
        names=(
            "TypeError", "NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "NotImplementedError",
            "PicklingError", "PickleException", "UnpicklingError", "ArrowInvalid", "ArrowTypeError",
            "ArrowNotImplementedError", "PySparkTypeError", "PySparkValueError", "PySparkNotImplementedError",
            "PySparkPicklingError", "PySparkImportError",
        ),
        kind=PERMANENT,
        meaning="A function of the pipeline does not fit the way Spark calls it: its arguments, its result, or a "
        "module that a worker does not have.",
    ),
    FailureClass(
        origin=Origin.TEXT,
        names=(
            "Python worker exited unexpectedly", "Python worker failed to connect back", "ExecutorLostFailure",
            "No space left on device", "Container killed by", "SparkContext was shut down", "Connection reset",
            "Could not obtain block", "Failed to connect to",
        ),
        kind=TRANSIENT,
        meaning="A worker, an executor or a disk is gone for the moment.",
    ),
    FailureClass(
        origin=Origin.JAVA,
        names=(
            "OutOfMemoryError", "IOException", "EOFException", "SocketException", "SocketTimeoutException",
            "ConnectException", "TimeoutException", "FetchFailedException", "ClosedChannelException",
            "FileSystemException", "UnknownHostException", "NoRouteToHostException", "InterruptedIOException",
            "RocksDBException",
        ),
        kind=TRANSIENT,
        meaning="Memory, a disk, a network or another machine of Spark failed.",
    ),
    FailureClass(
        origin=Origin.JAVA,
        names=("ClassNotFoundException", "NoClassDefFoundError", "NoSuchMethodError", "NotSerializableException"),
        kind=PERMANENT,
        meaning="A class that the pipeline or its settings name is not in this Spark, or cannot be sent to it.",
    ),
)  # fmt: skip

_CONDITIONS = {name: one for one in FAILURE_CLASSES if one.origin is Origin.CONDITION for name in one.names}
_BY_NAME = {
    origin: {name: one for one in FAILURE_CLASSES if one.origin is origin for name in one.names}
    for origin in (Origin.PYTHON, Origin.JAVA)
}


def find_condition_class(condition: str, sql_state: str = "") -> FailureClass | None:
    """Return the row of a condition: of its full name, of its main class, else of its SQLSTATE."""
    found = _CONDITIONS.get(condition) or _CONDITIONS.get(condition.partition(".")[0])
    if found is not None or not sql_state:
        return found
    states = (one for one in FAILURE_CLASSES if one.origin is Origin.SQL_STATE)
    return next((one for one in states if sql_state.startswith(tuple(one.names))), None)


def find_exception_class(name: str, origin: Origin) -> FailureClass | None:
    """Return the row of an exception of Python or Java, by the last part of its name."""
    return _BY_NAME[origin].get(name)


def find_text_class(text: str) -> FailureClass | None:
    """Return the row whose words the text contains."""
    rows = (one for one in FAILURE_CLASSES if one.origin is Origin.TEXT)
    return next((one for one in rows if any(words in text for words in one.names)), None)


_SHOWN = {PERMANENT: "final", TRANSIENT: "tried again", UNKNOWN: "unknown"}


def format_failure_classes() -> str:
    """Return the table in Markdown, as the documentation shows it."""
    lines = ["| | names | what happens | what it means |", "|---|---|---|---|"]
    for one in FAILURE_CLASSES:
        names = ", ".join(f"`{name}`" for name in one.names)
        lines.append(f"| {one.origin} | {names} | {_SHOWN[one.kind]} | {one.meaning} |")
    return "\n".join(lines) + "\n"
