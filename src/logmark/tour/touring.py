"""Plays chapters one after the other, each on a stage of its own."""

import traceback
from collections.abc import Sequence

from logmark.errors import UserError
from logmark.offsets.suggestions import did_you_mean
from logmark.tour import firststeps
from logmark.tour.chapters import CHAPTERS, Chapter
from logmark.tour.elements import Cover, Pause, Prose, Title
from logmark.tour.stage import Logmark, Show, open_stage

_WELCOME = """
A shop keeps its clicks in a log. Billing, fraud detection and a machine-learning team read it, each at its own pace.
That is all you need to learn offsets.

Everything below happened: each chapter starts a broker of its own in a temporary folder, runs the code that you see
with a real Kafka client (confluent-kafka), and shows what came out. The pictures are drawn from what the broker says
about its logs and groups: ▲ is a group's committed offset and △ a running consumer's position, both under the record
that comes next; ░ is gone.

In the code, `Producer`, `Consumer` and `TopicPartition` come from `confluent_kafka`, `servers` is the address of the
broker, and `broker` is the broker itself (`logmark.testing.Broker`), which a test or a tour may ask to fail, and whose
clock it may turn.
"""


def chosen(names: Sequence[str]) -> list[Chapter]:
    """Return the chapters of these names in this order, all of them without a name."""
    known = {chapter.name: chapter for chapter in CHAPTERS}
    for name in names:
        if name not in known:
            raise UserError(
                f"There is no chapter {name!r}.{did_you_mean(name, known)} `logmark tour --list` shows them all.",
                exit_code=2,
            )
    return [known[name] for name in names] or list(CHAPTERS)


def tell(chapters: Sequence[Chapter], show: Show, logmark: Logmark) -> None:
    """Play these chapters with a pause after each; the whole tour has a cover and ends with first steps."""
    is_whole = len(chapters) == len(CHAPTERS)
    if is_whole:
        show(Cover("A tour of offsets"))
        show(Prose(_WELCOME))
        show(Pause())
    for chapter in chapters:
        show(Title(f"{CHAPTERS.index(chapter) + 1}. {chapter.title}", chapter.name))
        _play(chapter, show, logmark)
        if is_whole or chapter is not chapters[-1]:
            show(Pause())
    if is_whole:
        firststeps.tell(show)


def _play(chapter: Chapter, show: Show, logmark: Logmark) -> None:
    with open_stage(show, logmark) as stage:
        try:
            chapter.play(stage)
        except BaseException as left:
            # Who leaves in the middle leaves consumers behind: they go before their broker, or they complain about it.
            traceback.clear_frames(left.__traceback__)
            raise
