"""Dragoman: train an open model inside the agent harness it will be used in."""

__version__ = "0.1.0"
