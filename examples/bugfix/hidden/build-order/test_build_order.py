import unittest

from order import CycleError, order


class Order(unittest.TestCase):
    def test_a_diamond_is_no_cycle(self):
        needs = {"app": ["net", "ui"], "net": ["base"], "ui": ["base"], "base": []}
        self.assertEqual(order(needs), ["base", "net", "ui", "app"])

    def test_names_that_are_only_needed(self):
        self.assertEqual(order({"a": ["b", "c"], "d": ["b"]}), ["b", "c", "a", "d"])

    def test_cycles(self):
        for needs in ({"a": ["a"]}, {"a": ["b"], "b": ["c"], "c": ["a"]}, {"x": ["a"], "a": ["b"], "b": ["a"]}):
            with self.assertRaises(CycleError):
                order(needs)

    def test_nothing(self):
        self.assertEqual(order({}), [])
