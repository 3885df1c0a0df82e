"""Figures for Prometheus, in its text format."""

from __future__ import annotations

from privmarket.broker import ledger, sql
from privmarket.broker.broker import Broker
from privmarket.broker.limits import Counters
from privmarket.broker.log import read_head


def render(broker: Broker, counters: Counters) -> str:
    """Requests of this process, and what the database holds."""
    with broker.database.read() as connection:
        head = read_head(connection)
        states = sql.run(connection, "SELECT state, COUNT(*) FROM rounds GROUP BY state ORDER BY state")
        people = sql.run(connection, "SELECT role, COUNT(*) FROM parties GROUP BY role ORDER BY role")
        money = ledger.totals(connection)
    lines = ["# TYPE privmarket_requests_total counter"]
    for (method, status), count in sorted(counters.answers.items()):
        lines.append(f'privmarket_requests_total{{method="{method}",status="{status}"}} {count}')
    lines += ["# TYPE privmarket_request_seconds_total counter"]
    lines += [f"privmarket_request_seconds_total {counters.seconds:.6f}"]
    lines += ["# TYPE privmarket_requests_under_way gauge", f"privmarket_requests_under_way {counters.under_way}"]
    lines += ["# TYPE privmarket_log_entries gauge", f"privmarket_log_entries {head.size}"]
    lines += ["# TYPE privmarket_log_time_seconds gauge", f"privmarket_log_time_seconds {head.at_ms / 1000:.3f}"]
    lines += ["# TYPE privmarket_rounds gauge"]
    lines += [f'privmarket_rounds{{state="{state}"}} {count}' for state, count in states]
    lines += ["# TYPE privmarket_parties gauge"]
    lines += [f'privmarket_parties{{role="{role}"}} {count}' for role, count in people]
    lines += ["# TYPE privmarket_money_micro gauge"]
    lines += [f'privmarket_money_micro{{where="{name.removesuffix("_micro")}"}} {m}' for name, m in money.items()]
    return "\n".join(lines) + "\n"
