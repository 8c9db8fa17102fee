import unittest

from tree import Tree


class Trees(unittest.TestCase):
    def tree(self, *words):
        tree = Tree()
        for word in words:
            tree.add(word)
        return tree

    def test_longer_words_stay(self):
        tree = self.tree("car", "cart", "care", "dog")
        self.assertTrue(tree.remove("car"))
        self.assertEqual(tree.starting("ca"), ["care", "cart"])
        self.assertFalse(tree.remove("car"))

    def test_what_is_no_word_takes_nothing_out(self):
        tree = self.tree("cart")
        for word in ("ca", "carts", "x", ""):
            self.assertFalse(tree.remove(word), word)
        self.assertEqual(tree.starting(""), ["cart"])

    def test_nothing_is_left_of_a_word(self):
        tree = self.tree("a", "abc")
        tree.remove("abc")
        self.assertEqual((tree.nodes(), tree.starting("")), (2, ["a"]))

    def test_the_empty_word(self):
        tree = self.tree("", "a")
        self.assertTrue(tree.remove(""))
        self.assertEqual(tree.starting(""), ["a"])
