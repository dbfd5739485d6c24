"""Deadlines come due in order, once, where they were last set."""

from hypothesis import given
from hypothesis import strategies as st

from logmark.coordination.deadlines import Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS)
def test_deadlines_agree_with_a_plain_dictionary(steps: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    for verb, key, at in steps:
        if verb == "set":
            deadlines.set(key, at)
            expected[key] = at
        elif verb == "cancel":
            deadlines.cancel(key)
            expected.pop(key, None)
        else:
            popped = deadlines.pop(at)
            due = {key: when for key, when in expected.items() if when <= at}
            assert (popped is None) == (not due)
            if popped is not None:
                assert min(due.values()) == expected.pop(popped)

        assert min(expected.values(), default=None) == deadlines.next_ms()
        assert set(expected) == {key for key in range(5) if key in deadlines}


def test_a_heartbeat_that_moves_its_deadline_leaves_no_trail() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now in range(10_000):
        deadlines.set("member", now + 10)

    assert len(deadlines._heap) == 1
