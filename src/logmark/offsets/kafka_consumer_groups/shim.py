"""Commands of the tool's own names, in a folder of the user's choice, so that scripts find them."""

import os
import shlex
from pathlib import Path

from logmark.errors import UserError
from logmark.offsets.user_files import replace_file

NAMES = ("kafka-consumer-groups.sh", "kafka-consumer-groups")
_MARK = "# Written by logmark kafka-consumer-groups --install-shim; remove it when you like."


def install_shims(folder: Path, *, python: str, is_strict: bool) -> list[Path]:
    """Write the commands and return their paths; files of others under these names stay."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Nothing was written; make it first.", exit_code=1)
    paths = [folder / name for name in NAMES]
    for path in paths:
        if os.path.lexists(path) and not _is_ours(path):
            raise UserError(
                f"{path} is there already and is not ours: it may be Kafka's own. Nothing was written; choose a folder "
                "that comes before it in PATH.",
                exit_code=1,
            )
    words = [python, "-m", "logmark.cli.kafka_consumer_groups", *(["--strict"] if is_strict else [])]
    for path in paths:
        try:
            replace_file(path, f'#!/bin/sh\n{_MARK}\nexec {shlex.join(words)} "$@"\n', mode=0o755)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.", exit_code=1) from None
    return paths


def _is_ours(path: Path) -> bool:
    try:
        return _MARK in path.read_text(errors="replace")
    except OSError:
        return False
