"""`privmarket seller init|register|attest|bid|reveal|deliver|prove`: a seller at a broker, from a terminal."""

from __future__ import annotations

__extra__ = "client"  # named where a package is missing: `privmarket._lazy`

import hashlib
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privmarket._counted import counted
from privmarket._files import write_atomically, write_new
from privmarket._lazy import late
from privmarket._settings import DELTA
from privmarket.broker._errors import BrokerError
from privmarket.cli._options import Json, broker_address, note, print_json

if TYPE_CHECKING:
    from privmarket.broker import _client as clients, _sealed as sealed, _signatures as signatures
else:
    clients = late("privmarket.broker._client")
    sealed = late("privmarket.broker._sealed")
    signatures = late("privmarket.broker._signatures")

RoundId = Annotated[str, typer.Argument(help="The round, as the broker names it.")]
Key = Annotated[Path, typer.Option(help="The file of your private key.", envvar="PRIVMARKET_SELLER_KEY")]
Url = Annotated[
    str, typer.Option(help="The broker's address.", envvar="PRIVMARKET_BROKER", callback=broker_address)
]
Token = Annotated[str, typer.Option(help="Your token.", envvar="PRIVMARKET_BROKER_TOKEN")]
DEFAULT_KEY = Path("seller.pem")


def init(key: Key = DEFAULT_KEY) -> None:
    """Make an Ed25519 key in a file that only you can read, and print its public half.

    [bold]Example[/bold]

      privmarket seller init --key seller.pem
    """
    made = signatures.SigningKey.generate()
    made.write(key)
    note(f"private key in {key}; keep it: bids of this seller must be signed with it")
    print(made.public)


def register(
    url: Url,
    name: Annotated[str, typer.Option(help="The name that others see.")],
    cap_epsilon: Annotated[float, typer.Option(help="The most ε that you ever sell.", min=0)],
    delta: Annotated[float, typer.Option(help="The δ of that lifetime limit.", min=0, max=0.5)] = DELTA,
    key: Key = DEFAULT_KEY,
) -> None:
    """Register at a broker with your key and print your token; it is made here and shown once.

    [bold]Example[/bold]

      privmarket seller register --url https://market.example --name "North clinic" --cap-epsilon 8
    """
    own = signatures.SigningKey.read(key)
    with clients.BrokerClient(url) as client:
        seller = client.register("seller", name, cap_epsilon=cap_epsilon, delta=delta, key=own)
    print(seller.token)


def attest(
    file: Annotated[Path, typer.Argument(help="Your data set, as one file.", exists=True, dir_okay=False)],
    url: Url,
    token: Token,
    key: Key = DEFAULT_KEY,
) -> None:
    """Attest, signed with your key, which data set you sell from: one account and one lifetime wallet per data set.

    Only a SHA-256 of the file and of a secret salt leaves, and it cannot be changed later. The salt is made beside
    the file (FILE.salt) and belongs to it: keep both. Without a salt, whoever knows all records but one could try
    out that one. Tasks may ask for an attestation.

    [bold]Example[/bold]

      privmarket seller attest records.csv --url https://HOST --token TOKEN
    """
    digest = dataset_digest(file)
    with clients.BrokerClient(url, token, key=signatures.SigningKey.read(key)) as client:
        print(client.attest(digest)["dataset_sha256"])


def dataset_digest(file: Path) -> str:
    """SHA-256 of a salt, kept in a file beside the data set and made where there is none, and of the data set."""
    salt = file.with_name(f"{file.name}.salt")
    with suppress(FileExistsError):
        write_new(salt, secrets.token_hex(32))
    written = salt.read_text(encoding="ascii").strip()
    if len(written) != 64:
        raise BrokerError(f"{salt} is no salt of 64 digits", "restore it from a copy; it belongs to the data set")
    with file.open("rb") as content:
        salted = hashlib.sha256(f"privmarket dataset v1\n{written}\n".encode())
        return hashlib.file_digest(content, lambda: salted).hexdigest()


def deliver(
    round_id: RoundId,
    update: Annotated[Path, typer.Argument(help="Your update, as one file.", exists=True, dir_okay=False)],
    url: Url,
    token: Token,
    key: Key = DEFAULT_KEY,
    json: Json = False,
) -> None:
    """Claim your delivery before the update leaves; where updates travel sealed, send the UPDATE.sealed made here.

    The claim is signed with your key, where you registered with one.

    [bold]Example[/bold]

      privmarket seller deliver round-0123456789abcdef update.npz --url https://HOST --token TOKEN
    """
    content = update.read_bytes()
    to_send = update
    opening = None
    with clients.BrokerClient(url, token, key=_own_key(key)) as client:
        if client.read(f"/v1/tasks/{client.round(round_id)['task_id']}")["delivery"] == "sealed":
            made = sealed.seal(content)
            to_send = update.with_name(update.name + ".sealed")
            write_atomically(to_send, made.ciphertext)
            content = made.ciphertext
            opening = made.key
        answer = client.claim_delivery(round_id, hashlib.sha256(content).hexdigest(), opening)
    note(f"now send {to_send} to the buyer")
    print_json(answer) if json else print(f"claimed {answer['update_sha256']}: entry {answer['entry']} of the log")


def payout(
    amount_micro: Annotated[int, typer.Argument(help="Micro-units: 1,000,000 are one unit of money.", min=1)],
    url: Url,
    token: Token,
    key: Key = DEFAULT_KEY,
    json: Json = False,
) -> None:
    """Ask for money of your account, signed with your key where you registered with one; an operator pays it out.

    [bold]Example[/bold]

      privmarket seller payout 2500000 --url https://HOST --token TOKEN
    """
    with clients.BrokerClient(url, token, key=_own_key(key)) as client:
        answer = client.request_payout(amount_micro)
    print_json(answer) if json else print(f"asked for {amount_micro} µ: entry {answer['entry']} of the log")


def dispute(
    round_id: RoundId,
    reason: Annotated[str, typer.Argument(help="Why the rejection is wrong.")],
    url: Url,
    token: Token,
    key: Key = DEFAULT_KEY,
    json: Json = False,
) -> None:
    """Object to the rejection of your update, signed with your key where you registered with one.

    [bold]Example[/bold]

      privmarket seller dispute round-0123456789abcdef "the shape is as asked" --url https://HOST --token TOKEN
    """
    with clients.BrokerClient(url, token, key=_own_key(key)) as client:
        answer = client.dispute(round_id, reason)
    print_json(answer) if json else print(f"disputed: the arbiter rules until {answer['ruling_deadline_ms']}")


def entries(url: Url, token: Token, json: Json = False) -> None:
    """List all entries of the log in your name, newest first. One that you did not make is a forgery: keep it.

    [bold]Example[/bold]

      privmarket seller entries --url https://HOST --token TOKEN
    """
    with clients.BrokerClient(url, token) as client:
        found = list(client.my_entries())
    if json:
        print_json(found)
        return
    for one in found:
        print(f"{one['seq']} {one['at_ms']} {one['kind']} {one['subject']} {one['details']}")


def _own_key(key: Path) -> signatures.SigningKey | None:
    """The key in the file; None where there is no file, for those who registered without one."""
    return signatures.SigningKey.read(key) if key.exists() else None


def bid(
    round_id: RoundId,
    valuation: Annotated[float, typer.Option(help="Money that you ask per unit of ε.", min=0)],
    epsilon: Annotated[float, typer.Option(help="The most ε that you sell in this round.", min=0)],
    url: Url,
    token: Token,
    data_size: Annotated[float, typer.Option(help="Your number of records.", min=0)] = 1.0,
    key: Key = DEFAULT_KEY,
    json: Json = False,
) -> None:
    """Place a signed bid; where bidders seal, only a commitment leaves, and `reveal` must follow.

    What is needed to reveal is kept beside the key, in a file that only you can read.

    [bold]Example[/bold]

      privmarket seller bid round-0123456789abcdef --valuation 0.4 --epsilon 1 --url https://HOST --token TOKEN
    """
    openings = key.with_suffix(".openings.json")
    with clients.BrokerClient(url, token, key=signatures.SigningKey.read(key), openings=openings) as client:
        answer = client.bid(round_id, valuation, epsilon, data_size=data_size)
    print_json(answer) if json else print(f"bid {answer['commitment']} is entry {answer['entry']} of the log")


def reveal(round_id: RoundId, url: Url, token: Token, key: Key = DEFAULT_KEY, json: Json = False) -> None:
    """Open a bid that you sealed, once bidding has ended. A bid that is not revealed in time does not count.

    [bold]Example[/bold]

      privmarket seller reveal round-0123456789abcdef --url https://HOST --token TOKEN
    """
    openings = key.with_suffix(".openings.json")
    with clients.BrokerClient(url, token, key=signatures.SigningKey.read(key), openings=openings) as client:
        answer = client.reveal(round_id)
    print_json(answer) if json else print(f"revealed: {answer['epsilon']:g} ε at {answer['valuation']:g} a unit")


def prove(
    entry: Annotated[int, typer.Argument(help="Number of the entry, as `bid` and `deliver` print it.")],
    url: Url,
    token: Token,
    json: Json = False,
) -> None:
    """Fetch an entry of the log that concerns you, and the proof that it is in the log; exit code 1 if it is not.

    [bold]Example[/bold]

      privmarket seller prove 1234 --url https://HOST --token TOKEN
    """
    with clients.BrokerClient(url, token) as client:
        answer = client.prove(entry)
    size = counted(answer["size"], "entry", "entries")
    print_json(answer) if json else print(f"entry {entry} is in the log of {size}")


def add_to(app: typer.Typer) -> None:
    """Adds these commands to `privmarket seller`."""
    for command in (init, register, attest, bid, reveal, deliver, dispute, payout, prove, entries):
        app.command(command.__name__)(command)
