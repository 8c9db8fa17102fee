import unittest

from durations import parse, show


class Durations(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse("1h30m"), 5400)
        self.assertEqual(parse("2d4h1s"), 2 * 86400 + 4 * 3600 + 1)

    def test_show(self):
        self.assertEqual(show(5400), "1h30m")
        self.assertEqual(show(0), "0s")
        self.assertEqual(show(90061), "1d1h1m1s")
        self.assertEqual(show(3600), "1h")

    def test_both_ways(self):
        for seconds in [*range(200), 3599, 3600, 3661, 7325, 86399, 86400, 100000, 1234567]:
            self.assertEqual(parse(show(seconds)), seconds)

    def test_wrong(self):
        for text in ("", "5", "1m1h", "1x", "-1s"):
            with self.assertRaises(ValueError):
                parse(text)
