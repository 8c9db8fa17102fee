import unittest

from accounts import Accounts, Refused


class Transfers(unittest.TestCase):
    def setUp(self):
        self.accounts = Accounts()
        self.accounts.open("a", 100)
        self.accounts.open("b", 5, limit=50)

    def refused(self, *transfer):
        with self.assertRaises(Refused):
            self.accounts.transfer(*transfer)
        self.assertEqual((self.accounts.balance("a"), self.accounts.balance("b")), (100, 5))
        self.assertEqual(self.accounts.log, [])

    def test_it_is_made(self):
        self.accounts.transfer("a", "b", 45)
        self.assertEqual((self.accounts.balance("a"), self.accounts.balance("b")), (55, 50))
        self.assertEqual(self.accounts.log, [("a", "b", 45)])

    def test_an_unknown_account(self):
        self.refused("a", "nobody", 10)
        self.refused("nobody", "a", 10)

    def test_a_full_account(self):
        self.refused("a", "b", 46)

    def test_too_much_or_nothing(self):
        self.refused("a", "b", 0)
        self.refused("a", "b", -1)
        self.refused("b", "a", 6)
