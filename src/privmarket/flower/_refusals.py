"""Refusals of a client: checks of what a server sends, and the single word that is answered instead.

Whatever goes wrong in a client, its answer is a word of `Reason`. Texts of errors, which may quote a label or a
record ("index 7 is out of bounds"), stay in the client's own log. A refusal before training reveals nothing about
the records' values. A single record that cannot be used adds nothing to the sum, and the server is not told.
`failed` says that training itself broke, for instance because of a full disk. That word may depend on the records
and no ε accounts for it, so what was reserved stays spent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from privmarket._settings import TOLERANCE
from privmarket.errors import PrivmarketError, WalletError
from privmarket.flower import _failures as failures, _wire as wire
from privmarket.flower._wire import Refusal, Sale
from privmarket.privacy._calibration import ReleaseFamily
from privmarket.privacy._policy import PolicyRefusal, Reason
from privmarket.privacy._wallet_store import SoldBeforeError, WalletFileError
from privmarket.rounds import Terms

if TYPE_CHECKING:
    from privmarket.broker._client import BrokerClient

_log = logging.getLogger(failures.LOGGER)
# Reasons that the owner of a client can remove by changing its own code or records.
OWN_FAULTS = frozenset({Reason.FAILED, Reason.APP, Reason.MODEL, Reason.RECORDS})
REFUSED = "privmarket: "  # how the text of an error reply begins, to servers without a market
_REFUSALS = "privmarket-refusals"  # how often a node refused, by reason
# Characters of a server, in a file that the client's owner reads; and in a line of the log, with our own words.
LONGEST_TEXT, _LONGEST_LINE = 200, 2000


@dataclass(frozen=True)
class Task:
    """The task that a broker published, with which a client compares what the server says.

    Attributes:
        buyer: who buys.
        broker: the broker's address.
        family, epsilon_max: what every seller of the task releases, and the most that it may offer.
        trust: the trust model of its sales.
        plan: clip norm, learning rate and other settings of the training, if the task states them.
    """

    buyer: str
    broker: str
    family: ReleaseFamily
    epsilon_max: float
    trust: str
    plan: Mapping[str, float]


def refuse(message: Message, context: Context, error: Exception, reason: Reason | None = None) -> Message:
    """The answer to an error: one word, counted in the node's state. Details go to the client's own log.

    A server of the market reads the word. Any other gets an error reply with fixed words, which Flower's strategies
    count as a failure of this node; a reply of another form would end its run.

    Args:
        reason: the word; that of the error unless given.
    """
    word = reason or reason_of(error)
    note_refusal(context, word, error)
    if not any(name.startswith(wire.OURS) for name in message.content):
        text = f"{REFUSED}{word.value}: {word.meaning}"
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, text), reply_to=message)
    return Message(wire.put(RecordDict(), Refusal(str(word))), reply_to=message)


def note_refusal(context: Context, reason: Reason, error: Exception) -> None:
    """Counts a refusal and logs it for the client's owner; errors of the owner's code with their line.

    The first failure of a kind is logged with its whole traceback, further ones with one line.
    """
    counts = refusals(context)
    if reason in OWN_FAULTS:
        client = str(context.node_config.get("partition-id", context.node_id))
        first = None if counts.get(reason.value) else error
        _log.error(
            "%s\n(the server hears %r and no more)", failures.marked(client, error), reason.value, exc_info=first
        )
    else:
        _log.warning("refused, %s: %s", reason.value, one_line(str(error), _LONGEST_LINE))
    counts[reason.value] = counts.get(reason.value, 0) + 1
    context.state[_REFUSALS] = ConfigRecord({**counts})


def one_line(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text that a server may have written, made safe for a log: short, and without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:longest])


def refusals(context: Context) -> dict[str, int]:
    """How often this node refused so far, by reason."""
    record = context.state.get(_REFUSALS)
    known = dict(record) if isinstance(record, ConfigRecord) else {}
    return {key: value for key, value in known.items() if isinstance(value, int)}


def reason_of(error: Exception) -> Reason:
    """The word for an error: that of a refusal, or of an error that depends on the message alone."""
    if isinstance(error, PolicyRefusal):
        return error.reason
    if isinstance(error, WalletError):
        return Reason.SOLD if isinstance(error, SoldBeforeError) else Reason.WALLET
    if isinstance(error, WalletFileError):
        return Reason.WALLET
    if isinstance(error, wire.WireError):
        return Reason.MESSAGE
    return Reason.FAILED


@contextmanager
def becomes(reason: Reason, *kinds: type[Exception]) -> Iterator[None]:
    """A context in which errors of these kinds become a refusal for this reason."""
    try:
        yield
    except kinds as error:
        raise PolicyRefusal(reason, str(error)) from error


def fetch_task(broker: BrokerClient, round_id: str) -> Task:
    """The task of a round, from the broker itself."""
    if not round_id:
        raise PolicyRefusal(Reason.BROKER, "this client sells through a broker, and the call names no round there")
    with becomes(Reason.BROKER, PrivmarketError):
        task = broker.read(f"/v1/tasks/{broker.round(round_id)['task_id']}")
    family = ReleaseFamily(task["sampling_rate"], task["steps"], task["delta"])
    named = ("clip_norm", "learning_rate", "expected_batch", "honest_share")
    plan = {name: float(task[name]) for name in named if isinstance(task.get(name), int | float)}
    trust = str(task.get("trust", "local"))
    return Task(str(task["buyer_id"]), broker.url.rstrip("/"), family, float(task["epsilon_max"]), trust, plan)


def check_task(asked: Terms | Sale, task: Task) -> None:
    """Refuses a call or an order that is not what the broker published."""
    if asked.family != task.family:
        raise PolicyRefusal(Reason.AWARD, f"asked for {asked.family}, the broker published {task.family}")
    if asked.trust != task.trust:
        raise PolicyRefusal(Reason.AWARD, f"trust is {asked.trust!r}, the broker published {task.trust!r}")
    for name, value in task.plan.items():
        if hasattr(asked, name) and not _equal(float(getattr(asked, name)), value):
            raise PolicyRefusal(Reason.AWARD, f"{name} is {getattr(asked, name)}, the broker published {value}")


def check_award(sale: Sale, broker: BrokerClient) -> None:
    """Refuses an order that is not the award that the broker gave this client: its ε, its money."""
    mine = str(broker.me()["id"])
    found = [award for award in broker.awards(sale.broker_round) if award["seller_id"] == mine]
    if len(found) != 1:
        raise PolicyRefusal(Reason.AWARD, f"{len(found)} awards for this client in round {sale.broker_round}")
    award = found[0]
    if not _equal(sale.epsilon, float(award["epsilon"])):
        raise PolicyRefusal(Reason.AWARD, f"asked for ε = {sale.epsilon}, awarded {award['epsilon']}")
    if sale.payment_micro != award["payment_micro"]:
        raise PolicyRefusal(Reason.AWARD, f"pays {sale.payment_micro} µ, awarded {award['payment_micro']}")


def array_shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Maps the name of each array to its shape."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other))
