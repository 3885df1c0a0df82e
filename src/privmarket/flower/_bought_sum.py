"""A round's training under aggregate trust, as the server app and the strategy wrapper both buy it."""

from __future__ import annotations

import logging

import numpy as np

from privmarket.errors import PrivacyError
from privmarket.flower import _secure as secure
from privmarket.flower._fleet import Delivery
from privmarket.flower._grid_market import GridMarket
from privmarket.flower._secure import SignRoster
from privmarket.flower._wire import Arrays
from privmarket.rounds import Round
from privmarket.secagg import SumClosed, SumRefusal

_log = logging.getLogger("privmarket.flower")


def buy_sum(
    run: GridMarket, market: Round, weights: Arrays, register: SignRoster | None = None
) -> tuple[dict[str, Delivery], np.ndarray | None]:
    """The training of a round under aggregate trust, from the roster to the opened sums.

    Args:
        run: the market, with its fleet and settings.
        market: the cleared round.
        weights: the model, array by array.
        register: signs the roster, where there is one.

    Returns:
        What each seller delivered, and the step of the model that was bought: learning rate × average,
        (parameters,) float32, array after array; None where no sum was opened.
    """
    if not market.awards:
        return {}, None
    settings = run.settings
    grid = run.fleet.grid
    try:
        keys = run.awarded_keys(market)
        cohorts = secure.form_cohorts(
            grid, run.fleet, market.terms, keys, settings.largest_cohort, settings.deadline_seconds, register
        )
        plan = run.shared_sum(market, sum(array.size for array in weights.values()), cohorts)
    except (PrivacyError, SumRefusal, SumClosed) as error:  # no order has gone out: nobody released anything
        _log.warning("round %s: %s", market.terms.number, error)
        return {client: Delivery(fault=str(error), refused=True) for client in run.sellers(market)}, None
    sales = run.sales(market, total=plan)
    sizes = {client: market.offers[client].data_size for client in sales}
    run.cohorts_of[market.terms.number] = cohorts.count
    deliveries, total = secure.secure_sum(
        grid, run.fleet, sales, weights, sizes, settings.deadline_seconds, cohorts
    )
    if total is None:
        return deliveries, None
    place = {client: at for at, client in enumerate(market.awards)}
    came = [place[client] for client in sales if deliveries[client].fault is None]
    flat = np.concatenate([total[name].ravel() for name in weights])
    chosen = run.planned(market)
    rate = chosen.learning_rate / chosen.expected_batch
    return deliveries, (rate * (flat / float(plan.weights[came].sum()))).astype(np.float32)
