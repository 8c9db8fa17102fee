"""``python -m dragoman`` is the same as ``dragoman``."""

from dragoman.cli import main

main()
