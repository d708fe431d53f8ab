"""How often the log tells the same."""

from __future__ import annotations

import logging

from explsched.log import LastingFault


def test_a_fault_that_lasts_is_told_every_ten_minutes() -> None:
    fault = LastingFault()
    assert not fault.end()
    told_s = [now_s for now_s in range(1000, 2300, 15) if fault.level("no answer", now_s) == logging.ERROR]
    assert told_s == [1000, 1600, 2200]
    assert fault.level("refused", 2300) == logging.ERROR
    assert fault.level("refused", 2301) == logging.DEBUG
    assert fault.end()
    assert fault.level("refused", 2302) == logging.ERROR
