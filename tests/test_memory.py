"""What the process does with memory that it has freed."""

import gc
import platform
import subprocess
import sys

import pytest

from logmark.memory import GarbageCollection
from logmark.testing import Broker

FAULTS_OF_A_LOOP = """
import resource
from logmark.memory import keep_freed_buffers

print(keep_freed_buffers())
for _ in range(4):
    [bytes(1 << 20) for _ in range(4)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    [bytes(1 << 20) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_a_large_buffer_is_not_faulted_in_again_for_every_answer() -> None:
    ran = subprocess.run([sys.executable, "-c", FAULTS_OF_A_LOOP], capture_output=True, text=True, check=True)
    told, faults = ran.stdout.split()
    assert told == "True"
    assert int(faults) < 1000, f"{faults} page faults for 400 buffers of 256 pages: freed memory was given back"


WALKED_OVER = """
import gc, json, logging
from logmark.memory import freeze_gc

freeze_gc()
print(len(gc.get_objects()))
kept = [[one] for one in range(1000)]
freeze_gc()
print(len(gc.get_objects()))
"""


def test_a_collection_of_garbage_walks_over_nothing_that_was_there_at_the_first_call() -> None:
    ran = subprocess.run([sys.executable, "-c", WALKED_OVER], capture_output=True, text=True, check=True)
    before, after = map(int, ran.stdout.split())
    assert before < 100, f"{before} objects of the modules are still walked over"
    assert after > 1000, "what came later was spared too, and would never be collected"


MANAGED = """
import gc
from logmark import memory

now = 0.0
garbage = memory.GarbageCollection(clock=lambda: now)
gc.disable()
garbage.manage()
gc.collect()  # of what this made itself

def collect(seconds, generation=2):
    global now
    began = lambda phase, info: globals().update(now=now + seconds) if phase == "start" else None
    gc.callbacks.append(began)
    gc.collect(generation)
    gc.callbacks.remove(began)

kept = [[one] for one in range(1000)]
frozen = gc.get_freeze_count()
collect(memory.COLLECTION_SECONDS_MAX / 2)
print(gc.get_freeze_count() - frozen < 1000)
collect(1, generation=1)
print(gc.get_freeze_count() - frozen < 1000)
collect(1)
print(gc.get_freeze_count() - frozen >= 1000)
"""


def test_what_a_long_collection_has_found_alive_is_frozen() -> None:
    ran = subprocess.run([sys.executable, "-c", MANAGED], capture_output=True, text=True, check=True)
    assert ["True"] * 3 == ran.stdout.split()


def test_a_process_that_is_not_ours_keeps_its_collections() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with Broker() as broker:
            broker.create_topic("t")
            assert 0 < gc.get_freeze_count() <= frozen
            assert not any(isinstance(getattr(each, "__self__", None), GarbageCollection) for each in gc.callbacks)
    finally:
        gc.unfreeze()
