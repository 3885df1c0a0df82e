"""A round that is stopped before it is settled: who is paid, who sells on, and what the result counts."""

import json
import logging

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg

import privmarket as pm
from privmarket.errors import CheckpointError
from privmarket.flower import _wire as wire
from privmarket.flower._checkpoint import OpenOrders, open_path, partial_path, read_open, write_open
from privmarket.privacy._calibration import ReleaseFamily
from tests.unit.flower.guarded import arrays, plain_app
from tests.unit.flower.toy import CLIENTS, VALUATIONS, Wire, client, partition, server, train

EVENT = ReleaseFamily().event(1.0)


def wallets(folder):
    return [pm.privacy.WalletFile(folder / f"w-{at}.jsonl", 8.0) for at in range(CLIENTS)]


def seller(folder, train=train, **options):
    files = wallets(folder)
    return client(train, wallet=lambda context: files[partition(context)], **options)


def market(folder, **options):
    return server(result_file=folder / "result.json", rounds=3, budget=30.0, **options)


class Stops(Wire):
    """A second Ctrl-C in a round: after so many orders of it, nothing more is sent."""

    def __init__(self, app, number, orders):
        super().__init__(app)
        self.number, self.left = number, orders

    def answer(self, message):
        if wire.SALE in message.content and wire.take(message.content, wire.Sale).number == self.number:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
        return super().answer(message)


def stop(folder, number, orders, app=None):
    grid = Stops(app or seller(folder), number, orders)
    app_of_server = market(folder)
    context = Context(grid.run.run_id, 1, {}, RecordDict(), {})
    with pytest.raises(KeyboardInterrupt):
        app_of_server(grid, context)
    return app_of_server.result


def goes_on(folder, app=None, **options):
    grid = Wire(app or seller(folder), **options)
    return pm.flower.run_in_process(market(folder), grid.client_app, CLIENTS, grid=grid)


@pytest.mark.parametrize("number", [0, 1])
def test_after_a_second_stop_everybody_sells_on_and_is_paid_for_what_left(number, tmp_path, caplog):
    stopped = stop(tmp_path, number, orders=4)
    sold = set(stopped.releases) if number else {str(at) for at in range(CLIENTS)}
    assert f"the orders of round {number + 1} are open" in stopped.notes[-1]
    assert all(len(events) == number for events in stopped.releases.values())
    before = [len(file.statement()) for file in wallets(tmp_path)]
    assert before == [number + 1] * 4 + [number] * 2
    assert [file.unpaid() != {} for file in wallets(tmp_path)] == [True] * 4 + [False] * 2
    result = goes_on(tmp_path)
    assert not result.declined
    assert set(result.epsilon_spent) == sold
    for at, file in enumerate(wallets(tmp_path)):
        statement = file.statement()
        assert len(statement) == len(result.charged[str(at)]) == 3 + (at < 4)
        assert result.epsilon_spent[str(at)] == pytest.approx(file.epsilon_spent, rel=1e-6)
        assert all(sale["paid_micro"] >= sale["due_micro"] > 0 for sale in statement)
        assert file.unpaid() == {}
    assert any("updates of a stopped round" in line for line in result.notes)
    assert "client 0: 4 sales (1 of them in a stopped round)" in "\n".join(result.summary())
    assert not open_path(partial_path(tmp_path / "result.json")).exists()


def test_an_order_whose_training_was_cut_off_is_charged_and_not_paid(tmp_path):
    """The wallet holds it, since it may have begun; nothing has left."""

    def cut_off(weights, job):
        if job.sale.number == 1 and job.client == "2":
            raise KeyboardInterrupt
        return train(weights, job)

    stop(tmp_path, 9, 0, seller(tmp_path, cut_off))
    assert wallets(tmp_path)[2].unpaid() == {}
    result = goes_on(tmp_path)
    sale = wallets(tmp_path)[2].statement()[1]
    assert (sale["released"], sale.get("paid_micro", 0)) == (False, 0)
    assert len(result.charged["2"]) == 4
    assert len(result.charged["5"]) == 3  # never got its order
    assert set(result.declined) == set()


def test_a_client_that_does_not_answer_stays_counted_and_owed(tmp_path):
    stop(tmp_path, 1, orders=5)

    def deaf(message):
        receipt = wire.NAMES[wire.Receipt]
        found = message.content.get(receipt)
        if found is not None and found["stopped"] and message.metadata.dst_node_id == 1003:
            del message.content[receipt]

    result = goes_on(tmp_path, tamper=deaf)
    assert len(result.charged["3"]) == len(wallets(tmp_path)[3].statement()) == 2
    assert result.declined["3"].startswith("unpaid")
    (left,) = read_open(open_path(partial_path(tmp_path / "result.json")))
    assert list(left.due_micro) == list(left.events) == ["3"]


def test_a_strategy_settles_a_stopped_round_too(tmp_path):
    """`AuctionStrategy` writes its orders down before they are sent."""
    files = wallets(tmp_path)
    mod = pm.flower.WalletMod(
        lambda context: VALUATIONS[partition(context)],
        epsilon=1.0,
        wallet=lambda context: files[partition(context)],
        noise="update",
    )
    app = plain_app([mod])
    mod.answer_bids(app)
    options = {"result_file": tmp_path / "result.json", "budget": 30.0, "noise": "update"}

    def play(grid):
        strategy = pm.flower.AuctionStrategy(FedAvg(fraction_evaluate=0.0), **options)
        strategy.start(grid, arrays(), num_rounds=2)
        return strategy.result

    with pytest.raises(KeyboardInterrupt):
        play(Stops(app, 0, 3))
    (left,) = read_open(open_path(partial_path(tmp_path / "result.json")))
    assert len(left.due_micro) == CLIENTS
    result = play(Wire(app))
    assert not result.declined
    counts = [len(file.statement()) for file in files]
    assert counts == [3, 3, 3, 2, 2, 2]
    assert [len(result.charged[str(at)]) for at in range(CLIENTS)] == counts


def test_a_client_whose_training_fails_owes_its_own_bug_to_nobody(tmp_path, caplog):
    def fails(weights, job):
        if job.client == "2":
            raise OSError("no space left")
        return train(weights, job)

    result = pm.flower.run_in_process(server(rounds=4), seller(tmp_path, fails), CLIENTS)
    file = wallets(tmp_path)[2]
    assert file.unpaid() == {}
    assert len(file.statement()) == 2
    assert result.declined["2"].startswith("failed")
    assert "2 sales of this run failed here" in caplog.text
    again = pm.flower.run_in_process(server(rounds=1), seller(tmp_path), CLIENTS)  # mended
    assert "2" in again.releases
    assert not again.declined


def test_the_remedy_for_a_debt_is_one_that_there_is(tmp_path, caplog):
    def keeps_its_money(message):
        message.content.pop(wire.NAMES[wire.Receipt], None)

    grid = Wire(seller(tmp_path), tamper=keeps_its_money)
    with caplog.at_level(logging.WARNING):
        result = pm.flower.run_in_process(server(rounds=4), grid.client_app, CLIENTS, grid=grid)
    assert result.declined
    assert "policy=, beside the same wallet=" in caplog.text


def test_the_server_says_at_once_that_most_decline(tmp_path, caplog):
    def one_is_paid(message):
        if message.metadata.dst_node_id != 1005:
            message.content.pop(wire.NAMES[wire.Receipt], None)

    grid = Wire(seller(tmp_path), tamper=one_is_paid)
    with caplog.at_level(logging.WARNING):
        result = pm.flower.run_in_process(server(rounds=4), grid.client_app, CLIENTS, grid=grid)
    assert any("5 of 6 clients decline (5: unpaid" in line for line in result.notes)
    assert caplog.text.count("5 of 6 clients decline") == 1


def test_open_orders_are_kept_to_the_last_digit(tmp_path):
    path = tmp_path / "result.open.json"
    orders = OpenOrders("run", 3, "local", {"0": 7, "1": 9}, {"0": EVENT, "1": EVENT})
    write_open(path, [orders])
    (found,) = read_open(path)
    assert found == orders or vars(found) == vars(orders)
    write_open(path, [])
    assert not path.exists()
    assert read_open(path) == []
    path.write_text(json.dumps([{"run": "r"}]))
    with pytest.raises(CheckpointError, match=r"result\.open\.json"):
        read_open(path)
