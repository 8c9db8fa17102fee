import unittest

from ways import shortest

ROADS = {"a": {"b": 10, "c": 1}, "c": {"d": 1, "b": 20}, "d": {"b": 1}, "e": {"a": 1}}


class Ways(unittest.TestCase):
    def test_a_detour_may_be_shorter(self):
        self.assertEqual(shortest(ROADS, "a", "b"), (3, ["a", "c", "d", "b"]))

    def test_a_station_found_first_by_a_longer_way(self):
        roads = {"s": {"x": 5, "y": 1}, "y": {"x": 1}, "x": {"t": 1}}
        self.assertEqual(shortest(roads, "s", "t"), (3, ["s", "y", "x", "t"]))

    def test_no_way(self):
        self.assertIsNone(shortest(ROADS, "b", "a"))
        self.assertIsNone(shortest(ROADS, "a", "nowhere"))

    def test_staying(self):
        self.assertEqual(shortest(ROADS, "a", "a"), (0, ["a"]))
