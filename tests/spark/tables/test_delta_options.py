"""The options of format("logmark.delta")."""

from pathlib import Path

import pytest

from logmark.errors import UserError
from logmark.spark.tables.data_source import Settings
from logmark.spark.tables.modes import Rules

FOLDERS = {"path": "/tables/billing", "checkpointLocation": "/checkpoints/billing"}


def test_options_become_rules() -> None:
    more = {"mode": "upsert", "keys": "user, shop", "deleteBy": "gone", "mergeSchema": "true", "optimizeEvery": "0"}

    assert Settings(
        table=Path("/tables/billing"),
        checkpoint=Path("/checkpoints/billing"),
        rules=Rules(mode="upsert", keys=("user", "shop"), delete_by="gone", merge_schema=True),
        optimize_every=None,
    ) == Settings.of({**FOLDERS, **more}, is_complete=False)


def test_without_a_mode_sparks_output_mode_decides() -> None:
    assert "complete" == Settings.of(FOLDERS, is_complete=True).rules.mode
    assert "replace" == Settings.of(FOLDERS, is_complete=False).rules.mode


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**FOLDERS, "key": "user"}, r"has no option key. Did you mean keys\? Nothing was written"),
        ({**FOLDERS, "zzz": "1"}, r"has no option zzz. It knows path, checkpointLocation, mode"),
        ({**FOLDERS, "mode": "complete"}, r"Mode complete does not go with Spark's outputMode\(\"append\"\)"),
        ({**FOLDERS, "mode": "upsert"}, "Mode upsert needs keys"),
        ({**FOLDERS, "optimizeEvery": "often"}, "optimizeEvery must be a number of commits, 0 for never, not 'often'"),
        ({"path": "/tables/billing"}, "needs the option checkpointLocation"),
        ({**FOLDERS, "path": "s3://bucket/billing"}, "is not a directory of this machine"),
    ],
)
def test_options_that_are_wrong_are_an_error(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Settings.of(options, is_complete=False)
