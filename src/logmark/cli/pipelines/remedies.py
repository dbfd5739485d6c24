"""What to type after an error of the library: the options of the command line, which the library does not know."""

from logmark.errors import UserError


def add_remedy(error: UserError) -> UserError:
    """Return the error with the options that help, or the same error if there are none."""
    # Only here: an error about a pipeline comes after its modules were imported.
    from logmark.spark import errors

    remedies = {
        errors.MissingRecordIds: "Choose with --missing-id skip or --missing-id send; --abandon ends a started replay.",
        errors.MissingOlderRecords: "Add --drop-older to do so.",
        errors.ReplayHasNoEnd: "Leave out --to.",
        errors.ReplayNeedsRebuild: "Add --rebuild.",
        errors.UnfinishedReplay: "Add --resume to finish it, or --abandon to remove it.",
        errors.PublicationStarted: "Resume it with `logmark pipelines replay NAME --resume`.",
        errors.CheckpointLost: "`logmark pipelines replay NAME --abandon` ends an unfinished replay.",
    }
    remedy = remedies.get(type(error))
    return error if remedy is None else UserError(f"{error} {remedy}", exit_code=error.exit_code)
