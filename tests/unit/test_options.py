"""Options: precedence, validation, and messages that say what to write."""

import dataclasses

import pytest

from jax_optireduce import Options, UsageError
from jax_optireduce._options import describe_difference, resolve


def test_argument_wins_over_environment_and_environment_over_default():
    environment = {"JAX_OPTIREDUCE_LANES": "3", "JAX_OPTIREDUCE_INCAST": "5"}
    options, origins = resolve({"lanes": 2}, environment)
    assert (options.lanes, options.incast, options.max_lag) == (2, 5, 2)
    assert origins == {"lanes": "argument", "incast": "JAX_OPTIREDUCE_INCAST"}


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("LANES", "4", 4),
        ("PEER_TIMEOUT_S", "2.5", 2.5),
        ("HADAMARD", "0", False),
        ("HADAMARD", "True", True),
        ("BIND_ADDRESS", "10.0.0.7", "10.0.0.7"),
        ("BACKEND", "xla", "xla"),
        ("FAULTS", "loss=0.01, seed=7", {"loss": 0.01, "seed": 7.0}),
    ],
)
def test_every_kind_of_field_is_read_from_the_environment(variable, text, value):
    options, _ = resolve({}, {f"JAX_OPTIREDUCE_{variable}": text, "HOME": "/"})
    assert getattr(options, variable.lower()) == value


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("JAX_OPTIREDUCE_BUCKET_BYTE", "'JAX_OPTIREDUCE_BUCKET_BYTES'"),
        ("JAX_OPTIREDUCE_LANE", "'JAX_OPTIREDUCE_LANES'"),
        ("JAX_OPTIREDUCE_lanes", "'JAX_OPTIREDUCE_LANES'"),
    ],
)
def test_unknown_variable_is_an_error_with_a_suggestion(variable, suggestion):
    with pytest.raises(UsageError, match=f"{variable}.*Did you mean {suggestion}"):
        resolve({}, {variable: "1"})


def test_unknown_argument_is_an_error_with_a_suggestion():
    with pytest.raises(UsageError, match=r"'peer_timeout'.*mean 'peer_timeout_s'"):
        resolve({"peer_timeout": 3.0}, {})


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lanes", 0, "between 1 and 64, got 0"),
        ("lanes", 1.0, "of type int, got 1.0"),
        ("lanes", True, "of type int, got True"),
        ("hadamard", 1, "of type bool, got 1"),
        ("peer_timeout_s", -1, "between 0.001 and 86400 seconds, got -1"),
        ("peer_timeout_s", float("nan"), "seconds, got nan"),
        ("datagram_bytes_max", 100, "between 548 and 65507, got 100"),
        ("bucket_bytes", 0, "bytes, got 0"),
        ("backend", "optireduze", "Did you mean 'optireduce'"),
        ("on_lag", "suspended", "'wait' or 'suspend', got 'suspended'. Did you mean"),
        ("deadline_s", 1e-4, "between 0.001 and 86400 seconds, got 0.0001"),
        ("deadline_max_s", 0, "between 0.001 and 86400 seconds, got 0"),
        ("late_budget", 0, "between 1e-06 and 0.5, got 0"),
        ("late_budget", 0.6, "between 1e-06 and 0.5, got 0.6"),
        ("faults", {"loss": "much"}, "map names to numbers"),
        ("faults", 3, "map names to numbers"),
    ],
)
def test_value_that_does_not_fit_is_an_error_that_names_the_field(
    field, value, expected
):
    with pytest.raises(UsageError, match=f"{field}.*{expected}"):
        Options(**{field: value})


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LANES", "two", "a whole number, got 'two'"),
        ("DEADLINE_S", "1s", "a number, got '1s'"),
        ("HADAMARD", "yes", "0, 1, true or false, got 'yes'"),
        ("FAULTS", "loss", "look like"),
    ],
)
def test_text_that_does_not_parse_is_an_error_that_names_the_variable(
    variable, text, expected
):
    with pytest.raises(UsageError, match=f"JAX_OPTIREDUCE_{variable}.*{expected}"):
        resolve({}, {f"JAX_OPTIREDUCE_{variable}": text})


def test_deadline_is_given_or_learned_within_a_budget_but_not_both():
    assert Options(deadline_s=0.2).deadline_s == 0.2
    assert Options(late_budget=0.02).deadline_s == 0
    with pytest.raises(UsageError, match=r"deadline_s=0\.2 and late_budget=0\.02.*one"):
        Options(deadline_s=0.2, late_budget=0.02)


def test_options_are_frozen_and_hashable():
    options = Options(faults={"loss": 0.5})
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.lanes = 2
    with pytest.raises(TypeError):
        options.faults["loss"] = 0.1
    assert options == Options(faults={"loss": 0.5})
    assert hash(options) == hash(Options(faults={"loss": 0.5}))
    assert options != Options(faults={"loss": 0.4})


def test_every_field_is_documented_with_its_default():
    documentation = Options.__doc__
    for field in dataclasses.fields(Options):
        assert f"{field.name}: " in documentation


def test_difference_between_ranks_names_both_sides():
    records = [Options(lanes=n).agreed() for n in (1, 1, 2)]
    assert describe_difference(records) == "lanes is 1 on rank 0 and 2 on rank 2"
    assert not describe_difference(records[:2])


def test_options_of_one_host_may_differ():
    one = Options(bind_address="10.0.0.1", receive_buffer_bytes=1 << 20)
    assert not describe_difference([one.agreed(), Options().agreed()])


def test_encryption_without_authentication_is_refused():
    with pytest.raises(UsageError, match="encrypt=True needs authenticate=True"):
        Options(encrypt=True, authenticate=False)


def test_ranks_must_agree_on_the_protection():
    records = [Options().agreed(), Options(encrypt=True).agreed()]
    assert describe_difference(records) == (
        "encrypt is False on rank 0 and True on rank 1"
    )
