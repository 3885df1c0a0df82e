"""Secure sums over a bad network: exact, or none; and what the fuzzer catches."""

from privmarket.secagg import Client, Server, _server
from privmarket_studies.secagg_fuzz import play_sum, play_sums


def test_two_hundred_sums_are_exact_or_stay_closed():
    found = play_sums(200, seed=1000)
    assert found["faults"] == []
    assert 60 < found["opened"] < 190  # both kinds of end are played; the seed fixes most of what happens


class Forgetful(Client):
    """A seller whose state is put back before every message, as a copied context would be."""

    def __init__(self, identity, journal):
        super().__init__(identity, journal)
        self.states = {}

    def _at(self, journal, digest, step):
        state, terms = self.states.get((digest, step), (None, None))
        if state is None:
            state, terms = super()._at(journal, digest, step)
            self.states[digest, step] = (state, terms)
        return state, terms


class CountsTwice(Server):
    """A server that adds a vector again when it comes twice."""

    def receive(self, message):
        counted = super().receive(message)
        if not counted and type(message).__name__ == "MaskedInput" and message.sender in self._came:
            self._came.discard(message.sender)
            return super().receive(message)
        return counted


def test_a_seller_that_forgets_is_caught():
    faults = [one for seed in range(40) for one in play_sum(seed, make_client=Forgetful).faults]
    assert faults
    assert all("twice" in one for one in faults)


def test_a_server_that_counts_twice_opens_nothing():
    """Masks that do not cancel are noticed by the server itself, so its mistake costs sums, never a wrong one."""
    played = [play_sum(seed, make_server=CountsTwice) for seed in range(40)]
    honest = [play_sum(seed) for seed in range(40)]
    assert [one for sum_ in played for one in sum_.faults] == []
    assert sum(one.opened for one in played) < sum(one.opened for one in honest)


def test_a_server_that_does_not_look_is_caught(monkeypatch):
    """The broken subject for the check of the total: it counts twice, and does not look whether masks cancel."""
    keep = _server.without_count
    monkeypatch.setattr(
        _server, "without_count", lambda total, bits, _: keep(total, bits, int(total[-1]) % 2**bits)
    )
    faults = {one for seed in range(40) for one in play_sum(seed, make_server=CountsTwice).faults}
    assert faults == {"the total is not the survivors' sum"}
