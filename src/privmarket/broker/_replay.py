"""Runs the auction of a round again from the entries that its broker publishes once the round has ended.

Everybody who took part can do this. Every entry is proven to be in the signed log. The offers as trimmed to the
wallets are taken from the log, because the histories of other sellers are not shown; everything else is computed
again: the order of equal bids, who sells, how much, for what, and what was paid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privmarket.broker import _clearing as clearing, _merkle as merkle, _rules as rules, _signatures as signatures
from privmarket.broker._clearing import StandingBids
from privmarket.broker._client import BrokerClient, LogForkedError, require_continuation
from privmarket.broker._entry_rules import alike
from privmarket.broker._log import Entry
from privmarket.broker._signatures import Head
from privmarket.market._bids import Array
from privmarket.mechanisms import mechanism
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._events import PrivacyEvent
from privmarket.rounds import Terms


@dataclass(frozen=True)
class Replayed:
    """What a replay found; everything agrees where `problems` is empty."""

    round_id: str
    state: str
    bids: int
    sellers: int
    paid_micro: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _TrimmedWallets:
    """The offers as trimmed to the sellers' wallets, read from the log instead of computed."""

    trimmed: Mapping[str, float]

    def trim(self, family: ReleaseFamily, sellers: Sequence[str], offered: Array) -> Array:
        """See `wallets.BidderWallets`."""
        return np.array([self.trimmed.get(name, float(e)) for name, e in zip(sellers, offered, strict=True)])

    def check(self, sold: Mapping[str, PrivacyEvent]) -> None:
        """Nothing to compare with: other sellers' histories are not shown."""


def replay(client: BrokerClient, round_id: str) -> Replayed:
    """Fetches the entries of a round that has ended, proves them, and runs its auction again.

    Raises:
        LogForkedError: an entry is not in the signed log.
    """
    newest = client.check_log()
    key = str(client.read("/v1/log/head")["public_key"])
    entries: list[Entry] = []
    keys: dict[str, str | None] = {}
    after: str | None = None
    while True:
        query = {"limit": 200} | ({} if after is None else {"after": after})
        answer = client.read(f"/v1/rounds/{round_id}/entries", query)
        head = Head.parse(answer["head"])
        if not head.is_signed_by(key):
            raise LogForkedError("the head is not signed by the broker's key", "keep this answer as evidence")
        require_continuation(client, newest, head)
        for item in answer["items"]:
            _require_included(head, item)
            entries.append(Entry(*item["entry"]))
        keys |= answer["public_keys"]
        after = answer["next"]
        if after is None:
            return _check(round_id, entries, keys)


def _require_included(head: Head, item: Mapping[str, Any]) -> None:
    seq = item["entry"][0]
    leaf = merkle.leaf_hash(signatures.canonical(item["entry"]).encode())
    path = [bytes.fromhex(one) for one in item["path"]]
    if not merkle.includes(bytes.fromhex(head.root), head.size, seq - 1, leaf, path):
        raise LogForkedError(
            f"entry {seq} is not in the log of {head.size} entries",
            "keep this answer as evidence and show it to other parties of the market",
        )


def _check(round_id: str, entries: Sequence[Entry], keys: Mapping[str, str | None]) -> Replayed:
    def of(kind: str) -> list[Entry]:
        return [one for one in entries if one.kind == kind]

    problems: list[str] = []
    task = of("task.published")[0].fields()
    opened = of("round.opened")[0].fields()
    standing = _standing(round_id, entries, keys, problems)
    awards = {one.fields()["seller_id"]: one.fields() for one in of("award.made")}
    cleared = of("round.cleared")
    paid = sum(one.fields()["paid_micro"] for one in of("award.settled"))
    if cleared:
        summary = cleared[0].fields()
        terms = clearing.terms(
            opened["number"],
            opened["budget_micro"],
            *(task[name] for name in ("epsilon_max", "sampling_rate", "steps", "delta", "trust", "honest_share")),
        )
        problems += _auction(round_id, task, opened["mechanism_version"], terms, standing, summary, awards)
        ended = of("round.settled")[0].fields()
        if ended["paid_micro"] != paid or paid + ended["refunded_micro"] != opened["budget_micro"]:
            problems.append(f"{paid} µ were paid and {ended['refunded_micro']} µ refunded of the budget")
        for one in of("award.settled"):
            if one.fields()["paid_micro"] not in (0, awards[one.fields()["seller_id"]]["payment_micro"]):
                problems.append(f"{one.fields()['seller_id']} was paid another amount than it was awarded")
    state = "settled" if cleared else "aborted"
    return Replayed(round_id, state, len(standing.sellers), len(awards), paid, tuple(problems))


def _standing(
    round_id: str, entries: Sequence[Entry], keys: Mapping[str, str | None], problems: list[str]
) -> StandingBids:
    """The bids that count according to the entries: the last of each seller, with its numbers revealed.

    Signatures and commitments that do not fit their bid are added to `problems`.
    """
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for one in entries:
        fields = one.fields()
        if one.kind == "bid.placed":
            message = signatures.bid_message(round_id, one.actor, fields["commitment"])
            key = keys.get(one.actor)
            if fields.get("signature") and key and not signatures.is_signed(key, message, fields["signature"]):
                problems.append(f"the bid of {one.actor} is not signed by the key that it has now")
            found[one.actor] = (one.seq, fields)
        elif one.kind == "bid.revealed" and one.actor in found:
            seq, sealed_fields = found[one.actor]
            found[one.actor] = (seq, {**sealed_fields, **fields})
    rows = []
    for seller, (_, bid) in sorted(found.items(), key=lambda item: item[1][0]):
        if "valuation" not in bid:
            continue
        numbers = {name: bid[name] for name in ("valuation", "epsilon", "data_size", "accuracy")}
        if signatures.commitment(round_id, seller, numbers, bid["nonce"]) != bid["commitment"]:
            problems.append(f"the bid of {seller} is not the one that it committed to")
        rows.append((seller, *numbers.values(), bid["nonce"]))
    return StandingBids.of(rows)


def _auction(
    round_id: str,
    task: Mapping[str, Any],
    version: str,
    terms: Terms,
    standing: StandingBids,
    summary: Mapping[str, Any],
    awards: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    settings: dict[str, Any] = json.loads(task["settings"])
    make = rules.as_recorded(mechanism, task["mechanism"], version)
    rule = clearing.mechanism_of(task["mechanism"], json.dumps(settings), task["epsilon_max"], make)
    here = rules.version_of(rule)
    if version != here or summary["mechanism_version"] != version:
        return [f"the rule is {here} here; the round was opened with {version}: install that version"]
    wallets = _TrimmedWallets(summary["trimmed"])
    found = clearing.auction(round_id, terms, standing, wallets, rule, here)
    again = {n: (a.epsilon, a.event.noise_multiplier, a.payment_micro) for n, a in found.awards.items()}
    stored = {n: (a["epsilon"], a["noise_multiplier"], a["payment_micro"]) for n, a in awards.items()}
    same = alike(stored, again) and all(alike(summary[name], value) for name, value in found.summary().items())
    return [] if same else ["the auction gives another result than recorded"]
