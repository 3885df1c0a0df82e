"""Sellers of a secure sum for tests: fixed identities, small vectors, journals in memory."""

import hashlib
from dataclasses import replace

import numpy as np

from privmarket.secagg import (
    Client,
    MemoryJournal,
    Server,
    SigningIdentity,
    SumClosed,
    SumRefusal,
    SumTerms,
    answer,
    exact_bits,
    from_bytes,
    to_bytes,
)

SELLERS, LENGTH, LARGEST = 7, 5, 1000
IDENTITIES = sorted(
    (SigningIdentity(hashlib.sha256(b"seller %d" % i).digest()) for i in range(40)), key=lambda one: one.public_key
)
STRANGER = SigningIdentity(hashlib.sha256(b"stranger").digest())


def terms_of(sellers=SELLERS, **changes) -> SumTerms:
    """The terms of a small sum: 7 sellers, of which 1 may collude and 6 must come through."""
    members = tuple(one.public_key for one in IDENTITIES[:sellers])
    bits = exact_bits(LARGEST, sellers)
    made = SumTerms("run", 0, members, 2 / 3, LENGTH, bits, LARGEST, hashlib.sha256(b"awards").digest())
    return replace(made, **changes)


def vector_of(number, length=LENGTH):
    """What seller number i adds."""
    return np.random.default_rng([7, number]).integers(-LARGEST, LARGEST + 1, length)


class Play:
    """One sum, step by step, with everything that was sent kept for a look.

    Args:
        gone: phase name → the sellers that do not answer from there on.
        client: makes a seller's client; the product's unless given.
        before: changes a server's message to a seller; None keeps it from that seller.
        after: changes a seller's answer; None loses it.
    """

    def __init__(self, terms=None, *, gone=None, client=Client, before=None, after=None, journals=None):
        self.terms = terms or terms_of()
        self.server = Server(self.terms)
        self.journals = journals or {i: MemoryJournal() for i in range(self.terms.sellers)}
        by_key = {one.public_key: one for one in IDENTITIES}
        self.identities = [by_key[key] for key in self.terms.members]
        self.clients = [client(self.identities[i], self.journals[i]) for i in range(self.terms.sellers)]
        self.gone = gone or {}
        self.before = before or (lambda number, message: message)
        self.after = after or (lambda number, message: message)
        self.sent = {}
        self.answers = {}
        self.refusals = {}
        self.closed = None
        self.waiting = self.server.start()

    def vector(self, number):
        return vector_of(number, self.terms.length)

    def step(self):
        """Carries one round of messages; whether there is another."""
        phase = self.server.phase.name
        missing = {one for name, some in self.gone.items() if _at_or_after(phase, name) for one in some}
        for number, message in self.waiting.items():
            changed = None if number in missing else self.before(number, message)
            if changed is None:
                continue
            self.sent[phase, number] = changed
            try:
                reply = answer(self.clients[number], from_bytes(to_bytes(changed)), self.vector(number))
            except SumRefusal as error:
                self.refusals[number] = error
                continue
            self.answers[phase, number] = reply
            reply = self.after(number, reply)
            if reply is not None:
                self.server.receive(from_bytes(to_bytes(reply)))
        try:
            self.waiting = self.server.advance()
        except SumClosed as error:
            self.closed = str(error)
            self.waiting = {}
        return bool(self.waiting)

    def until(self, phase):
        """Carries messages until the server waits for that phase's answers."""
        while self.waiting and self.server.phase.name != phase:
            self.step()
        return self

    def run(self):
        """Plays to the end; the total, or None."""
        while self.step():
            pass
        return None if self.server.result is None else self.server.result.total

    def causes(self):
        return {error.cause for error in self.refusals.values()}


def total_of(numbers, length=LENGTH):
    return sum(vector_of(number, length) for number in numbers)


PHASES = ["KEYS", "SHARES", "CHECKS", "INPUTS", "CONFIRMATIONS", "OPENINGS", "DONE"]


def _at_or_after(phase, name):
    return PHASES.index(phase) >= PHASES.index(name)
