"""How tests that search for a counterexample draw their examples: the same ones in every run, new ones in a soak.

`tests/conftest.py` loads the profile `fast` before any test module is imported, so that `make test` finds today what it
found yesterday. `scripts/soak.py` asks for the profile `soak` and gives a seed by Hypothesis's own options:

    pytest --hypothesis-profile=soak --hypothesis-seed=7 tests/wire/test_columns.py

A test sets how many examples it draws and never how: `@settings(max_examples=examples(60, soak=3000))`.
"""

import pytest
from hypothesis import HealthCheck, settings

FAST = "fast"
SOAK = "soak"

_drawn_seed: int | None = None


def register_profiles() -> None:
    """Register both profiles and load the fast one; nothing in either depends on the speed of the machine."""
    common = settings(
        deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )  # fmt: skip
    settings.register_profile(FAST, common, derandomize=True, max_examples=100)
    settings.register_profile(SOAK, common, derandomize=False, max_examples=5000)
    settings.load_profile(FAST)


def take_seed(config: pytest.Config) -> None:
    """Take the seed of a soak from Hypothesis's option, for searches that do not use Hypothesis."""
    global _drawn_seed
    given = config.getoption("--hypothesis-seed", None)
    is_soak = config.getoption("--hypothesis-profile", None) == SOAK
    _drawn_seed = int(given) if is_soak and given is not None else None


def examples(fast: int, *, soak: int) -> int:
    """Return how many examples a test draws under the profile that is loaded."""
    return fast if settings.default.derandomize else soak


def seed(fast: int) -> int:
    """Return the seed of a search without Hypothesis: its own, or in a soak the one that the soak has drawn."""
    return fast if _drawn_seed is None else _drawn_seed
