import unittest

from maze import steps


class Maze(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(steps(["...", ".#.", "..."], (0, 0), (2, 2)), 4)
        self.assertEqual(steps(["."], (0, 0), (0, 0)), 0)

    def test_nobody_leaves_the_maze(self):
        self.assertIsNone(steps([".#.", ".#.", ".#."], (0, 0), (0, 2)))
        self.assertIsNone(steps(["...", "###", "..."], (0, 0), (2, 0)))

    def test_the_way_round(self):
        self.assertEqual(steps([".#.", ".#.", "..."], (0, 0), (0, 2)), 6)

    def test_rows_of_different_length(self):
        self.assertEqual(steps(["..", "....", ".."], (0, 0), (1, 3)), 4)
