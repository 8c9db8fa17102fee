import unittest

from pages import page


class Pages(unittest.TestCase):
    def test_multiples(self):
        self.assertEqual(page(range(10), 2, 5).pages, 2)
        self.assertEqual(page(range(11), 3, 5).items, (10,))
        self.assertTrue(page(range(10), 2, 5).last)

    def test_nearest(self):
        self.assertEqual(page(range(7), 0, 3).items, (0, 1, 2))
        self.assertEqual(page(range(7), -5, 3).number, 1)
        self.assertEqual(page(range(7), 99, 3).items, (6,))

    def test_nothing(self):
        only = page([], 1, 5)
        self.assertEqual((only.number, only.pages, only.items, only.first, only.last), (1, 1, (), True, True))

    def test_size(self):
        with self.assertRaises(ValueError):
            page([1], 1, 0)
