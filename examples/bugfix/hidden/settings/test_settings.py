import unittest

from settings import SettingsError, read


class Settings(unittest.TestCase):
    def test_values_with_signs(self):
        self.assertEqual(read("url = http://h/?a=1#top"), {"": {"url": "http://h/?a=1#top"}})
        self.assertEqual(read("colour=#fff")[""], {"colour": "#fff"})

    def test_comments(self):
        text = "# all\na = 1 # one\n  # two\n[s] # three\nb = x#y # z"
        self.assertEqual(read(text), {"": {"a": "1"}, "s": {"b": "x#y"}})

    def test_sections_go_on(self):
        self.assertEqual(read("[a]\nx=1\n[b]\n[a]\ny=2\nx=3"), {"": {}, "a": {"x": "3", "y": "2"}, "b": {}})

    def test_empty_value(self):
        self.assertEqual(read("a ="), {"": {"a": ""}})

    def test_errors_name_the_line(self):
        for text, line in (("a = 1\nb", "2: "), ("= 1", "1: ")):
            with self.assertRaises(SettingsError) as caught:
                read(text)
            self.assertTrue(str(caught.exception).startswith(line))
