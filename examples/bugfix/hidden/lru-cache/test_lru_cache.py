import unittest

from lru import Cache


class Lru(unittest.TestCase):
    def test_reading_is_a_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.put("c", 3)
        self.assertIn("a", cache)
        self.assertNotIn("b", cache)

    def test_writing_is_a_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.put("a", 3)
        cache.put("c", 4)
        self.assertEqual((cache.get("a"), cache.get("b", "gone"), len(cache)), (3, "gone", 2))

    def test_looking_is_no_use(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertIn("a", cache)
        cache.put("c", 3)
        self.assertNotIn("a", cache)

    def test_none_is_a_value(self):
        cache = Cache(1)
        cache.put("a", None)
        self.assertIsNone(cache.get("a", "default"))
