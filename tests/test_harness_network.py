"""The name server of a row's network."""

import struct

from scripts.harness_network import asked_name


def test_the_name_in_a_question() -> None:
    question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\x03api\x06github\x03com\x00" + struct.pack(">2H", 1, 1)

    assert asked_name(question) == "api.github.com"
    assert asked_name(question[:12]) == ""
