"""Figures for Prometheus: requests of this process, and what the database holds."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from privmarket.broker import _ledger as ledger, _sql as sql
from privmarket.broker._broker import Broker
from privmarket.broker._limits import Counters
from privmarket.broker._log import read_head

CONTENT_TYPE = CONTENT_TYPE_LATEST


class BrokerCollector(Collector):
    """Reads the figures from the database and the counters each time Prometheus asks for them."""

    def __init__(self, broker: Broker, counters: Counters) -> None:
        self._broker = broker
        self._counters = counters

    def collect(self) -> Iterable[Metric]:
        """Requests by method and status, rounds by state, parties by role, money by where it stands, the log."""
        with self._broker.database.read() as connection:
            head = read_head(connection)
            states = sql.run(connection, "SELECT state, COUNT(*) FROM rounds GROUP BY state ORDER BY state")
            people = sql.run(connection, "SELECT role, COUNT(*) FROM parties GROUP BY role ORDER BY role")
            money = ledger.totals(connection)
        answers = CounterMetricFamily(
            "privmarket_requests", "Answers of this process.", labels=["method", "status"]
        )
        for (method, status), count in sorted(self._counters.answers.items()):
            answers.add_metric([method, str(status)], count)
        yield answers
        yield CounterMetricFamily(
            "privmarket_request_seconds", "Time that answers took, summed.", value=self._counters.seconds
        )
        yield GaugeMetricFamily(
            "privmarket_requests_under_way", "Requests being answered.", value=self._counters.under_way
        )
        yield GaugeMetricFamily("privmarket_log_entries", "Entries of the log.", value=head.size)
        yield GaugeMetricFamily("privmarket_log_time_seconds", "Time of the newest entry.", value=head.at_ms / 1000)
        rounds = GaugeMetricFamily("privmarket_rounds", "Rounds by state.", labels=["state"])
        for state, count in states:
            rounds.add_metric([state], count)
        yield rounds
        parties = GaugeMetricFamily("privmarket_parties", "Parties by role.", labels=["role"])
        for role, count in people:
            parties.add_metric([role], count)
        yield parties
        held = GaugeMetricFamily("privmarket_money_micro", "Money in micro-units, by place.", labels=["where"])
        for name, amount in money.items():
            held.add_metric([name.removesuffix("_micro")], amount)
        yield held


def render(broker: Broker, counters: Counters) -> bytes:
    """All figures in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(broker, counters))
    return generate_latest(registry)
