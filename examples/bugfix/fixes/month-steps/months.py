"""Stepping through the calendar by months."""

from datetime import date

DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in(year: int, month: int) -> int:
    """How many days a month has; ``month`` is 1 to 12."""
    return 29 if month == 2 and is_leap(year) else DAYS[month - 1]


def add_months(day: date, months: int) -> date:
    """The same day ``months`` later (earlier, when negative); the month's last day where there is no such day."""
    index = day.year * 12 + day.month - 1 + months
    year, month = index // 12, index % 12 + 1
    return date(year, month, min(day.day, days_in(year, month)))


def renewals(start: date, count: int) -> list[date]:
    """The first ``count`` renewals of what began on ``start``, each a month after the one before, by the first day."""
    return [add_months(start, number) for number in range(1, count + 1)]
