import unittest

from runs import pack, unpack


class Runs(unittest.TestCase):
    def test_pack(self):
        self.assertEqual(pack("aaab"), "3ab")
        self.assertEqual(pack("a" * 12), "12a")
        self.assertEqual(pack(""), "")

    def test_both_ways(self):
        for text in ("", "a", "ab", "a" * 9, "a" * 10, "a" * 123 + "b", "--  \n\n\n", "xyzzy" * 3):
            self.assertEqual(unpack(pack(text)), text)

    def test_wrong(self):
        with self.assertRaises(ValueError):
            pack("a1")
        with self.assertRaises(ValueError):
            unpack("3a4")
