"""Numbers with their nouns."""

from privmarket._counted import counted


def test_one_is_singular_and_all_others_are_plural():
    assert [counted(n, "auction") for n in (0, 1, 2)] == ["0 auctions", "1 auction", "2 auctions"]
    assert [counted(n, "entry", "entries") for n in (1, 21)] == ["1 entry", "21 entries"]
