import unittest

from expiring import Expiring


class Ages(unittest.TestCase):
    def setUp(self):
        self.now = 100.0
        self.cache = Expiring(10, lambda: self.now)

    def test_it_holds_until_its_time_is_over(self):
        self.cache.put("a", 1)
        self.now = 109.9
        self.assertEqual(self.cache.get("a"), 1)
        self.now = 110.0
        self.assertIsNone(self.cache.get("a"))

    def test_length_counts_what_holds(self):
        self.cache.put("a", 1)
        self.now = 105.0
        self.cache.put("b", 2)
        self.assertEqual(len(self.cache), 2)
        self.now = 110.0
        self.assertEqual(len(self.cache), 1)
        self.now = 200.0
        self.assertEqual(len(self.cache), 0)

    def test_writing_again_makes_it_young(self):
        self.cache.put("a", 1)
        self.now = 109.0
        self.cache.put("a", 2)
        self.now = 118.0
        self.assertEqual(self.cache.get("a"), 2)
