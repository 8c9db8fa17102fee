import unittest

from templates import TemplateError, fill


class Fill(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(fill("Dear {name}, {n} left", {"name": "Ann", "n": 3}), "Dear Ann, 3 left")

    def test_doubled_braces(self):
        self.assertEqual(fill("{{name}}", {"name": "x"}), "{name}")
        self.assertEqual(fill("{{{name}}}", {"name": "x"}), "{x}")

    def test_values_are_taken_as_they_are(self):
        self.assertEqual(fill("{a}{b}", {"a": "{b}", "b": "{{"}), "{b}{{")

    def test_errors(self):
        for template in ("{", "a } b", "{unknown}", "{{}", "{a b}"):
            with self.assertRaises(TemplateError, msg=template):
                fill(template, {"a": 1})
