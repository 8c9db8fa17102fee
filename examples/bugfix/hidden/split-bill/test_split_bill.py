import unittest

from bill import split
from receipt import receipt


class Bill(unittest.TestCase):
    def test_no_cent_is_lost(self):
        for total in (0, 1, 2, 99, 100, 101, 12345):
            for weights in ([1], [1, 1, 1], [3, 2, 1], [0, 1], [7, 11, 13, 17]):
                self.assertEqual(sum(split(total, weights)), total)

    def test_the_first_among_equals(self):
        self.assertEqual(split(100, [1, 1, 1]), [34, 33, 33])
        self.assertEqual(split(101, [1, 1, 1]), [34, 34, 33])

    def test_who_lost_most_comes_first(self):
        self.assertEqual(split(10, [1, 2, 3]), [2, 3, 5])

    def test_nobody_pays_for_nothing(self):
        self.assertEqual(split(7, [0, 1, 1]), [0, 4, 3])

    def test_wrong_weights(self):
        for weights in ([0, 0], [2, -1]):
            with self.assertRaises(ValueError):
                split(1, weights)

    def test_receipt(self):
        self.assertEqual(receipt(100, {"Ann": 1, "Bo": 1, "Cy": 1}), "Ann: 0.34\nBo: 0.33\nCy: 0.33")
