"""In which order to build things that need each other."""

from collections.abc import Mapping, Sequence


class CycleError(ValueError):
    """Things need each other in a circle; ``args[0]`` is one of them."""


def order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Every name once, each behind all that it needs; names and needs are taken in the order given.

    Raises ``CycleError``.
    """
    done: dict[str, None] = {}
    open_: set[str] = set()

    def visit(name: str) -> None:
        if name in open_:
            raise CycleError(name)
        if name in done:
            return
        open_.add(name)
        for other in needs.get(name, ()):
            visit(other)
        done[name] = None

    for name in needs:
        visit(name)
    return list(done)
