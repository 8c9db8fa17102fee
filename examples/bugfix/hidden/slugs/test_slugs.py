import unittest

from slugs import slug, unique


class Slugs(unittest.TestCase):
    def test_dashes(self):
        self.assertEqual(slug("  Hello --  World! "), "hello-world")
        self.assertEqual(slug("C++ & C#"), "c-c")

    def test_accents(self):
        self.assertEqual(slug("Crème brûlée"), "creme-brulee")

    def test_nothing_left(self):
        self.assertEqual(slug("!?"), "untitled")
        self.assertEqual(slug(""), "untitled")

    def test_unique(self):
        self.assertEqual(unique("A b", {"a-b", "a-b-2"}), "a-b-3")
        self.assertEqual(unique("A b", set()), "a-b")
