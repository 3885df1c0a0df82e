import pytest

from privmarket.errors import BidError
from privmarket.market._bids import read_bids


def write(tmp_path, text):
    path = tmp_path / "bids.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_names_and_optional_columns(tmp_path):
    path = write(tmp_path, "client,epsilon,valuation,data_size\nann,1.5,0.2,600\n\nbob,2,0.3,50\n")
    file = read_bids(path)
    assert file.clients == ("ann", "bob")
    assert file.bids.epsilon.tolist() == [1.5, 2.0]
    assert file.bids.data_size.tolist() == [600.0, 50.0]
    assert file.bids.accuracy is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: missing column 'client'"),
        ("client,valuation\na,1\n", "line 1: missing column 'epsilon'"),
        ("client,valuation,epsilon,datasize\na,1,1,1\n", "line 1: unknown column 'datasize'"),
        ("client,valuation,epsilon\na,0,5,1\n", "line 2: 4 fields where the header has 3"),
        ("client;valuation;epsilon\na;0,5;1,000.5\n", "line 2, field epsilon: '1,000.5'"),
        ("client,valuation,epsilon,epsilon\na,1,1,1\n", "line 1: column 'epsilon' appears twice"),
        ("client,valuation,epsilon\n", "no bids below the header"),
        ("client,valuation,epsilon\na,1,1\na,2,2\n", "line 3, field client: 'a' was already on line 2"),
        ("client,valuation,epsilon\n,1,1\n", "line 2, field client: empty"),
        ("client,valuation,epsilon\na,1\n", "line 2: 2 fields where the header has 3"),
        ("client,valuation,epsilon\na,x,1\n", "line 2, field valuation: 'x'"),
        ("client,valuation,epsilon\na,1,1\nb,nan,1\n", "line 3, field valuation: 'nan'"),
        ("client,valuation,epsilon\na,-1,1\n", "line 2, field valuation: '-1'"),
        ("client,valuation,epsilon\na,inf,1\n", "line 2, field valuation: 'inf'"),
        ("client,valuation,epsilon\na,1,0\n", "line 2, field epsilon: '0'"),
        ("client,valuation,epsilon,accuracy\na,1,1,2\n", "line 2, field accuracy: '2'"),
    ],
)
def test_the_first_thing_wrong_is_named(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(BidError) as caught:
        read_bids(path)
    assert words in caught.value.message
    assert "bids.csv" in caught.value.message
    assert caught.value.hint


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(BidError, match="cannot be read"):
        read_bids(tmp_path / "no.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01client")
    with pytest.raises(BidError):
        read_bids(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('client,valuation,epsilon\na,"1,5",1\n', "field valuation: '1,5'"),
        ("client,valuation,epsilon\na,1,inf\n", "field epsilon: 'inf'"),
        ("client,valuation,epsilon,data_size\na,1,1,inf\n", "field data_size: 'inf'"),
    ],
)
def test_a_decimal_comma_needs_another_separator_and_numbers_are_finite(tmp_path, text, words):
    path = tmp_path / "b.csv"
    path.write_text(text)
    with pytest.raises(BidError, match=words):
        read_bids(path)
