"""Random walks through Hypothesis's state machines, without Hypothesis: for a million steps it would take too long.

Nothing is shrunk. A walk that fails notes the steps of the life in which it failed, each with its values.
"""

import random
from collections.abc import Callable, Mapping

from hypothesis.stateful import RuleBasedStateMachine

Draws = Mapping[str, Callable[[random.Random], object]]


def walk(
    new_machine: type[RuleBasedStateMachine], draws: Draws, choose: random.Random, *, steps: int, steps_per_life: int
) -> int:
    """Do so many steps with one machine after the other; return how many machines there were.

    `draws` makes the value of a rule's argument, by the name of the argument. All invariants hold after each step.
    """
    lives = 0
    while steps > 0:
        life: list[tuple[str, dict[str, object]]] = []
        try:
            machine = new_machine()
            for _ in range(min(steps, steps_per_life)):
                possible = [rule for rule in machine.rules if all(holds(machine) for holds in rule.preconditions)]
                rule = choose.choice(possible)
                values = {name: draws[name](choose) for name in sorted(rule.arguments)}
                life.append((rule.function.__name__, values))
                rule.function(machine, **values)
                for invariant in machine.invariants:
                    invariant.function(machine)
            machine.teardown()
        except Exception as error:
            error.add_note(f"the steps of life {lives}: {life}")
            raise
        steps -= len(life)
        lives += 1
    return lives
