import time
from itertools import count

import pytest

from tacit.methods import Ditto
from tacit.simulation.timing import SECTIONS, Clock
from tests.worlds import run


def ticking() -> Clock:
    """Every look at it is one second later."""
    seconds = count()
    return Clock(lambda: float(next(seconds)))


def test_a_section_inside_another_is_taken_out_of_it() -> None:
    clock = ticking()
    with clock.section("evaluation"), clock.section("storage"):
        pass
    assert (clock.seconds["evaluation"], clock.seconds["storage"]) == (2, 1)


def test_the_seconds_of_workers_side_by_side_are_divided_by_their_number() -> None:
    clock = ticking()
    with clock.section("local training"):
        for _ in range(2):
            with clock.section("storage", workers=2):
                pass
    assert (clock.seconds["local training"], clock.seconds["storage"]) == (4, 1)


def test_a_section_that_fails_is_closed() -> None:
    clock = ticking()
    with pytest.raises(ZeroDivisionError), clock.section("release"):
        _ = 1 / 0
    with clock.section("ledger"):
        pass
    assert (clock.seconds["release"], clock.seconds["ledger"]) == (1, 1)


def test_every_part_of_a_run_shows_on_its_clock() -> None:
    it = run(Ditto())
    began = time.perf_counter()
    it.go()
    total = time.perf_counter() - began
    assert set(it.clock.seconds) == set(SECTIONS)
    assert all(seconds > 0 for name, seconds in it.clock.seconds.items() if name != "checkpoint")
    assert sum(it.clock.seconds.values()) <= total
