"""Accounts with whole cents in them."""


class Refused(Exception):
    """The transfer cannot be made; nothing has changed."""


class Accounts:
    def __init__(self) -> None:
        self._cents: dict[str, int] = {}
        self._limits: dict[str, int] = {}
        self.log: list[tuple[str, str, int]] = []
        """Transfers that were made: from, to, cents."""

    def open(self, name: str, cents: int = 0, limit: int | None = None) -> None:
        """A new account. ``limit``: what it may hold at most."""
        if name in self._cents:
            raise Refused(f"there is an account {name!r}")
        self._cents[name] = cents
        if limit is not None:
            self._limits[name] = limit

    def balance(self, name: str) -> int:
        return self._cents[name]

    def transfer(self, source: str, to: str, cents: int) -> None:
        """Raises ``Refused`` for an unknown account, an amount that is not above 0 or not there, or a full account."""
        if source not in self._cents:
            raise Refused(f"there is no account {source!r}")
        if cents <= 0:
            raise Refused("an amount is above 0")
        if self._cents[source] < cents:
            raise Refused(f"{source!r} has not so much")
        self.log.append((source, to, cents))
        self._cents[source] -= cents
        if to not in self._cents:
            raise Refused(f"there is no account {to!r}")
        if self._cents[to] + cents > self._limits.get(to, self._cents[to] + cents):
            raise Refused(f"{to!r} would be too full")
        self._cents[to] += cents
