"""Options: precedence, validation, and messages that explain the correction."""

import dataclasses
import inspect
import re

import pytest

from jax_optireduce import Options, UsageError
from jax_optireduce._session.options import Internal, describe_difference, resolve


def test_argument_wins_over_environment_and_environment_over_default():
    environment = {
        "JAX_OPTIREDUCE_LANES": "3",
        "JAX_OPTIREDUCE_SHUTDOWN_TIMEOUT_S": "5",
        "JAX_OPTIREDUCE_MAX_LAG": "7",
        "JAX_OPTIREDUCE_PEER_TIMEOUT_S": "8",
    }
    options, origins = resolve({"max_lag": 4, "lanes": 1}, environment)
    assert (options.lanes, options.shutdown_timeout_s) == (1, 5)
    assert (options.max_lag, options.peer_timeout_s) == (4, 8.0)
    assert options.deadline_max_s == 10.0
    assert origins == {
        "max_lag": "argument",
        "lanes": "argument",
        "peer_timeout_s": "JAX_OPTIREDUCE_PEER_TIMEOUT_S",
        "shutdown_timeout_s": "JAX_OPTIREDUCE_SHUTDOWN_TIMEOUT_S",
    }


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("LANES", "4", 4),
        ("PEER_TIMEOUT_S", "2.5", 2.5),
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
        ("JAX_OPTIREDUCE_ADVANCED", ""),
    ],
)
def test_unknown_variable_is_an_error_with_a_suggestion(variable, suggestion):
    said = f" Did you mean {suggestion}" if suggestion else ""
    with pytest.raises(UsageError, match=f"{variable}, which is not an option.{said}"):
        resolve({}, {variable: "1"})


@pytest.mark.parametrize(
    "make",
    [
        lambda **fields: resolve(fields, {}),
        Options,
    ],
    ids=["init", "Options"],
)
def test_unknown_argument_is_an_error_with_a_suggestion(make):
    with pytest.raises(UsageError, match=r"'peer_timeout'.*mean 'peer_timeout_s'"):
        make(peer_timeout=3.0)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lanes", -1, "0 or between 1 and 64, got -1"),
        ("lanes", 1.0, "of type int, got 1.0"),
        ("lanes", True, "of type int, got True"),
        ("peer_timeout_s", -1, "between 0.001 and 86400 seconds, got -1"),
        ("peer_timeout_s", float("nan"), "seconds, got nan"),
        ("bucket_bytes", 0, "bytes, got 0"),
        ("backend", "optireduze", "Did you mean 'optireduce'"),
        (
            "mode",
            "bonded",
            "'bounded' or 'agreed' or 'lossy', got 'bonded'. Did you mean 'bounded'",
        ),
        ("deadline_s", 1e-4, "between 0.001 and 86400 seconds, got 0.0001"),
        ("deadline_max_s", 0, "between 0.001 and 86400 seconds, got 0"),
        ("security", "encrypt", "'encrypted' or 'none', got 'encrypt'. Did you mean"),
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
        ("FAULTS", "loss", "look like"),
    ],
)
def test_text_that_does_not_parse_is_an_error_that_names_the_variable(
    variable, text, expected
):
    with pytest.raises(UsageError, match=f"JAX_OPTIREDUCE_{variable}.*{expected}"):
        resolve({}, {f"JAX_OPTIREDUCE_{variable}": text})


@pytest.mark.parametrize("faults", [{"loss": "much"}, {3: 0.1}, 3, "loss=0.01"])
def test_faults_that_are_no_mapping_of_numbers_are_an_error(faults):
    with pytest.raises(UsageError, match="faults must map names to numbers"):
        Options(faults=faults)


def test_options_are_frozen_and_hashable():
    def lossy(share):
        return Options(faults={"loss": share})

    options = lossy(0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_lag = 2
    with pytest.raises(TypeError):
        options.faults["loss"] = 0.1
    assert options == lossy(0.5)
    assert hash(options) == hash(lossy(0.5))
    assert options != lossy(0.4)
    changed = dataclasses.replace(options, lanes=2)
    assert (changed.lanes, changed.faults) == (2, {"loss": 0.5})


def test_every_field_is_documented_with_its_default():
    attributes = inspect.cleandoc(Options.__doc__).split("Attributes:\n")[1]
    documented = dict(re.findall(r"^  (\w+): (.*)", attributes, re.MULTILINE))
    assert list(documented) == [field.name for field in dataclasses.fields(Options)]
    assert len(re.findall(r"\bDefault\s", attributes)) == len(documented)


def test_difference_between_ranks_names_both_sides():
    records = {rank: Options(lanes=n).agreed() for rank, n in enumerate((1, 1, 2))}
    assert describe_difference(records) == "lanes is 1 on rank 0 and 2 on rank 2"
    del records[2]
    assert not describe_difference(records)


def test_options_of_one_host_may_differ():
    one = Options(bind_address="10.0.0.1", receive_buffer_bytes=1 << 20)
    assert not describe_difference({0: one.agreed(), 1: Options().agreed()})


def test_ranks_must_agree_on_the_protection():
    records = {1: Options().agreed(), 3: Options(security="encrypted").agreed()}
    assert describe_difference(records) == (
        "security is 'authenticated' on rank 1 and 'encrypted' on rank 3"
    )


def test_settings_of_tests_come_from_the_environment_alone():
    variables = {
        "JAX_OPTIREDUCE_MISMATCH_TIMEOUT_S": "2",
        "JAX_OPTIREDUCE_HOST_CALL": "host_computation",
    }
    resolve({}, variables)
    with pytest.raises(UsageError, match="host_call"):
        resolve({"host_call": "host_computation"}, {})
    assert Internal.read(variables) == Internal(
        mismatch_timeout_s=2.0, host_call="host_computation"
    )
    assert Internal.read({}) == Internal()


def test_a_setting_of_tests_with_an_unknown_value_is_an_error():
    expected = r"host_call must be .*'host_computation'.*'host'"
    with pytest.raises(UsageError, match=expected):
        Internal.read({"JAX_OPTIREDUCE_HOST_CALL": "host"})
