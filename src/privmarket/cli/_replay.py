"""`privmarket replay`: run the auction of a round again, from the entries that its broker shows."""

from __future__ import annotations

__extra__ = "client"  # named where a package is missing: `privmarket._lazy`

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from privmarket._counted import counted
from privmarket._lazy import late
from privmarket.cli._options import Json, print_json
from privmarket.cli._seller_at_broker import RoundId, Token, Url

if TYPE_CHECKING:
    from privmarket.broker import _client as clients, _replay
else:
    _replay = late("privmarket.broker._replay")
    clients = late("privmarket.broker._client")


def replay(round_id: RoundId, url: Url, token: Token, json: Json = False) -> None:
    """Run the auction of a round again, from the entries that its broker shows once the round has ended.

    For bidders, the buyer, the arbiter, auditors and operators. Each entry is proven to be in the signed log. Exit
    code 0: the auction gives what was recorded. Exit code 1: it does not, and what differs is shown.

    [bold]Example[/bold]

      privmarket replay round-0123456789abcdef --url https://HOST --token TOKEN
    """
    with clients.BrokerClient(url, token) as client:
        found = _replay.replay(client, round_id)
    if json:
        print_json(asdict(found))
    else:
        for text in found.problems:
            print(f"difference: {text}")
        said = counted(len(found.problems), "difference") if found.problems else "the same again"
        print(
            f"{said}: {counted(found.bids, 'bid')}, {counted(found.sellers, 'seller')}, "
            f"{found.paid_micro} µ paid, round {found.state}"
        )
    raise typer.Exit(1 if found.problems else 0)
