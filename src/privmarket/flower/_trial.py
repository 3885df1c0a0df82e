"""A trial call of an app before anything is sold, so that errors of the app cost no ε.

`WalletMod(noise="records")` calls the app behind it with a message that is marked as a trial. The app builds its
model, loads its records and calls `train_privately`, which checks everything that it can check without reading a
value of a record, and then leaves the app by raising `Passed`. The app's answer is never sent. An app that fails is
refused, in one word. An app that returns without having called `train_privately` has trained without protection and
is refused, too.

Whether the owner's code fails before it calls `train_privately` may depend on its records. That is one bit per run,
and no ε accounts for it (docs/theory/finite-arithmetic.md).
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from privmarket.errors import DataError, PrivmarketError
from privmarket.flower import _wire as wire
from privmarket.flower._seller import Job
from privmarket.privacy._noise import NoiseSource
from privmarket.privacy._policy import PolicyRefusal, Reason

_MARK, _TOKEN = "trial", "token"
_PASSED = "privmarket-tried"  # in a node's state: the run for which a trial has passed
Handler = Callable[[Message, Context], Message]


class Passed(BaseException):  # not an Exception, so that the app's own `except Exception` does not catch it
    """The trial has passed."""


def job_of(message: Message, context: Context) -> Job:
    """The job for which an app behind `WalletMod` was called.

    Raises:
        WireError: the message carries no sale, or passed no `WalletMod`.
    """
    sale = wire.take(message.content, wire.Sale)
    record = message.content.config_records.get(wire.JOB)
    if record is None:
        raise wire.WireError(f"a sale without {wire.JOB}", 'put WalletMod(noise="records") before this app')
    return Job(
        sale, float(str(record["noise-multiplier"])), NoiseSource.from_system(), "", context, str(record["unit"])
    )


def is_trial(message: Message) -> bool:
    """Whether an app is called for a trial."""
    record = message.content.config_records.get(wire.JOB)
    return record is not None and bool(record.get(_MARK))


def require_runs(call_next: Handler, message: Message, context: Context, job: ConfigRecord, run: str) -> None:
    """Runs the app up to `train_privately`, once per run.

    Args:
        job: the record that the app gets under `wire.JOB`.
        run: the run's name.

    Raises:
        PolicyRefusal: `app`, `model` or `records`, with the error as its cause.
    """
    known = context.state.config_records.get(_PASSED)
    if known is not None and known.get("run") == run:
        return
    content = RecordDict({name: copy.deepcopy(record) for name, record in message.content.items()})
    content[wire.JOB] = ConfigRecord({**job, _MARK: True})
    trial = Message(content, metadata=message.metadata)  # type: ignore[call-overload]
    state = RecordDict(dict(context.state))
    try:
        call_next(trial, context)
    except Passed:
        state[_PASSED] = ConfigRecord({"run": run})
    except PolicyRefusal:
        raise
    except DataError as error:
        raise PolicyRefusal(Reason.RECORDS, str(error)) from error
    except PrivmarketError as error:
        reason = Reason.MODEL if error.code == "bad-model" else Reason.RECORDS
        raise PolicyRefusal(reason, str(error)) from error
    except Exception as error:  # the app is the owner's own code and may raise anything
        raise PolicyRefusal(Reason.APP, f"{type(error).__name__}: {error}") from error
    else:
        raise PolicyRefusal(
            Reason.APP,
            "the app came back without pm.flower.train_privately, so its update would be unprotected",
            'call it in place of the training loop, or write noise="update"',
        )
    finally:
        context.state = state


# Token of a message → the weights that `train_privately` released for it, for a mod in this process.
_released: dict[str, Mapping[str, np.ndarray]] = {}


def new_token() -> str:
    """A new name for one call of an app, in its record `wire.JOB`."""
    return secrets.token_hex(8)


def _token(message: Message) -> str:
    record = message.content.config_records.get(wire.JOB)
    return "" if record is None else str(record.get(_TOKEN, ""))


def note_release(message: Message, arrays: Mapping[str, np.ndarray]) -> None:
    """Stores the weights that `train_privately` made for a message."""
    token = _token(message)
    if token:
        _released[token] = {name: array.copy() for name, array in arrays.items()}


def require_released(message: Message, sent: Mapping[str, np.ndarray], answered: Mapping[str, np.ndarray]) -> None:
    """Refuses an answer that differs from what `train_privately` made.

    Trained weights must be those that it left in the model, to the last bit. All other arrays, such as frozen
    weights, must be as the server sent them, since changes of the app would have no noise.

    Raises:
        PrivmarketError: the app trained without it, or went on afterwards.
    """
    released = _released.pop(_token(message), None)
    if released is None:
        raise PrivmarketError(
            "the app answered without pm.flower.train_privately", "call it in place of the training loop"
        )
    if set(answered) != set(sent):
        raise PrivmarketError(
            f"the app answered with arrays {sorted(answered)[:4]}, it was sent {sorted(sent)[:4]}",
            "answer with ArrayRecord(model.state_dict())",
        )
    for name, array in answered.items():
        before = released.get(name, sent[name])
        if array.shape != before.shape or not np.array_equal(array, before, equal_nan=array.dtype.kind == "f"):
            raise PrivmarketError(
                f"{name} is not as train_privately left it", "send the model's state right after train_privately"
            )
