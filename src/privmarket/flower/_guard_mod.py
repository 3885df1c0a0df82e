"""A guard for a Flower site without a market: a mod that releases only what the site's policy allows.

The server is not trusted, and the app's reply is not passed on. A new reply is built: record names, array names,
shapes and dtypes are those of the message; the number of records and the names of metrics are the policy's. All
numbers that depend on records are clipped, have exact noise, and are charged to the site's wallet before they
leave. Everything else that a server may ask for (queries, initial parameters, evaluation that is not declared) is
answered by an error reply with fixed words, which Flower's strategies count as a failure of this node.

Code in the app's own process can get around all of this: see docs/how-to/guard-a-site.md.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

from privmarket._files import in_words
from privmarket._lazy import late
from privmarket.errors import ConfigurationError, PrivmarketError, WalletError
from privmarket.flower import _guard_misfit as misfits, _wire as wire
from privmarket.flower._bundle import warn_if_packed
from privmarket.flower._guard_misfit import Decision, Misfit, array_forms
from privmarket.flower._guard_open import opened
from privmarket.flower._guard_release import GuardedReply
from privmarket.flower._refusals import one_line
from privmarket.flower._seller import relative_place
from privmarket.flower._wire import Arrays
from privmarket.privacy._policy import PolicyRefusal, SellerPolicy
from privmarket.privacy._wallet_store import WalletFile, WalletFileError

if TYPE_CHECKING:
    from torch import nn

    from privmarket.flower import _training as training
    from privmarket.flower._client import RecordsOf
    from privmarket.training import Loss
else:
    # torch: a message that is refused is answered without it
    training = late("privmarket.flower._training")

CallNext = Callable[[Message, Context], Message]

POLICY_KEY = "policy"  # in a node's configuration: the site's policy file
POLICY_VARIABLE = "PRIVMARKET_POLICY"  # in the environment of the process in which a node's app runs
_FIT, _EVALUATE = "fitins.parameters", "evaluateins.parameters"  # in messages of strategies of Flower's older API
_KINDS_OF_ARRAY = "fiub"  # floating point, and the integers and flags that go back as they came

_log = logging.getLogger("privmarket.guard")

# The only texts that leave instead of a release.
REFUSALS = {
    "not-allowed": "the site's policy lets nothing of this kind out",
    "wallet": "the site's lifetime privacy budget does not hold another release",
    "weights": "arrays that the site does not train: their type, size or values",
    "message": "a message that cannot be read: the guard answers one record of arrays",
    "setup": "the site's guard is not set up; its owner finds the cause in the site's own log",
    "failed": "the site failed; its owner finds the cause in the site's own log",
}


class GuardRefusal(PrivmarketError):
    """A refusal of a guard. `word` leaves, with its fixed sentence; the message stays in the site's own log."""

    code = "refused"

    def __init__(self, word: str, message: str, hint: str = "see the [guard] table of the site's policy") -> None:
        super().__init__(message, hint)
        self.word = word


def site_name(context: Context) -> str:
    """The node's `partition-id` if it has one, as in simulations; else `site`."""
    partition = str(context.node_config.get("partition-id", "site"))
    if not partition.replace("-", "").replace("_", "").isalnum():
        raise ConfigurationError(f"a partition-id of {partition!r}", "give letters, digits and hyphens")
    return partition


class GuardMod:
    """A Flower client mod that releases what a site's policy allows, and charges it to the site's wallet.

    >>> app = ClientApp(mods=[GuardMod(policy="site.toml")])  # doctest: +SKIP

    It must be the first of the app's own mods; mods of Flower may stand before it. The server and its strategy stay
    as they are. The policy is the site's: `--node-config 'policy="/etc/site.toml"'` or the environment variable
    PRIVMARKET_POLICY replace the file that an app names, and a run's configuration is never read.

    Args:
        policy: the site's policy file, or the policy itself; see docs/how-to/guard-a-site.md.
        name: the site's name, which stands for `{client}` in the wallet's file name.
        model: makes the model that is trained. Arrays that do not fit it are refused before the app is called. With
            `data`, too, the guard trains by itself, record by record, and does not call the app's train function.
        data: gives the node's (inputs, labels) or (inputs, labels, persons).
        loss: gives one loss per record.
    """

    def __init__(
        self,
        policy: SellerPolicy | Path | str | None = None,
        *,
        name: Callable[[Context], str] = site_name,
        model: Callable[[], nn.Module] | None = None,
        data: RecordsOf | None = None,
        loss: Loss | None = None,
    ) -> None:
        if data is not None and model is None:
            raise ConfigurationError("GuardMod got data without a model", "give both, or call train_privately")
        self._given = policy
        if isinstance(policy, Path | str) and not os.environ.get(POLICY_VARIABLE) and Path(policy).exists():
            SellerPolicy.read(policy)  # mistakes in the file are reported when the app starts
        self._name = name
        self._model = model
        self._data = data
        self._loss = loss
        self._trainable: dict[str, Sequence[str] | None] = {}  # site → arrays that training by records changed
        self._warned: set[str] = set()

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Handles a message as a Flower mod: what leaves is a release that was charged, or fixed words."""
        try:
            return self._answer(message, context, call_next)
        except (GuardRefusal, Misfit) as refusal:
            return _refuse(message, refusal.word, refusal)
        except (WalletError, WalletFileError) as error:
            return _refuse(message, "wallet", error)
        except PolicyRefusal as refusal:
            return _refuse(message, "weights", refusal)
        except Exception as error:
            _log.exception("the guard failed; the server hears so and no more")
            return _refuse(message, "failed", error)

    def _answer(self, message: Message, context: Context, call_next: CallNext) -> Message:
        beside = self._mods_of_the_app()
        kind = message.metadata.message_type
        category = kind.partition(".")[0]
        if category not in ("train", "evaluate"):
            raise GuardRefusal(
                "not-allowed", f"{one_line(kind)}: only training and declared evaluation are answered"
            )
        policy, client = self._site(context)
        rules = policy.guard
        metrics = rules.train if category == "train" else rules.evaluate
        if category == "evaluate" and not metrics:
            raise GuardRefusal(
                "not-allowed", "evaluate, and the policy has no [guard.evaluate]", "declare its metrics there"
            )
        if "adaptiveclipping_mod" in beside and category == "train" and "norm_bit" not in metrics:
            raise GuardRefusal(
                "setup",
                "adaptiveclipping_mod behind GuardMod: its norm_bit is a number about the site's records",
                "declare it: [guard.train] norm_bit = { range = [0, 1], epsilon = 0.1 }; or leave the mod out",
            )
        form = Form.of(message.content, category)
        if form.is_legacy and category == "evaluate" and "loss" not in metrics:
            raise GuardRefusal("not-allowed", "evaluate of the older API, and [guard.evaluate] has no loss")
        sent = form.arrays(message.content)
        policy.check_weights({name: array for name, array in sent.items() if array.dtype.kind == "f"})
        reply = GuardedReply(policy, _wallet(policy, client), client, context, category, sent, metrics)
        reply.trainable = self._trainable.get(client)
        warn_if_packed(reply.wallet.path)
        try:
            reply.check_wallet()
        except OSError as error:
            raise GuardRefusal(
                "setup",
                f"the wallet {reply.wallet.path} cannot be written: {in_words(error)}",
                "let the user that runs the client write there, or name another place by `wallet` in the policy",
            ) from error
        decision = Decision(context, kind, sent)
        try:
            decision.require_same()
            if self._model is not None:
                self._require_fit(self._model, sent)
            content = self._ask_the_app(message, context, call_next, reply, decision)
        finally:
            decision.keep(context)
        arrays: Arrays = {}
        if category == "train":
            arrays = self._released(reply, content)
            self._trainable[client] = reply.trainable
        reply.charge(reply.metric_charges())
        values = reply.metric_values(content)
        reply.close(arrays or {name: np.array([value]) for name, value in values.items()})
        return Message(form.reply(arrays, values, policy), reply_to=message)

    def _require_fit(self, model: Callable[[], nn.Module], sent: Arrays) -> None:
        """Refuses arrays that do not fit the site's model, which is made without its records."""
        try:
            module = model()
        except Exception as error:  # the function is the app's
            raise GuardRefusal("setup", f"model= fails: {type(error).__name__}: {error}", "mend it") from error
        misfits.fitted(module, sent)

    def _site(self, context: Context) -> tuple[SellerPolicy, str]:
        """The site's policy and name; never from the run's configuration, which belongs to who submits the run."""
        for key in sorted({POLICY_KEY, "wallet", "wallets"} & set(context.run_config)):
            self._warn(f"the run's configuration names {key}; it is not asked: the site's own configuration is")
        place = context.node_config.get(POLICY_KEY) or os.environ.get(POLICY_VARIABLE) or self._given
        if place is None:
            raise GuardRefusal(
                "setup",
                "this guard has no policy",
                f'give GuardMod(policy="site.toml"), or --node-config \'{POLICY_KEY}="/etc/site.toml"\'',
            )
        if not isinstance(place, SellerPolicy) and (note := relative_place(str(place))):
            self._warn(note)
        try:
            policy = place if isinstance(place, SellerPolicy) else SellerPolicy.read(str(place))
            if not isinstance(place, SellerPolicy):
                warn_if_packed(Path(str(place)))
            return policy, self._name(context)
        except Exception as error:  # the name is the app's own function
            where = "" if isinstance(place, SellerPolicy) else f" ({Path(str(place)).absolute()})"
            raise GuardRefusal(
                "setup", f"the guard's policy{where}: {error}", "mend the file, or name another"
            ) from error

    def _ask_the_app(
        self,
        message: Message,
        context: Context,
        call_next: CallNext,
        reply: GuardedReply,
        decision: Decision,
    ) -> RecordDict | None:
        """Calls the app on copies of message and context, and returns its reply; None if it failed.

        The app cannot change the original message, from which the reply is derived, nor the node's configuration,
        which names the wallet. Its state is kept, except entries of Flower's mods and of the guard.

        Raises:
            Misfit: app and message do not fit, whatever the records are, and this is the run's first message.
        """
        records = {
            name: deepcopy(record) for name, record in message.content.items() if not name.startswith(wire.OURS)
        }
        inner = Message(RecordDict(records), metadata=copy(message.metadata))  # type: ignore[call-overload]
        masks = deepcopy(context.state.get(RECORD_KEY_STATE))
        own = copy(context)
        own.node_config = misfits.Named(context.node_config)
        own.run_config = misfits.Named(context.run_config)
        reply.context = own
        content: RecordDict | None = None
        failure: BaseException | None = None
        try:
            with opened(reply):
                if self._model is not None and self._data is not None and reply.kind.startswith("train"):
                    inputs, labels, persons = training.columns_of(self._data(own))
                    reply.train(self._model(), inputs, labels, self._loss, persons)
                    content = RecordDict()
                else:
                    answer = call_next(inner, own)
                    if answer.has_error():
                        raise RuntimeError(f"an error reply: {answer.error.reason}")
                    content = RecordDict(dict(answer.content.items()))
        except BaseException as error:  # also an exit, which would end the process without a reply
            if isinstance(error, KeyboardInterrupt):
                raise
            if reply.is_short:  # two messages at once; errors of the app itself are handled below
                raise WalletError("the wallet was used up while the app ran", "see the statement") from error
            failure = error
        finally:
            if isinstance(own.state, RecordDict):
                context.state = own.state
            # Flower's secure aggregation keeps there what it sends later, without passing the guard.
            context.state.pop(RECORD_KEY_STATE, None)
            if masks is not None:
                context.state[RECORD_KEY_STATE] = masks
        misfit = reply.misfit or (None if failure is None else misfits.of_failure(failure))
        decision.settle(None if reply.charged else misfit)
        if failure is not None:
            self._failed(reply, failure)
        return content

    def _failed(self, reply: GuardedReply, error: BaseException) -> None:
        """Logs for the site that the app failed; tells the server only if the policy says so."""
        if reply.rules.failures == "tell":
            _log.error("the app failed; the server hears so and no more", exc_info=error)
            raise GuardRefusal("failed", f"the app: {type(error).__name__}") from error
        leaves = "noise alone" if reply.released is None else "what train_privately released"
        _log.error("the app failed; %s leaves, and is charged. Mend the app, or stop it", leaves, exc_info=error)

    def _released(self, reply: GuardedReply, content: RecordDict | None) -> Arrays:
        """The arrays that leave; they are charged when this returns."""
        if reply.released is not None:
            return reply.released
        if reply.rules.training == "records" or reply.charged:
            if content is not None:
                error = ConfigurationError(
                    'the policy says training = "records", and the app did not train by train_privately',
                    "call it in the app, or change [guard] training",
                )
                self._failed(reply, error)
            if not reply.charged:
                reply.charge([reply.records_charge()])
            return reply.noise_of_records()
        trained = None if content is None else self._trained(reply, content)
        reply.charge([reply.update_charge()])
        return reply.noisy_update(trained)

    def _trained(self, reply: GuardedReply, content: RecordDict) -> Arrays | None:
        """The arrays that the app returned; None, for no change, if they are not of the form that was sent."""
        try:
            trained = wire.read_arrays(content, None)
            if array_forms(trained) != array_forms(reply.sent):
                raise ConfigurationError("the app returned other arrays than it was sent", "return the same names")
            return {name: array.astype(np.float64) for name, array in trained.items()}
        except Exception as error:  # the bytes are the app's
            self._failed(reply, error)
            return None

    def _mods_of_the_app(self) -> list[str]:
        """The names of the mods behind this one; refuses if messages or replies could bypass the guard.

        Flower tells a mod nothing about its app, so the app is looked up among the callers. Its list of mods is not
        a public part of Flower; if it is not found, the guard refuses.

        Raises:
            GuardRefusal: a mod that is not Flower's stands before the guard and could add to its replies, the guard
                stands at one function only, or the app has a market's mod, too.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not ClientApp.__call__.__code__:
            frame = frame.f_back
        if frame is None:
            self._warn("no ClientApp among the callers: nothing can be said about mods that stand before the guard")
            return []
        app = frame.f_locals.get("self")
        mods = getattr(app, "_mods", None)
        if mods is None:  # an untested version of Flower: better no reply than an unchecked one
            raise GuardRefusal(
                "setup",
                "this version of Flower does not show the mods of an app, so the guard's place cannot be checked",
                "use a version of Flower that privmarket was tested with",
            )
        if self not in mods:
            raise GuardRefusal(
                "setup", "GuardMod stands at one function of the app", "give ClientApp(mods=[GuardMod(…), …])"
            )
        makers = [mod if hasattr(mod, "__name__") else type(mod) for mod in mods]
        names = [str(maker.__name__) for maker in makers]
        place = mods.index(self)
        if "WalletMod" in names:
            raise GuardRefusal(
                "setup", "GuardMod and WalletMod in one app", "choose one: both hold the same wallet"
            )
        for maker in makers[:place]:
            if not str(maker.__module__).startswith("flwr."):
                raise GuardRefusal("setup", f"{maker.__name__} stands before GuardMod", "put GuardMod first")
        if "LocalDpMod" in names:
            self._warn("LocalDpMod adds noise of its own, which no wallet counts; the guard's noise is enough")
        if getattr(getattr(app, "_lifespan", None), "__name__", "_empty_lifespan") != "_empty_lifespan":
            self._warn("the app has a lifespan function; Flower sends the text of its errors past every mod")
        return names[place + 1 :]

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text)


@dataclass(frozen=True)
class Form:
    """The form of replies to a message: of Flower's message API, or of its older API, whose records have fixed
    names.

    Attributes:
        arrays_record: the name of the message's record of arrays.
        is_legacy: whether a strategy of the older API asks.
        is_train: whether it is to be trained.
    """

    arrays_record: str
    is_legacy: bool
    is_train: bool

    @classmethod
    def of(cls, content: RecordDict, category: str) -> Form:
        """The form of a message.

        Raises:
            GuardRefusal: it has not exactly one record of arrays.
        """
        names = list(content.array_records)
        if len(names) != 1:
            hint = "send one"
            if any("secagg" in name for name in content.config_records):
                hint = "put secaggplus_mod before GuardMod in ClientApp(mods=[…])"
            raise GuardRefusal("message", f"{len(names)} records of arrays", hint)
        return cls(names[0], names[0] in (_FIT, _EVALUATE), category == "train")

    def arrays(self, content: RecordDict) -> Arrays:
        """Copies of the arrays that were sent.

        Raises:
            GuardRefusal: they cannot be read, or are not numbers.
        """
        try:
            sent = wire.read_arrays(content, self.arrays_record)
        except Exception as error:  # the bytes are the server's
            raise GuardRefusal("weights", f"arrays that cannot be read: {type(error).__name__}") from error
        for name, array in sent.items():
            if array.dtype.kind not in _KINDS_OF_ARRAY:
                raise GuardRefusal("weights", f"{one_line(name)} holds {array.dtype}")
        return sent

    def reply(self, arrays: Arrays, metrics: dict[str, float], policy: SellerPolicy) -> RecordDict:
        """The content of a reply; nothing in it was made by the app."""
        rules = policy.guard
        if not self.is_legacy:
            numbers: dict[str, MetricRecordValues] = {rules.examples_key: rules.examples, **metrics}
            content = RecordDict({rules.metrics_record: MetricRecord(numbers)})
            if self.is_train:
                content[self.arrays_record] = _written(arrays)
            return content
        name = "fitres" if self.is_train else "evaluateres"
        content = RecordDict(
            {
                f"{name}.num_examples": MetricRecord({"num_examples": rules.examples}),
                f"{name}.status": ConfigRecord({"code": 0, "message": ""}),
            }
        )
        if self.is_train:
            content[f"{name}.parameters"] = _written(arrays)
        else:
            content[f"{name}.loss"] = MetricRecord({"loss": metrics.pop("loss")})
        content[f"{name}.metrics"] = ConfigRecord({**metrics})
        return content


def _written(arrays: Arrays) -> ArrayRecord:
    """A record of arrays; scalars, such as a layer's counter, keep their shape."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def _wallet(policy: SellerPolicy, client: str) -> WalletFile:
    """The site's wallet, at the policy's place, the same for all runs and apps."""
    head = None if policy.head_file is None else policy.head_file.replace("{client}", client)
    place = policy.wallet.replace("{client}", client)
    return WalletFile(place, policy.epsilon_lifetime, policy.delta, head, policy.unit)


def _refuse(message: Message, word: str, error: Exception) -> Message:
    """An error reply of fixed words; the cause goes to the site's own log."""
    _log.warning("refused, %s: %s", word, one_line(str(error), 2000))
    text = f"privmarket guard: {word}: {REFUSALS[word]}"
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, text), reply_to=message)
