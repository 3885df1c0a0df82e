"""The bar of long commands."""

from __future__ import annotations

from privmarket.cli.progress import ProgressBar


def test_a_guess_that_was_too_low_grows_and_one_that_was_too_high_ends(capsys):
    with ProgressBar("planning", 2) as low:
        for _ in range(3):
            low.advance(1)
    with ProgressBar("planning", 9) as high:
        high.advance(3)
        high.finish()
    shown = capsys.readouterr().err
    assert shown.count("3/3") == 2
