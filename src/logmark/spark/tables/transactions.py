"""All application transactions of a table, which deltalake only tells one by one, by name."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable


def transactions(delta: "DeltaTable", table: Path) -> dict[str, int]:
    """Return the transaction versions in force: of the last checkpoint of the table's log and the commits after."""
    # Only here: pyarrow belongs to the extra `spark`.
    import pyarrow.parquet as parquet

    log, version = table / "_delta_log", delta.version()
    parts: dict[int, list[Path]] = {}
    for file in sorted(log.glob("*.checkpoint*.parquet")):
        parts.setdefault(int(file.name.split(".")[0]), []).append(file)
    base = max((number for number in parts if number <= version), default=-1)
    found: dict[str, int] = {}
    for file in parts.get(base, []):
        column = parquet.read_table(file, columns=["txn"])["txn"].to_pylist()
        found |= {txn["appId"]: txn["version"] for txn in column if txn is not None and txn["appId"] is not None}
    for number in range(base + 1, version + 1):
        for line in (log / f"{number:020}.json").read_text().splitlines():
            txn = json.loads(line).get("txn")
            if txn is not None:
                found[txn["appId"]] = txn["version"]
    return found
