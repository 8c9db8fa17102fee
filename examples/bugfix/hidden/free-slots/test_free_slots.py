import unittest

from calendar_slots import free, merge


class Slots(unittest.TestCase):
    def test_one_inside_the_other(self):
        self.assertEqual(merge([(0, 100), (10, 20)]), [(0, 100)])
        self.assertEqual(merge([(0, 100), (10, 20), (30, 40), (90, 120)]), [(0, 120)])

    def test_touching_and_empty(self):
        self.assertEqual(merge([(5, 7), (0, 5), (9, 9)]), [(0, 7)])

    def test_free_time(self):
        self.assertEqual(free((0, 200), [(50, 150), (60, 70)]), [(0, 50), (150, 200)])
        self.assertEqual(free((0, 100), []), [(0, 100)])
        self.assertEqual(free((100, 200), [(0, 120), (190, 300)]), [(120, 190)])

    def test_short_gaps(self):
        self.assertEqual(free((0, 100), [(10, 95)], at_least=10), [(0, 10)])
