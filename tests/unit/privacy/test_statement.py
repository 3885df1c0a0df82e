import numpy as np
import pytest

from privmarket.errors import PrivacyError
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._certificate import certify
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._statement import EqualSales, parse_sale, read_sales, running_epsilon, statement
from privmarket.privacy._wallet import Wallet


@pytest.mark.parametrize(
    ("text", "sale"),
    [
        ("0.5", EqualSales(0.5)),
        ("1x200", EqualSales(1.0, count=200)),
        ("1 × 3", EqualSales(1.0, count=3)),
        ("0.5,0.05,20x10", EqualSales(0.5, 0.05, 20, 10)),
        (" 2 , 0.1 , 1 ", EqualSales(2.0, 0.1, 1)),
    ],
)
def test_sales_are_read_from_text(text, sale):
    assert parse_sale(text) == sale


@pytest.mark.parametrize(
    "text",
    ["", "x3", "1x", "1x0", "1x2.5", "1,2", "0", "-1", "nan", "inf", "1,2,3", "1,0.5,0", "a", "1xx2"],
)
def test_bad_sales_are_refused_and_named(text):
    with pytest.raises(PrivacyError) as caught:
        parse_sale(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


def test_sales_are_read_from_a_file(tmp_path):
    file = tmp_path / "sales.csv"
    file.write_text("epsilon,sampling_rate,steps,count\n1,,,200\n0.5,0.05,20,\n", encoding="utf-8")
    assert read_sales(file) == [EqualSales(1.0, count=200), EqualSales(0.5, 0.05, 20)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epsilon,count\n1,2\n1,x\n", "line 3"),
        ("epsilon,price\n1,2\n", "columns"),
        ("", "columns"),
        ("epsilon\n", "no sales"),
        ("epsilon,count\n1\n", "line 2"),
        ("epsilon\n1,2,3\n", "line 2"),
        ("epsilon\n-1\n", "line 2"),
    ],
)
def test_bad_files_are_refused_and_the_place_named(tmp_path, text, named):
    file = tmp_path / "sales.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PrivacyError, match=named):
        read_sales(file)
    with pytest.raises(PrivacyError, match="cannot be read"):
        read_sales(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(PrivacyError, match="cannot be read"):
        read_sales(tmp_path / "binary.csv")


def test_statement_equals_the_certificate_of_its_events():
    account = statement([EqualSales(1.0, count=30), EqualSales(2.0, count=2)])
    first, second = account.lines
    events = [PrivacyEvent(first.noise_multiplier)] * 30 + [PrivacyEvent(second.noise_multiplier)] * 2
    assert account.certificate.epsilon_rdp == pytest.approx(certify(events).epsilon_rdp, rel=1e-9)
    assert account.certificate.epsilon_pld == pytest.approx(certify(events).epsilon_pld, rel=1e-6)
    assert second.epsilon_so_far == pytest.approx(account.certificate.epsilon_rdp)
    assert account.basic == pytest.approx((34.0, 32e-5))


def test_a_cap_lets_through_what_a_wallet_would():
    account = statement([EqualSales(1.0, count=200)], cap_epsilon=8.0)
    within = statement([EqualSales(1.0, count=account.lines[0].fits)])
    wallet = Wallet(8.0)
    for _ in range(account.lines[0].fits):
        wallet.spend(ReleaseFamily().event(1.0))
    assert not wallet.can_spend(ReleaseFamily().event(1.0))
    assert within.certificate.epsilon_pld <= 8.0


def test_running_epsilon_ends_at_the_total():
    account = statement([EqualSales(1.0, count=100), EqualSales(0.5, 0.05, 1, 7)])
    sales, renyi, added = running_epsilon(account)
    assert sales[-1] == 107
    assert renyi[-1] == pytest.approx(account.certificate.epsilon_rdp)
    assert added[-1] == pytest.approx(103.5)
    assert (np.diff(renyi) >= 0).all()


def test_no_sales_are_refused():
    with pytest.raises(PrivacyError):
        statement([])


def test_a_plot_of_sales_begins_with_none():
    sales, renyi, added = running_epsilon(statement([EqualSales(0.5, count=3)]))
    assert (sales[0], renyi[0], added[0]) == (0, 0.0, 0.0)
    assert (sales[-1], added[-1]) == (3, 1.5)


def test_a_million_millions_are_the_most_sales_of_one_kind():
    assert parse_sale("1e-12x1000000000000") == EqualSales(1e-12, count=10**12)
    with pytest.raises(PrivacyError, match="repeated 1000000000001 times") as caught:
        parse_sale("1x1000000000001")
    assert "1e+12" in caught.value.hint
