"""Signals that come at the wrong moment."""

import signal

import pytest

from dragoman.signals import postponed, terminable, undisturbed


def test_sigterm_unwinds_the_stack() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, terminable():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_postponed_signal_takes_effect_at_the_end_of_the_block() -> None:
    before, steps = signal.getsignal(signal.SIGINT), []

    def block() -> None:
        with postponed():
            signal.raise_signal(signal.SIGINT)
            steps.append("done")
        pytest.fail("the signal was lost")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["done"]
    assert signal.getsignal(signal.SIGINT) is before


def test_nothing_disturbs() -> None:
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
