"""Failures of a guarded app that do not depend on its records: they are refused, and cost the site nothing.

An app that fails is answered by noise alone, charged like any other answer, since whether it fails may depend on a
record. A mistake in the setup fails in every round and would use up the site's lifetime, while the server sees
success. So what can be told from the message, the policy, the app's model and the arguments that it leaves out is
refused before anything is charged:

- arrays of other names or shapes than the app's model has;
- a model in which records mix, as `training.require_supported` finds without a record;
- `unit = "person"`, and a call without `persons=`;
- a name that is neither in the message nor in the configuration.

Nothing that is computed from the records decides: their number, shape, type and values may say who is among them.

The app's own code has read its records when it makes these mistakes, so one that makes them on purpose tells
something by them. A guard therefore decides once per run and kind of message, at the first one: an app that was
refused stays refused, and one that was not is not refused later. That is one bit per run. Arrays of another form
than those of the first message are refused without the app.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict, UserConfigValue

from privmarket._lazy import late
from privmarket.errors import PrivmarketError
from privmarket.flower._wire import Arrays

if TYPE_CHECKING:
    from torch import nn

    from privmarket import training as engine
    from privmarket.flower import _training as training
else:
    # torch: a message that is refused is answered without it
    engine = late("privmarket.training")
    training = late("privmarket.flower._training")

_STATE = "privmarket-guard"  # in a node's state: what was decided at the first message of each kind
_FITS = "fits "
WEIGHTS, SETUP = "weights", "setup"  # words of `_guard_mod.REFUSALS`
_LOOKUPS = {kind.__getitem__.__code__ for kind in (RecordDict, ArrayRecord, ConfigRecord, MetricRecord)}


class Misfit(PrivmarketError):
    """The app and what it was sent do not fit. `word` leaves; the message stays in the site's own log."""

    code = "refused"

    def __init__(self, word: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.word = word


class Named(dict[str, UserConfigValue]):
    """A configuration as an app sees it; a key that is missing is told from one that is missing elsewhere."""

    def __missing__(self, key: str) -> UserConfigValue:
        raise KeyError(key)


def array_forms(arrays: Arrays) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each array, in order of the names."""
    return sorted((name, tuple(array.shape)) for name, array in arrays.items())


def unlike(sent: Mapping[str, tuple[int, ...]], own: Mapping[str, tuple[int, ...]]) -> str:
    """In which arrays two models differ, in words: at most three of a kind."""

    def few(names: list[str]) -> str:
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    found = []
    if extra := [name for name in own if name not in sent]:
        found.append(f"the client's model has {few(extra)}, which the server did not send")
    if missing := [name for name in sent if name not in own]:
        found.append(f"the server sent {few(missing)}, which the client's model has not")
    shaped = [
        f"{name} {sent[name]} (the client's {own[name]})"
        for name in sent
        if own.get(name, sent[name]) != sent[name]
    ]
    if shaped:
        found.append(f"the server sent {few(shaped)}")
    return "; ".join(found)


def fitted(module: nn.Module, sent: Arrays) -> dict[str, str]:
    """Loads the weights that a server sent into a module, by their names or, where they have none, by their order.

    Returns:
        Name in the module → name in the message, of all that was loaded.

    Raises:
        Misfit: records mix in the module, as far as that is seen without a record, or the arrays are not its own.
    """
    try:
        engine.require_supported(module)
    except engine.ModelError as error:
        raise Misfit(SETUP, f"the model: {error.message}", error.hint) from error
    state = module.state_dict()
    own = list(state) if len(state) == len(sent) else list(training.trainable_arrays(module))
    names = {name: name for name in own} if set(own) == set(sent) else dict(zip(own, sent, strict=False))
    shapes = [tuple(state[name].shape) == tuple(sent[there].shape) for name, there in names.items()]
    if len(names) != len(sent) or len(own) != len(sent) or not all(shapes):
        differing = unlike(dict(array_forms(sent)), {name: tuple(state[name].shape) for name in own})
        raise Misfit(WEIGHTS, differing, "server and client must build the same model")
    for name, there in names.items():
        target = state[name]
        target.copy_(target.new_tensor(sent[there].astype(np.float64)).reshape(target.shape))
    return names


def of_failure(error: BaseException) -> Misfit | None:
    """The misfit that made an app fail: arrays that its model does not take, or a name that is nowhere.

    Only where the error was raised counts: within torch's `load_state_dict`, a record of Flower's or a
    configuration. Its text may quote a record.
    """
    place = _raised_in(error)
    if place is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and place is torch.nn.Module.load_state_dict.__code__:
        return Misfit(WEIGHTS, f"the app's model does not take the arrays: {error}", "build the model that is sent")
    if isinstance(error, KeyError) and place in {*_LOOKUPS, Named.__missing__.__code__}:
        return Misfit(
            SETUP, f"the app asks for {error}, which is in no message and no configuration", "check how it is spelt"
        )
    return None


def _raised_in(error: BaseException) -> CodeType | None:
    trace = error.__traceback__
    frame: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        trace = trace.tb_next
    return None if frame is None else frame.f_code


class Decision:
    """What was decided in this run about one kind of message; kept in the node's state, where no app sees it.

    Args:
        kind: the type of the message, such as `train`.
        sent: the arrays of the message.
    """

    def __init__(self, context: Context, kind: str, sent: Arrays) -> None:
        self._kind = kind
        self._form = hashlib.sha256(repr(array_forms(sent)).encode()).hexdigest()
        # Taken out of the state while the app runs; `keep` puts it back.
        record = context.state.pop(_STATE, None)
        self._known = dict(record) if isinstance(record, ConfigRecord) else {}

    def require_same(self) -> None:
        """Refuses what was refused before in this run, and arrays of another form than those that came first.

        Raises:
            Misfit: `weights` or `setup`.
        """
        known = str(self._known.get(self._kind, _FITS + self._form))
        if known in (WEIGHTS, SETUP):
            raise Misfit(
                known,
                "refused as the first message of this run was, see above",
                "mend the app and start another run; nothing is charged",
            )
        if known != _FITS + self._form:
            raise Misfit(
                WEIGHTS,
                "arrays of other names or shapes than in the first message of this run",
                "a run has one model; nothing is charged",
            )

    def settle(self, misfit: Misfit | None) -> None:
        """Decides at the first message, after the app was called; later ones follow what was decided.

        Raises:
            Misfit: the one that was found, at the first message.
        """
        if self._kind in self._known:
            return
        self._known[self._kind] = _FITS + self._form if misfit is None else misfit.word
        if misfit is not None:
            raise misfit

    def keep(self, context: Context) -> None:
        """Puts the decision into the node's state."""
        context.state.pop(_STATE, None)
        if self._known:
            context.state[_STATE] = ConfigRecord(self._known)
