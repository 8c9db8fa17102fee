import unittest

from calc import calculate


class Calculator(unittest.TestCase):
    def test_from_left_to_right(self):
        self.assertEqual(calculate("10 - 4 - 3"), 3)
        self.assertEqual(calculate("10 - 4 + 3"), 9)
        self.assertEqual(calculate("100 / 10 / 2"), 5)

    def test_powers(self):
        self.assertEqual(calculate("2 ** 3 ** 2"), 512)
        self.assertEqual(calculate("-2 ** 2"), -4)
        self.assertEqual(calculate("(-2) ** 2"), 4)
        self.assertEqual(calculate("2 ** -1"), 0.5)

    def test_products_before_sums(self):
        self.assertEqual(calculate("2 + 3 * 4 - 6 / 2"), 11)
        self.assertEqual(calculate("2*-3"), -6)
        self.assertEqual(calculate("--2"), 2)

    def test_wrong(self):
        for text in ("", "1 +", "(1", "1)", "1 2", "a", "*1"):
            with self.assertRaises(ValueError, msg=text):
                calculate(text)
