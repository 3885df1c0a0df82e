"""What a seller refuses for its own sake: debts, small or unregistered sums, older wallet files."""

import shutil
from dataclasses import replace

import numpy as np

import privmarket as pm
from privmarket.flower import _wire as wire
from privmarket.privacy import _wallet_store as wallet_file
from privmarket.privacy._policy import SellerPolicy
from tests.unit.flower.test_at_a_broker import make_service, play as play_at_broker
from tests.unit.flower.toy import CLIENTS, OPEN_TO_SUMS, Wire, client, partition, play, server


class Ones:
    """A client's share of a secure sum, of so many records as it says."""

    def __init__(self, count):
        self.count = count

    def records(self, context):
        return self.count(partition(context))

    def share(self, weights, job, grid):
        return {name: np.ones(array.shape, np.int64) for name, array in weights.items()}


def in_a_sum(policy=OPEN_TO_SUMS, count=lambda client: 10, declared=10.0, **options):
    """A market of one round under aggregate trust."""
    app = client(
        valuation=0.1, share=Ones(count), secure_aggregation=True, data_size=declared, policy=policy, **options
    )
    market = server(
        mechanism="ration", mechanism_settings={"unit_price": 0.5}, rounds=1, trust="aggregate", clip_norm=1.0
    )
    return play(app, market)[0]


# --- draining --------------------------------------------------------------------------------------------


def keeps_its_money(message):
    """A server that takes updates and never pays."""
    if wire.NAMES[wire.Receipt] in message.content:
        del message.content[wire.NAMES[wire.Receipt]]


def drained(tmp_path, tamper=None, **policy):
    """How many rounds of five one seller with a wallet of 8 sells in, at ε = 0.5 each."""
    wallet = pm.privacy.WalletFile(tmp_path / "w.jsonl", 8.0)
    rules = SellerPolicy(**policy)
    app = client(epsilon=0.5, policy=rules, wallet=lambda c: wallet if partition(c) == 0 else fresh(tmp_path, c))
    result, _ = play(app, server(rounds=5), tamper=tamper)
    return len(wallet.statement()), result


def fresh(tmp_path, context):
    return pm.privacy.WalletFile(tmp_path / f"other-{partition(context)}.jsonl", 8.0)


def test_a_buyer_that_does_not_pay_is_refused_until_it_does(tmp_path):
    assert drained(tmp_path / "paid")[0] == 5
    sold, result = drained(tmp_path / "unpaid", tamper=keeps_its_money)
    assert sold == 2  # two of ε = 0.5 have ε = 0.75 together, below a tenth of the wallet; three have more
    assert result.declined["0"].startswith("unpaid")


def test_a_policy_without_that_limit_is_drained(tmp_path):
    """The broken subject: five rounds, and no money."""
    assert drained(tmp_path, tamper=keeps_its_money, unpaid_epsilon=float("inf"))[0] == 5


def test_a_receipt_of_less_than_was_due_pays_no_debt(tmp_path):
    def pays_a_micro_unit(message):
        receipt = wire.take(message.content, wire.Receipt, None)
        if receipt is not None:
            wire.put(message.content, replace(receipt, paid_micro=1))

    assert drained(tmp_path, tamper=pays_a_micro_unit)[0] == 2


def test_who_owes_for_nothing_can_buy_once_whatever_the_limit(tmp_path):
    """Were a first sale above the limit refused, a seller with `unpaid_epsilon = 0.1` would never sell ε = 0.5."""
    assert drained(tmp_path / "paid", unpaid_epsilon=0.1)[0] == 5
    sold, result = drained(tmp_path / "unpaid", tamper=keeps_its_money, unpaid_epsilon=0.1)
    assert sold == 1
    assert "by another where no broker tells them apart" in result.declined["0"]


# --- secure sums -----------------------------------------------------------------------------------------


def test_a_sum_of_few_sellers_is_refused():
    assert in_a_sum().records[0].paid_micro
    result = in_a_sum(replace(OPEN_TO_SUMS, minimum_cohort=CLIENTS + 1))
    assert not any(result.records[0].paid_micro.values())


def test_a_sum_without_a_register_is_refused_at_bid_time():
    result = in_a_sum(replace(OPEN_TO_SUMS, register="required"))
    assert result.records[0].bidders == 0
    assert set(result.declined) == {str(i) for i in range(CLIENTS)}
    assert all(reason.startswith("register") for reason in result.declined.values())


def test_who_has_more_records_than_it_declares_declines_and_the_sum_goes_on():
    """Found out in the sum, it cost all the others their ε."""
    result = in_a_sum(count=lambda client: 10 if client else 4000)
    (record,) = result.records
    assert record.bidders == CLIENTS - 1
    assert result.declined["0"].startswith("records")
    assert not record.dropped
    assert len(record.paid_micro) == CLIENTS - 1


# --- the number of records -------------------------------------------------------------------------------


def declared_sizes(**options):
    app = client(data_size=lambda context: 612.0 + partition(context), **options)
    grid = Wire(app)
    pm.flower.run_in_process(server(rounds=1), app, CLIENTS, grid=grid)
    found = (wire.take(m.content, wire.Answer, None) for m in grid.answered if wire.NAMES[wire.Answer] in m.content)
    return {answer.data_size for answer in found if answer is not None and answer.bids}


def test_bids_declare_a_rounded_number_of_records():
    assert declared_sizes() == {620.0}
    policy = SellerPolicy(epsilon_lifetime=float("inf"), declared_records="exact")
    assert declared_sizes(policy=policy) == {612.0 + i for i in range(CLIENTS)}


# --- rollback --------------------------------------------------------------------------------------------


def test_a_policy_names_a_head_file(tmp_path):
    (tmp_path / "seller.toml").write_text('head_file = "heads/{client}.json"\n')
    (tmp_path / "heads").mkdir()
    app = client(epsilon=0.3, policy=tmp_path / "seller.toml", wallet=None)
    play(app, server(rounds=2))
    wallet = pm.privacy.WalletFile(tmp_path / "wallet-0.jsonl", 8.0)
    assert (tmp_path / "heads" / "0.json").exists()
    assert wallet.protections == ("head-file",)
    lines = wallet.path.read_text().splitlines(keepends=True)
    wallet.path.write_text("".join(lines[:2]))
    wallet_file._REPLAYS.clear()
    result, _ = play(app, server(rounds=1))
    assert result.declined["0"].startswith("wallet")


def test_at_a_broker_an_older_wallet_file_sells_nothing(tmp_path):
    service = make_service(tmp_path)
    files = {}

    def wallet(context):
        name = partition(context)
        return files.setdefault(name, pm.privacy.WalletFile(tmp_path / f"w{name}.jsonl", 8.0))

    play_at_broker(service, wallet=wallet, rounds=2)
    before = tmp_path / "copy.jsonl"
    shutil.copy(files[0].path, before)
    assert files[0].protections == ("broker",)
    assert files[0].unpaid() == {}  # what the broker paid is noted
    result, _ = play_at_broker(service, wallet=wallet, rounds=1)
    assert len(files[0].statement()) == 3
    shutil.copy(before, files[0].path)
    wallet_file._REPLAYS.clear()
    result, _ = play_at_broker(service, wallet=wallet, rounds=1)
    assert len(files[0].statement()) == 2
    assert "wallet" in " ".join([*result.declined.values(), *result.records[0].dropped.values()])
