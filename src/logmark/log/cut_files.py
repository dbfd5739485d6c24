"""Cut files: what a start takes out of a log is kept beside its segment, in a file that no broker reads."""

from contextlib import closing

from logmark.disk.file_system import FileSystem

CUT = ".cut"
READ_BYTES = 1024 * 1024


def keep_tail(path: str, position: int, files: FileSystem) -> str | None:
    """Copy what lies behind a position of a file to a cut file, durably; return its path, None if it is only zeros."""
    kept = None
    with closing(files.open(path)) as source:
        size = source.size()
        for at in range(position, size, READ_BYTES):
            data = source.pread(min(READ_BYTES, size - at), at)
            if kept is None and data.count(0) != len(data):
                kept = f"{path}.{position}{CUT}"
                files.write(kept, b"", sync=False)
            if kept is not None:
                with closing(files.open(kept)) as target:
                    target.pwrite(data, at - position)
    if kept is not None:
        files.sync_file(kept)
    return kept


def keep_file(path: str, files: FileSystem) -> str:
    """Rename a file to a cut file; return its new path. A sync of the folder makes it durable."""
    kept, number = f"{path}.0{CUT}", 1
    while files.exists(kept):
        kept, number = f"{path}.0.{number}{CUT}", number + 1
    files.replace(path, kept)
    return kept
