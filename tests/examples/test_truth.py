"""What the pipelines must find, against clicks of which that is plain to see."""

import pytest

from examples.clicks import billing
from examples.clicks.fraud import BURST_CLICKS, HOUR_MS, MINUTE_MS
from examples.clicks.generator import CUT, DAY_MS, MISSING, Click, generate
from examples.clicks.truth import ClickOffset, Truth
from examples.clicks.world import CITIES, PARTITIONS

START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
BERLIN, HAMBURG, LIMA = CITIES["Berlin"], CITIES["Hamburg"], CITIES["Lima"]


def click(id: str, at_ms: int = START_MS, **fields: object) -> Click:
    """A click of u0001, who goes to the same partition whatever else is said."""
    usual = Click(
        id, "u0001", "198.18.0.1", *BERLIN, "coffee-club", 100_000, at_ms, "browser", 5_000, at_ms, "person"
    )  # fmt: skip
    return usual._replace(**fields)  # type: ignore[arg-type]


HERE = click("a").partition


def truth_of(*clicks: Click) -> Truth:
    truth = Truth()
    assert list(clicks) == list(truth.noting(clicks))
    return truth


def test_each_click_is_charged_once_in_the_hour_it_was_made_and_crawlers_never() -> None:
    truth = truth_of(
        click("a", price_micros=4_999),
        click("a", price_micros=4_999, arrived_ms=START_MS + 2 * DAY_MS),
        click("b", START_MS + HOUR_MS - 1, price_micros=1, arrived_ms=START_MS + DAY_MS),
        click("c", START_MS + HOUR_MS, price_micros=70),
        click("d", price_micros=7, campaign="night-bus"),
        click("e", kind="crawler", agent="crawler"),
        click("f", flaw=MISSING),
    )

    assert {
        ("coffee-club", START_MS): 5_000,
        ("coffee-club", START_MS + HOUR_MS): 70,
        ("night-bus", START_MS): 7,
    } == truth.owed_micros


def test_the_offset_of_every_bounce_and_of_people_in_a_hurry_is_known() -> None:
    truth = truth_of(
        click("a"), click("b", dwell_ms=119), click("c", dwell_ms=120), click("d", dwell_ms=1, kind="crawler")
    )  # fmt: skip

    assert {ClickOffset(HERE, 1)} == truth.bounced
    assert {ClickOffset(HERE, 2)} == truth.hurried


def test_broken_records_are_those_that_do_not_decode_and_those_without_a_price() -> None:
    truth = truth_of(click("a", flaw=CUT), click("b", flaw=MISSING), click("c", flaw=MISSING, kind="crawler"))

    assert {ClickOffset(HERE, 0): CUT} == truth.undecodable
    assert {ClickOffset(HERE, 1)} == truth.incomplete
    assert {} == truth.features()


def test_the_first_click_that_arrived_since_a_time_is_known_by_partition() -> None:
    truth = truth_of(*(click(str(at_ms), 5, arrived_ms=at_ms) for at_ms in (10, 20, 30, 40)))
    elsewhere = dict.fromkeys(set(range(PARTITIONS)) - {HERE}, 0)

    for at_ms, offset in ((10, 0), (15, 1), (31, 3), (41, 4)):
        assert {HERE: offset} | elsewhere == truth.first_since(at_ms)


def test_users_are_added_up_and_what_is_delivered_twice_counts_twice() -> None:
    night_ms = START_MS // DAY_MS * DAY_MS + 23 * HOUR_MS
    truth = truth_of(
        click("a", night_ms - 12 * HOUR_MS, dwell_ms=3, price_micros=10),
        click("b", night_ms, dwell_ms=4, price_micros=20, campaign="night-bus"),
        click("b", night_ms, dwell_ms=4, price_micros=20, campaign="night-bus"),
        click("c", user="crawler-01", kind="crawler"),
    )

    assert {"u0001"} == truth.features().keys()
    assert {"u0001", "crawler-01"} == truth.features(with_crawlers=True).keys()
    assert {
        "clicks": 3,
        "campaigns": 2,
        "dwell_ms": 11,
        "first_ms": night_ms - 12 * HOUR_MS,
        "last_ms": night_ms,
        "night_share": 2 / 3,
        "mean_price_micros": 50 / 3,
    } == truth.features()["u0001"]


def test_a_burst_is_enough_different_clicks_in_one_minute_of_a_user_or_an_address() -> None:
    minute_ms = START_MS + 7 * MINUTE_MS
    almost = [click(f"a{number}", minute_ms + number) for number in range(BURST_CLICKS - 1)]

    assert set() == truth_of(*almost, almost[0], click("next", minute_ms + MINUTE_MS)).alerts()
    assert {f"user-burst:u0001:{minute_ms}", f"address-burst:198.18.0.1:{minute_ms}"} == truth_of(
        *almost, click("last", minute_ms + MINUTE_MS - 1)
    ).alerts()
    assert {f"address-burst:198.18.0.1:{minute_ms}"} == truth_of(
        *almost, click("last", minute_ms, user="u0002")
    ).alerts()  # fmt: skip


def test_a_pair_is_far_if_no_train_is_that_fast() -> None:
    def pair(location: tuple[float, float], minutes: int) -> set[str]:
        return truth_of(
            click("a", START_MS), click("b", START_MS + minutes * MINUTE_MS, north=location[0], east=location[1])
        ).alerts()

    assert {f"far:u0001:{START_MS}"} == pair(LIMA, 10)
    assert set() == pair(LIMA, 11)
    assert set() == pair(HAMBURG, 1)
    assert {f"far:u0001:{START_MS - HOUR_MS}"} == pair(LIMA, -1)


def test_a_click_that_comes_more_than_a_day_late_raises_no_alert() -> None:
    late = click("b", START_MS, north=LIMA[0], east=LIMA[1], arrived_ms=START_MS + DAY_MS + 1)

    assert set() == truth_of(click("a"), late).alerts()


def test_the_direct_totals_are_those_of_a_second_count() -> None:
    made = list(generate(5_000, seed=1, start_ms=START_MS, end_ms=START_MS + 30 * DAY_MS))
    truth = truth_of(*made)

    paid = {one.id: one for one in made if one.agent == "browser" and not one.flaw}.values()
    assert sum(one.price_micros for one in paid) == sum(truth.owed_micros.values())
    assert len(made) == truth.count
    good = [one for one in made if one.agent == "browser" and not one.flaw]
    assert len(good) == sum(row["clicks"] for row in truth.features().values())
    assert truth.alerts(4 * BURST_CLICKS) < truth.alerts()


@pytest.mark.parametrize(
    ("micros", "cents"), [(0, 0), (4_999, 0), (5_000, 1), (14_999, 1), (15_000, 2), (10_000_000, 1_000)]
)
def test_a_bill_is_rounded_once_half_a_cent_up(micros: int, cents: int) -> None:
    assert {("coffee-club", 0): cents} == billing.bills({("coffee-club", 0): micros})


def test_a_campaign_owes_the_sum_of_its_bills() -> None:
    assert {"a": 3, "b": 4} == billing.totals({("a", 0): 1, ("a", 1): 2, ("b", 0): 4})


@pytest.mark.parametrize(("cents", "shown"), [(0, "0.00"), (7, "0.07"), (1_234_56, "1,234.56")])
def test_money_is_shown_with_two_decimals(cents: int, shown: str) -> None:
    assert shown == billing.money(cents)
