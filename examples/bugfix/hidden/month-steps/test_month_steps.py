import unittest
from datetime import date

from months import add_months, days_in, is_leap, renewals


class Months(unittest.TestCase):
    def test_leap_years(self):
        self.assertEqual([year for year in (1900, 2000, 2023, 2024, 2100) if is_leap(year)], [2000, 2024])

    def test_days(self):
        self.assertEqual((days_in(2100, 2), days_in(2000, 2), days_in(2023, 12)), (28, 29, 31))

    def test_centuries(self):
        self.assertEqual(add_months(date(1900, 1, 31), 1), date(1900, 2, 28))
        self.assertEqual(add_months(date(2100, 3, 29), -1), date(2100, 2, 28))

    def test_across_years(self):
        self.assertEqual(add_months(date(2023, 12, 31), 2), date(2024, 2, 29))
        self.assertEqual(add_months(date(2024, 1, 15), -1), date(2023, 12, 15))

    def test_renewals_go_by_the_first_day(self):
        self.assertEqual(renewals(date(2023, 1, 31), 3), [date(2023, 2, 28), date(2023, 3, 31), date(2023, 4, 30)])
