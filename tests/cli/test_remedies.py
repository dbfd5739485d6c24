"""What the command line adds to errors of the library."""

import pytest

from logmark.cli import remedies
from logmark.errors import UserError
from logmark.offsets import errors
from logmark.offsets.reset import members, undo  # noqa: F401 - they define errors too


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
