"""What is useless or doubtful about a policy that can be read: for `privmarket seller check`.

A policy may be well formed and still let nothing through, or promise next to nothing. `review` says so in words,
each time with the remedy. What makes a policy useless, a lifetime below a single release, is an error; the rest are
warnings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from privmarket.errors import WalletError
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.privacy._policy import GuardedMetric, SellerPolicy
from privmarket.privacy._wallet import Wallets

# Keys that mean the same to a seller and to a guard. Every other one but `guard` is about sales.
_SHARED = {
    "epsilon_lifetime",
    "wallet",
    "head_file",
    "delta",
    "unit",
    "parameters",
    "weight_magnitude",
    "models",
}
# A record may be published outright with probability δ. From here on that is expected of one in a thousand records,
# which stands for a site that does not declare how many it has.
DOUBTFUL_DELTA = 1e-3
# As many releases count as no limit.
_MOST = 10**6


@dataclass(frozen=True)
class Concern:
    """What is wrong with a policy, and the remedy.

    Attributes:
        is_useless: whether the policy can never let anything through.
    """

    text: str
    remedy: str
    is_useless: bool = False


def is_for_market(keys: Collection[str]) -> bool:
    """Whether a file with these keys is about sales: it names one of their keys, or it is no guard's either."""
    return "guard" not in keys or bool(set(keys) - _SHARED - {"guard"})


def names_a_use(keys: Collection[str]) -> bool:
    """Whether a file with these keys says anything of its own about sales, or about a guard."""
    return not set(keys) <= _SHARED


def review(policy: SellerPolicy, keys: Collection[str]) -> list[Concern]:
    """All that is useless or doubtful about a policy, the useless first.

    Args:
        keys: the keys that its file has.
    """
    found = []
    if "guard" in keys:
        found += _guard_concerns(policy, keys)
    elif not names_a_use(keys):
        found.append(
            Concern(
                "there is no [guard] table, so a GuardMod with this file takes its defaults: ε = 1 for an update, "
                "and one record",
                "for a guard write [guard], epsilon and examples; for a market any of its keys, "
                "e.g. epsilon_per_sale",
            )
        )
    if is_for_market(keys):
        found += _market_concerns(policy)
    records = policy.guard.examples if policy.guard.examples > 1 else round(1 / DOUBTFUL_DELTA)
    if policy.delta * records >= 1:
        found.append(
            Concern(
                f"delta = {policy.delta:g} lets {policy.delta * records:.3g} of {records} records be published",
                "choose delta well below 1 / number of records, e.g. 1e-5",
            )
        )
    return sorted(found, key=lambda one: not one.is_useless)


def _guard_concerns(policy: SellerPolicy, keys: Collection[str]) -> list[Concern]:
    rules = policy.guard
    found = []
    for what, ways in (("update", update_releases(policy)), ("evaluation", evaluation_releases(policy))):
        events = [event for way in ways for event in way]
        if events and not min(releases_that_fit(policy, way) for way in ways):
            least = max(_least_lifetime(policy, way) for way in ways)
            found.append(
                Concern(
                    f"epsilon_lifetime = {policy.epsilon_lifetime:g} does not hold a single {what} of the guard "
                    "with its metrics, so none ever leaves",
                    f"write epsilon_lifetime = {least:g} or more, or a smaller epsilon into [guard]",
                    is_useless=True,
                )
            )
    if rules.examples == 1 and not is_for_market(keys):
        found.append(
            Concern(
                "[guard] examples = 1: the site counts as one record in FedAvg, and sums are divided by 1",
                "declare about how many records the site has",
            )
        )
    if "epsilon_per_sale" in keys and rules.epsilon > policy.epsilon_per_sale:
        found.append(
            Concern(
                f"epsilon_per_sale = {policy.epsilon_per_sale:g} limits sales only: an update of the guard costs "
                f"ε = {rules.epsilon:g}",
                "lower epsilon in [guard]",
            )
        )
    return found


def _market_concerns(policy: SellerPolicy) -> list[Concern]:
    if math.isinf(policy.epsilon_lifetime):
        return []
    family = ReleaseFamily(delta=policy.delta)
    wallet = Wallets([policy.epsilon_lifetime], policy.delta)
    if wallet.is_empty(family)[0]:
        return [
            Concern(
                f"epsilon_lifetime = {policy.epsilon_lifetime:g} does not hold a single sale",
                "raise epsilon_lifetime",
                is_useless=True,
            )
        ]
    most = float(wallet.trim(family, policy.epsilon_per_sale)[0])
    if math.isfinite(policy.epsilon_per_sale) and most < policy.epsilon_per_sale:
        return [
            Concern(
                f"epsilon_lifetime = {policy.epsilon_lifetime:g} does not hold a sale of "
                f"epsilon_per_sale = {policy.epsilon_per_sale:g}: ε = {most:.3g} in all",
                "raise epsilon_lifetime, or lower epsilon_per_sale",
            )
        ]
    return []


def update_releases(policy: SellerPolicy) -> list[list[PrivacyEvent]]:
    """For each way in which the guard may release an update, what is charged for it, metrics included."""
    rules = policy.guard
    schedules = []
    if rules.training != "records":
        schedules.append((1.0, 1))
    if rules.training != "update":
        schedules.append((rules.sampling_rate, rules.steps))
    metrics = _metric_releases(policy, rules.train.values())
    return [[ReleaseFamily(*one, policy.delta).event(rules.epsilon), *metrics] for one in dict.fromkeys(schedules)]


def evaluation_releases(policy: SellerPolicy) -> list[list[PrivacyEvent]]:
    """What the guard charges for an answer to an evaluation; nothing if it has no metric with noise."""
    return [_metric_releases(policy, policy.guard.evaluate.values())]


def _metric_releases(policy: SellerPolicy, metrics: Collection[GuardedMetric]) -> list[PrivacyEvent]:
    family = ReleaseFamily(delta=policy.delta)
    return [family.event(metric.epsilon) for metric in metrics if metric.is_priced]


def metric_noise(policy: SellerPolicy, metric: GuardedMetric) -> tuple[float, float | None]:
    """The deviation of a metric's noise: on a number that the app computed, and by `average_privately`.

    The second is None where record by record is not believed, or does not say what a person may change.
    """
    noise = float(ReleaseFamily(delta=policy.delta).noise_multiplier(metric.epsilon)) * (metric.high - metric.low)
    if policy.guard.training == "update" or policy.unit == "person":
        return noise, None
    return noise, noise / (2 * policy.guard.examples)


def releases_that_fit(policy: SellerPolicy, events: Sequence[PrivacyEvent]) -> int:
    """How often all of these releases fit into the policy's lifetime; `_MOST` stands for no limit."""
    if math.isinf(policy.epsilon_lifetime) or not events:
        return _MOST
    low = 0
    high = _MOST
    while high - low > 1:
        middle = (low + high) // 2
        if _fit(policy.epsilon_lifetime, policy.delta, events, middle):
            low = middle
        else:
            high = middle
    return low


def _fit(cap_epsilon: float, delta: float, events: Sequence[PrivacyEvent], times: int) -> bool:
    wallet = Wallets([cap_epsilon], delta)
    try:
        for event in events:
            wallet.spend([replace(event, steps=event.steps * times)])
    except WalletError:
        return False
    return True


def _least_lifetime(policy: SellerPolicy, events: Sequence[PrivacyEvent]) -> float:
    """The smallest lifetime, in steps of 0.1, that holds these releases once; 0 for none."""
    if not events:
        return 0.0
    tenths = 1
    while not _fit(tenths / 10, policy.delta, events, 1):
        tenths *= 2
    low = tenths // 2
    while tenths - low > 1:
        middle = (low + tenths) // 2
        if _fit(middle / 10, policy.delta, events, 1):
            tenths = middle
        else:
            low = middle
    return tenths / 10
