"""The write-ahead log (WAL): one file that one sync makes durable for every partition.

    entries.py          the bytes of an entry: what one round of group commit acknowledges
    files.py            one file: its header with a salt, its reuse, and the search for its entries
    inventory.py        which files there are, and how large each was made
    recovery_points.py  how far each partition's own files are durable
    log.py              the files in use, in reserve and free again
    writer.py           who writes an entry: the kernel by itself, or a thread
    saved_entries.py    entries of a partition whose own files the disk has failed
    replay.py           what recovery does with all of them
"""
