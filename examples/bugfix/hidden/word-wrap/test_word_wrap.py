import unittest

from wrapping import wrap


class Wrap(unittest.TestCase):
    def test_exact_widths(self):
        self.assertEqual(wrap("aa bb cc", 5), ["aa bb", "cc"])
        self.assertEqual(wrap("aa bb cc", 4), ["aa", "bb", "cc"])
        self.assertEqual(wrap("aa bb cc", 8), ["aa bb cc"])

    def test_long_words(self):
        self.assertEqual(wrap("abcdefgh", 3), ["abcdefgh"])
        self.assertEqual(wrap("a abcdefgh b", 3), ["a", "abcdefgh", "b"])

    def test_nothing(self):
        self.assertEqual(wrap("  \n ", 3), [])

    def test_no_line_is_too_long_and_no_word_is_lost(self):
        text = "the quick brown fox jumps over the lazy dog and is gone"
        for width in range(5, 30):
            lines = wrap(text, width)
            self.assertTrue(all(0 < len(line) <= width for line in lines))
            self.assertEqual(" ".join(lines), text)
