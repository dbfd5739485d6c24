"""What the command line adds to errors of the library, which name no option."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import logmark
from logmark.cli import remedies
from logmark.client.errors import ReadOnly
from logmark.errors import DataDirectoryUnusable, DirectoryOfKafka, ListenFailed, UserError
from logmark.offsets import errors
from logmark.offsets.reset import members, undo  # noqa: F401 - they define errors too
from logmark.spark import errors as spark_errors


def subclasses(kind: type[errors.OffsetsError]) -> set[type[errors.OffsetsError]]:
    found = set(kind.__subclasses__())
    return found.union(*(subclasses(one) for one in found))


@pytest.mark.parametrize("kind", sorted(subclasses(errors.OffsetsError), key=lambda one: one.__name__))  # type: ignore[attr-defined]
def test_every_error_with_a_remedy_has_one_for_the_command_line(kind: type[errors.OffsetsError]) -> None:
    has_none = {errors.CopyRefused}

    assert (kind in remedies.REMEDIES) != (kind in has_none)


def test_the_command_lines_remedy_replaces_the_librarys() -> None:
    error = errors.ChangePending("5p7m2k9q3xd", "The broker did not answer.")

    assert "finish_change(client" in str(error)
    assert [
        "The broker did not answer. The change 5p7m2k9q3xd is journaled as pending; `logmark offsets finish "
        "5p7m2k9q3xd` completes it, `logmark offsets undo 5p7m2k9q3xd` undoes it."
    ] == remedies.describe_error(error)


def test_an_interrupted_replay_says_what_stopped_it_and_how_to_resume_it() -> None:
    cause = errors.CopiesLost("orders-0 refuses the next batch", "forget the run and start a new one")
    error = errors.ReplayInterrupted("r-1", cause, "5 records were copied and stay")

    assert [
        "orders-0 refuses the next batch; start over with --start-over. 5 records were copied and stay; resume it "
        "with: logmark replay --resume r-1."
    ] == remedies.describe_error(error)


def test_other_errors_are_shown_as_they_are() -> None:
    assert ["first", "second"] == remedies.describe_error(UserError("first", lines=["second"]))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DataDirectoryUnusable, "`logmark serve --data-dir DIR` serves another directory."),
        (DirectoryOfKafka, "Back it up through its brokers: logmark backup --bootstrap-servers HOST:PORT DEST"),
        (ListenFailed, "`logmark serve --listen HOST:PORT` listens on another address."),
        (
            spark_errors.TableGone,
            "`logmark offsets reset GROUP --all-topics --to-earliest` resets the group.",
        ),
        (
            spark_errors.LiveVersionReplaced,
            "Resume the replay with `logmark pipelines replay NAME --resume`, and start the pipeline then.",
        ),
        (ReadOnly, "Changes are forbidden here (--read-only, LOGMARK_READ_ONLY or the context)."),
    ],
)
def test_a_message_without_an_option_is_followed_by_it(kind: type[UserError], expected: str) -> None:
    assert [f"Nothing was changed. {expected}"] == remedies.describe_error(kind("Nothing was changed."))


# Options in strings that are no remedies of the command line's.
OPTIONS_OF_OTHERS = {
    "broker/cleaner.py",  # starts a process of ours
    "log/segment_cleaner.py",  # is that process
    "offsets/monitor/alert_file.py",  # shows how a user's own command is written
    "spark/pipelines/program.py",  # a program for spark-submit, with options of its own
}
HAVE_OPTIONS = ("cli/", "tour/", "offsets/kafka_consumer_groups/")


def texts(module: ast.Module) -> Iterator[str]:
    """The strings of a module but for its docstrings."""
    statements = (node.value for node in ast.walk(module) if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_below_the_command_line_no_message_names_an_option() -> None:
    root = Path(logmark.__file__).parent

    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(re.search(r"(?<![\w-])--[a-z]", text) for text in texts(ast.parse(path.read_text())))
    }

    assert "cli/serve.py" in found
    assert set() == {one for one in found if not one.startswith(HAVE_OPTIONS)} - OPTIONS_OF_OTHERS
