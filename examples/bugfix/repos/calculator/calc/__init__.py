"""A calculator for whole and decimal numbers."""

from calc.evaluate import calculate

__all__ = ["calculate"]
