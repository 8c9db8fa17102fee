import unittest

from roman import read, write


class Roman(unittest.TestCase):
    def test_both_ways(self):
        for number in range(1, 4000):
            self.assertEqual(read(write(number)), number)

    def test_no_numerals(self):
        for text in ("", "IIII", "VX", "IC", "VV", "MMMM", "IXI", "iv", "X ", "ABC", "CMD"):
            with self.assertRaises(ValueError, msg=text):
                read(text)

    def test_numbers_without_one(self):
        for number in (0, -1, 4000):
            with self.assertRaises(ValueError):
                write(number)
