import unittest

from csvline import join_line, split_line


class Lines(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(split_line("a,b,,c"), ["a", "b", "", "c"])
        self.assertEqual(split_line(""), [""])

    def test_quoted(self):
        self.assertEqual(split_line('"a,b",c'), ["a,b", "c"])

    def test_doubled_quotes(self):
        self.assertEqual(split_line('"a ""b""",c'), ['a "b"', "c"])
        self.assertEqual(split_line('""""'), ['"'])

    def test_both_ways(self):
        for fields in (["x"], ['"'], ['a"b', "c,d", ""], ['""', ","]):
            self.assertEqual(split_line(join_line(fields)), fields)

    def test_open_quote(self):
        with self.assertRaises(ValueError):
            split_line('"a,b')
