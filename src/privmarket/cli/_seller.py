"""`privmarket seller`: policies of sellers, and statements of their wallets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from privmarket._counted import counted
from privmarket._settings import Trust
from privmarket.cli import _seller_at_broker as seller_at_broker
from privmarket.cli._options import Json, print_json, print_table
from privmarket.errors import ConfigurationError
from privmarket.privacy._accountant import certify
from privmarket.privacy._calibration import ReleaseFamily, alone_event, sold_epsilon
from privmarket.privacy._events import from_json
from privmarket.privacy._policy import GUARDED, TEMPLATE, GuardedMetric, SellerPolicy, read_policy_file
from privmarket.privacy._policy_review import (
    is_for_market,
    metric_noise,
    names_a_use,
    releases_that_fit,
    review,
    update_releases,
)
from privmarket.privacy._statement import (
    GROUP_RECORDS,
    ODOMETER_LABEL,
    ODOMETER_NOTE,
    Promise,
    cohort_words,
    lifetime_promise,
    promise,
    rounded_up_percent,
    trust_words,
)
from privmarket.privacy._wallet_store import PROTECTIONS, Protection, SaleLine, WalletFile

app = typer.Typer(help="For sellers: write a policy, check it, and read what was sold.", no_args_is_help=True)
seller_at_broker.add_to(app)


@app.command("policy")
def policy() -> None:
    """Print a policy file with its safe defaults: what a client accepts before it touches any record.

    [bold]Example[/bold]

      privmarket seller policy > seller.toml
    """
    print(TEMPLATE, end="")


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="A policy file (TOML).")],
    json: Json = False,
) -> None:
    """Check a policy file and say in words what its limits promise; a policy that can never release is an error.

    [bold]Example[/bold]

      privmarket seller policy > seller.toml

      privmarket seller check seller.toml
    """
    found = SellerPolicy.read(file)
    keys = set(read_policy_file(file))
    concerns = review(found, keys)
    for concern in concerns:
        if concern.is_useless:
            raise ConfigurationError(f"{file}: {concern.text}", concern.remedy)
    trust = _weakest(found.trust)
    registered = found.register != "none"
    life = lifetime_promise(
        found.epsilon_lifetime, found.delta, unit=found.unit, trust=trust, registered=registered
    )
    sale = None
    if math.isfinite(found.epsilon_per_sale):
        event = ReleaseFamily(delta=found.delta).event(found.epsilon_per_sale)
        sale = promise(
            [event],
            found.delta,
            epsilon=found.epsilon_per_sale,
            unit=found.unit,
            trust=trust,
            honest_share=found.honest_share,
            # Without a register, the limit is itself what is left against all others of the sum.
            sellers=found.minimum_cohort if registered else None,
            registered=registered,
        )
    if json:
        plain = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in asdict(found).items()}
        print_json(
            {
                "policy": plain,
                "warnings": [f"{concern.text} ({concern.remedy})" for concern in concerns],
                "sale": None if sale is None else sale.to_json(),
                "lifetime": life.to_json(),
            }
        )
        return
    print(f"{file}: a policy that can be used")
    for concern in concerns:
        print(f"warning: {concern.text} ({concern.remedy})")
    if is_for_market(keys):
        _print_largest_sale(found, sale, registered)
    print("a lifetime, however releases are chosen:")
    _print_lifetime(life)
    if is_for_market(keys):
        _print_market(found, registered)
    if "guard" in keys:
        _print_guard(found)
    elif names_a_use(keys):
        print(
            f"no [guard] table: a GuardMod with this file takes its defaults, ε = {found.guard.epsilon:g} for an "
            "update and one record, whatever epsilon_per_sale says"
        )
    print(f"an older copy of the wallet file, put back: {PROTECTIONS[_planned_protection(found)]}")


def _print_largest_sale(found: SellerPolicy, sale: Promise | None, registered: bool) -> None:
    """Prints what the largest sale that a policy allows promises; None for no limit."""
    print("the largest sale, as one noisy sum over all records:")
    for text in sale.lines() if sale is not None else ["no limit: whatever the client offers may be bought"]:
        print(f"  {text}")
    if sale is not None and sale.epsilon_alone is not None:
        print(f"  (all others of a sum of {found.minimum_cohort}, the fewest; in a larger sum ε is larger then)")
    if sale is not None and sale.trust == "aggregate" and not registered:
        offered = sold_epsilon(
            ReleaseFamily(delta=found.delta), found.epsilon_per_sale, found.largest_cohort, found.honest_share
        )
        print(
            f"  in a secure sum at most ε = {offered:.3g} is offered: without a register that costs up to "
            f"ε = {found.epsilon_per_sale:g} in a sum of {found.largest_cohort} (largest_cohort)"
        )


def _print_market(found: SellerPolicy, registered: bool) -> None:
    """Prints whom a seller trusts, its prices, and what a buyer may owe."""
    print("whom it trusts, and what it asks for that:")
    for one in found.trust:
        price = found.price.get(one)
        asks = "what the client values it at" if price is None else f"{price:g} per unit of ε"
        print(f"  {one} ({trust_words(one, found.honest_share, registered)}): {asks}")
    risk = found.most_unpaid(found.epsilon_lifetime)
    print(f"unpaid: who owes for a sale gets another only while all that it owes for is at most ε = {risk:g}")


@app.command("statement")
def statement(
    file: Annotated[Path, typer.Argument(help="A client's wallet file (JSON lines).")],
    json: Json = False,
) -> None:
    """What a client has sold, was paid and has left, and what each sale promises in words.

    [bold]Example[/bold]

      privmarket seller statement wallet-0.jsonl
    """
    wallet = WalletFile.existing(file)
    sales = [(sale, _promise(sale, wallet.delta)) for sale in wallet.statement()]
    trust = _weakest(words.trust for _, words in sales)
    registered = any(words.trust == "aggregate" and words.registered for _, words in sales)
    life = lifetime_promise(
        wallet.cap_epsilon,
        wallet.delta,
        measures=wallet.measures,
        unit=wallet.unit,
        trust=trust,
        registered=registered,
    )
    so_far = certify(wallet.spent(), wallet.delta)
    alone = _epsilon_alone([sale for sale, _ in sales], wallet.delta)
    unpaid = wallet.unpaid()
    protections = wallet.protections
    if json:
        print_json(
            {
                "sales": [{**sale, "promise": words.to_json()} for sale, words in sales],
                "lifetime": life.to_json(),
                "remaining_share": wallet.remaining_share,
                "epsilon_so_far": so_far.epsilon,
                "epsilon_so_far_is": f"{ODOMETER_LABEL}; {ODOMETER_NOTE}",
                "epsilon_so_far_alone": alone,
                "unpaid_epsilon": unpaid,
                "rollback_protection": list(protections),
            }
        )
        return
    _print_sales(sales)
    print(f"\n{ODOMETER_LABEL}: {so_far.epsilon:.3g} at δ = {wallet.delta:g}")
    print(f"  {ODOMETER_NOTE}")
    print(f"the wallet's cap: ε = {wallet.cap_epsilon:g}, {wallet.remaining_share:.0%} of it left")
    _print_lifetime(life)
    if alone is not None:
        print(f"if all other sellers of every sum work together with the server: ε = {alone:.3g} so far")
        if any(not words.registered for _, words in sales):
            print("  where no register says who they are, this is what the wallet was charged")
    for buyer, epsilon in unpaid.items():
        print(f"not paid for: ε = {epsilon:.3g}, sold to {buyer or 'buyers without a broker'}")
    for one in protections:
        print(f"an older copy of this file, put back: {PROTECTIONS[one]}")


def _print_guard(found: SellerPolicy) -> None:
    """Prints what leaves a site whose app has a `GuardMod`."""
    rules = found.guard
    ways = {
        "auto": "record by record where the app calls train_privately, else as a whole",
        "records": "record by record, by train_privately",
        "update": "as a whole",
    }
    print("guarded, without a market (`GuardMod`):")
    print(f"  an update, clipped {ways[rules.training]}: ε = {rules.epsilon:g}")
    if math.isfinite(found.epsilon_lifetime):
        fit = min(releases_that_fit(found, way) for way in update_releases(found))
        print(f"  a lifetime holds {counted(fit, 'update')}, if nothing else leaves")
    for kind, metrics in (("training", rules.train), ("evaluation", rules.evaluate)):
        for name, metric in metrics.items():
            print(f"  {name}, with {kind}: {_metric_words(found, metric)}")
    if not rules.evaluate:
        print("  evaluation is refused")


def _metric_words(policy: SellerPolicy, metric: GuardedMetric) -> str:
    if metric.value is not None:
        return f"always {metric.value:g}"
    if metric.is_priced:
        whole, mean = metric_noise(policy, metric)
        by_record = "" if mean is None else f", by average_privately {mean:.2g}"
        return (
            f"clipped to {metric.low:g} … {metric.high:g}, ε = {metric.epsilon:g}; deviation of the noise: "
            f"{whole:.2g} on the app's own number{by_record}"
        )
    return f"clipped to {metric.low:g} … {metric.high:g} and WITHOUT NOISE: no promise covers it"


def _planned_protection(policy: SellerPolicy) -> Protection:
    return "none" if policy.head_file is None else "head-file"


def _epsilon_alone(sales: Sequence[SaleLine], delta: float) -> float | None:
    """ε of all sales so far if in every secure sum all others collude; None without secure sums of known size."""
    events = []
    found = False
    for sale in sales:
        if sale.get("void"):
            continue
        event = from_json(sale["event"])
        sellers = sale.get("sellers")
        share = sale.get("honest_share")
        if sale.get("trust") == "aggregate" and sellers is not None and share is not None:
            event = alone_event(event, sellers, share)
            found = True
        events.append(event)
    return certify(events, delta).epsilon if found else None


def _weakest(trusts: Iterable[Trust]) -> Trust:
    """The trust model of several sales together: aggregate if one of them is, else local."""
    return "aggregate" if "aggregate" in trusts else "local"


def _print_lifetime(life: Promise) -> None:
    print(f"  {life.sentence}")
    print(f"  trust: {life.trust} ({trust_words(life.trust, life.honest_share, life.registered)})")


def _promise(sale: SaleLine, delta: float) -> Promise:
    """What a sale promises, in words."""
    return promise(
        [from_json(sale["event"])],
        delta,
        epsilon=sale["epsilon"],
        unit=sale.get("unit", "record"),
        trust=sale.get("trust", "local"),
        honest_share=sale.get("honest_share"),
        sellers=sale.get("sellers"),
        registered=sale.get("registered", True),
    )


def _print_sales(sales: Sequence[tuple[SaleLine, Promise]]) -> None:
    guarded = [sale["sale"].startswith(GUARDED) for sale, _ in sales]
    table = Table(title=counted(len(sales), "release" if any(guarded) else "sale"))
    group = f"ε for {GROUP_RECORDS} records of one person"
    for column in ("sale", "ε", "ε if others collude", "right guesses", group, "unit", "trust", "released", "paid"):
        table.add_column(column, justify="left" if column == "sale" else "right")
    for sale, words in sales:
        state = "void" if sale.get("void") else "yes" if sale["released"] else "no, and spent"
        paid = sale.get("paid_micro")
        unpaid = "–" if sale["sale"].startswith(GUARDED) else "not yet"
        table.add_row(
            sale["sale"],
            f"{words.epsilon:.3g}",
            "–" if words.epsilon_alone is None else f"{words.epsilon_alone:.3g}",
            f"≤ {rounded_up_percent(words.guess)}",
            "–" if words.group_epsilon is None else f"{words.group_epsilon:.3g}",
            words.unit,
            words.trust,
            state,
            unpaid if paid is None else f"{paid / 1_000_000:.6g}",
        )
    print_table(table)
    shares = {words.honest_share for _, words in sales if words.registered}
    for share in sorted(share for share in shares if share is not None):
        print(f"aggregate trust: {trust_words('aggregate', share)}")
    for sale, _ in sales:
        if sale.get("cohorts", 1) > 1:
            print(f"{sale['sale']}: the round's sellers were {cohort_words(sale['cohorts'])}")
    if any(not words.registered for _, words in sales):
        print(f"aggregate trust without a register: {trust_words('aggregate', None, registered=False)}")
