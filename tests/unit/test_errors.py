"""Errors: one family, and wrong values are ValueErrors too."""

import pytest

import privmarket as pm
from privmarket import errors


@pytest.mark.parametrize(
    "kind", [errors.BidError, errors.ConfigurationError, errors.OutcomeError, errors.PrivacyError]
)
def test_a_wrong_value_is_a_value_error(kind):
    with pytest.raises(ValueError, match=r"^what \(hint\)$"):
        raise kind("what", "hint")
    assert issubclass(kind, pm.PrivmarketError)


def test_what_is_not_about_a_value_is_none():
    assert not issubclass(errors.WriteError, ValueError)
    assert issubclass(errors.MissingPartError, ImportError)


def test_the_next_name_is_guessed():
    assert "did you mean 'pac'?" in errors.UnknownNameError.among("rule", "pca", ["pac", "vcg"]).hint
