"""The settings of a run, chosen on public records for the noise and the sellers that its auction would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from privmarket.simulation._aggregation import seller_weights
from privmarket.simulation._federation import Federation, SimulatedClients
from privmarket.simulation._global_model import ServerState
from privmarket.simulation._own_model import FEWEST_RECORDS, OwnModel
from privmarket.simulation._stand_in import WORLDS, Rehearsal, StandIn
from privmarket.simulation._state import RunState
from privmarket.simulation._workers import one_thread

if TYPE_CHECKING:
    from privmarket.market._mechanism import Mechanism
    from privmarket.simulation._clients import AskedPrices
    from privmarket.simulation._config import FederationConfig
    from privmarket.tasks import Task

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FirstRound:
    """What the first auction of a run means for its training.

    Attributes:
        noise: deviation of the noise on the mean gradient of a round, over the clip norm.
        weights: (clients,) weights of the sellers' updates, adding up to 1.
        spent: money paid if everybody delivers.
    """

    noise: float
    weights: Array
    spent: float

    @property
    def sellers(self) -> int:
        """How many clients sell."""
        return int((self.weights > 0).sum())


@dataclass(frozen=True, eq=False)
class Tuned:
    """What public records chose, and the buyer's own model, which the choice needed."""

    rehearsal: Rehearsal
    own_model: OwnModel


def first_round(federation: Federation) -> FirstRound | None:
    """The noise and the sellers of a run's first round, without training anybody; None if nobody sells.

    With persistent types and even spending, later rounds are like it.
    """
    config = federation.config
    state = RunState(0, ServerState.start(torch.zeros(0)), federation.wallets(), federation.pacing.total_micro, ())
    market = federation.auctioneer.clear(federation.pacing.terms(()), SimulatedClients(federation, state))
    if not market.awards:
        return None
    places = [federation.place[client] for client in market.awards]
    batch = federation.pool.plan.expected_batch
    weights = np.zeros(config.clients)
    if config.trust == "aggregate":
        shared = federation.shared_sum(market)
        weights[places] = shared.weights / shared.weights.sum()
        noise = shared.deviation(range(len(places))) / (config.training.clip_norm * batch)
    else:
        found = seller_weights(market, set(market.awards), config.aggregation, federation.objective)
        sigma = np.array([award.event.noise_multiplier for award in market.awards.values()])
        weights[places] = found
        noise = float(np.sqrt(((found * sigma) ** 2).sum())) / batch
    spent = sum(award.payment_micro for award in market.awards.values()) / 1e6
    return FirstRound(float(noise), weights, spent)


def tuned_settings(
    config: FederationConfig,
    task: Task,
    asked: AskedPrices | None = None,
    *,
    fixed: Sequence[str] = (),
    mechanism: Mechanism | None = None,
    worlds: int = WORLDS,
    on_tried: Callable[[int], None] = lambda _: None,
) -> Tuned | None:
    """Server rate, clip norm and averaging for this run, chosen on the task's public records.

    None where there are no public records to choose on, where nothing is sold, or where the run trains otherwise
    (several local steps, references without privacy, whitened inputs): then documented defaults stand.

    Args:
        fixed: settings that the caller chose.
        on_tried: told how many settings have been tried so far.
    """
    public = task.public
    if public is None or len(public) < FEWEST_RECORDS or not config.privacy.uses_server_plan:
        return None
    if config.training.steps != 1 or config.statistics != "none":
        return None
    with one_thread(), Federation(config, task=task, asked=asked, mechanism=mechanism) as federation:
        first = first_round(federation)
        if first is None:
            return None
        stand_in = StandIn(task, clients=config.clients, worlds=worlds, seed=config.seed)
        noise = first.noise if config.privacy.is_private else 0.0
        found = stand_in.rehearse(
            config.training, config.rounds, noise, first.weights, fixed=fixed, on_tried=on_tried
        )
    return Tuned(found, stand_in.own)
