"""Options: precedence, validation, and messages that explain the correction."""

import dataclasses
import inspect
import re

import pytest

from jax_optireduce import Advanced, Options, UsageError
from jax_optireduce._session.options import describe_difference, resolve

_LEVELS = (Options, Advanced)


def _attributes(level):
    """The attributes of its docstring."""
    return inspect.cleandoc(level.__doc__).split("Attributes:\n")[1]


@pytest.mark.parametrize("advanced", [Advanced(lanes=1), {"lanes": 1}], ids=str)
def test_argument_wins_over_environment_and_environment_over_default(advanced):
    environment = {
        "JAX_OPTIREDUCE_LANES": "3",
        "JAX_OPTIREDUCE_INCAST": "5",
        "JAX_OPTIREDUCE_MAX_LAG": "7",
        "JAX_OPTIREDUCE_PEER_TIMEOUT_S": "8",
    }
    options, origins = resolve({"max_lag": 4, "advanced": advanced}, environment)
    values = options.flat()
    assert (values["lanes"], values["incast"], values["hadamard"]) == (1, 5, True)
    assert (values["max_lag"], values["peer_timeout_s"]) == (4, 8.0)
    assert origins == {
        "max_lag": "argument",
        "lanes": "argument",
        "incast": "JAX_OPTIREDUCE_INCAST",
        "peer_timeout_s": "JAX_OPTIREDUCE_PEER_TIMEOUT_S",
    }


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
    assert options.flat()[variable.lower()] == value


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
        lambda **fields: resolve({"advanced": fields}, {}),
        Options,
        Advanced,
    ],
    ids=["init", "advanced mapping", "Options", "Advanced"],
)
def test_unknown_argument_is_an_error_with_a_suggestion(make):
    with pytest.raises(UsageError, match=r"'peer_timeout'.*mean 'peer_timeout_s'"):
        make(peer_timeout=3.0)


@pytest.mark.parametrize(
    "make", [lambda **fields: resolve(fields, {}), Options], ids=["init", "Options"]
)
def test_advanced_option_on_the_first_level_is_told_where_it_belongs(make):
    expected = r"'lanes' is an advanced option.*init\(advanced=.*Advanced\(lanes="
    with pytest.raises(UsageError, match=expected):
        make(lanes=2)


@pytest.mark.parametrize(
    "make",
    [lambda **fields: resolve({"advanced": fields}, {}), Advanced],
    ids=["mapping", "Advanced"],
)
def test_option_of_the_first_level_among_the_advanced_is_told_where_it_belongs(make):
    expected = r"'max_lag' is not an advanced option: write init\(max_lag="
    with pytest.raises(UsageError, match=expected):
        make(max_lag=2)


@pytest.mark.parametrize("advanced", [3, None, "lanes=2", Options()], ids=str)
def test_advanced_options_are_an_object_or_a_mapping(advanced):
    with pytest.raises(UsageError, match=r"Advanced\(\.\.\.\) or a mapping, got"):
        resolve({"advanced": advanced}, {})


def test_names_of_both_levels_are_different():
    levels = [{f.name for f in dataclasses.fields(level)} for level in _LEVELS]
    assert not set.intersection(*levels)
    assert len(Options().flat()) == sum(map(len, levels)) - 1


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lanes", -1, "0 or between 1 and 64, got -1"),
        ("lanes", 1.0, "of type int, got 1.0"),
        ("lanes", True, "of type int, got True"),
        ("hadamard", 1, "of type bool, got 1"),
        ("peer_timeout_s", -1, "between 0.001 and 86400 seconds, got -1"),
        ("peer_timeout_s", float("nan"), "seconds, got nan"),
        ("datagram_bytes_max", 100, "between 548 and 65507, got 100"),
        ("bucket_bytes", 0, "bytes, got 0"),
        ("backend", "optireduze", "Did you mean 'optireduce'"),
        (
            "mode",
            "bonded",
            "'bounded' or 'agreed' or 'lossy', got 'bonded'. Did you mean 'bounded'",
        ),
        ("deadline_s", 1e-4, "between 0.001 and 86400 seconds, got 0.0001"),
        ("deadline_max_s", 0, "between 0.001 and 86400 seconds, got 0"),
        ("late_budget", 0, "between 1e-06 and 0.5, got 0"),
        ("late_budget", 0.6, "between 1e-06 and 0.5, got 0.6"),
        ("advanced", {"lanes": 2}, "of type Advanced, got"),
    ],
)
def test_value_that_does_not_fit_is_an_error_that_names_the_field(
    field, value, expected
):
    level = Advanced if hasattr(Advanced, field) else Options
    with pytest.raises(UsageError, match=f"{field}.*{expected}"):
        level(**{field: value})


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
    budget = Advanced(late_budget=0.02)
    assert Options(advanced=budget).deadline_s == 0
    with pytest.raises(UsageError, match=r"deadline_s=0\.2 and late_budget=0\.02.*one"):
        Options(deadline_s=0.2, advanced=budget)


@pytest.mark.parametrize("faults", [{"loss": "much"}, {3: 0.1}, 3, "loss=0.01"])
def test_faults_that_are_no_mapping_of_numbers_are_an_error(faults):
    with pytest.raises(UsageError, match="faults must map names to numbers"):
        Advanced(faults=faults)


def test_options_are_frozen_and_hashable():
    def lossy(share):
        return Options(advanced=Advanced(faults={"loss": share}))

    options = lossy(0.5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_lag = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.advanced.lanes = 2
    with pytest.raises(TypeError):
        options.advanced.faults["loss"] = 0.1
    assert options == lossy(0.5)
    assert hash(options) == hash(lossy(0.5))
    assert options != lossy(0.4)
    changed = dataclasses.replace(options.advanced, lanes=2)
    assert (changed.lanes, changed.faults) == (2, {"loss": 0.5})


@pytest.mark.parametrize("level", _LEVELS)
def test_every_field_is_documented_with_its_default(level):
    documented = dict(re.findall(r"^  (\w+): (.*)", _attributes(level), re.MULTILINE))
    assert list(documented) == [field.name for field in dataclasses.fields(level)]
    assert len(re.findall(r"\bDefault\s", _attributes(level))) == len(documented)


def test_difference_between_ranks_names_both_sides():
    records = [Options(advanced=Advanced(lanes=n)).agreed() for n in (1, 1, 2)]
    assert describe_difference(records) == "lanes is 1 on rank 0 and 2 on rank 2"
    assert not describe_difference(records[:2])


def test_options_of_one_host_may_differ():
    advanced = Advanced(receive_buffer_bytes=1 << 20)
    one = Options(bind_address="10.0.0.1", advanced=advanced)
    assert not describe_difference([one.agreed(), Options().agreed()])


def test_encryption_without_authentication_is_refused():
    with pytest.raises(UsageError, match="encrypt=True needs authenticate=True"):
        Options(encrypt=True, advanced=Advanced(authenticate=False))


def test_ranks_must_agree_on_the_protection():
    records = [Options().agreed(), Options(encrypt=True).agreed()]
    assert describe_difference(records) == (
        "encrypt is False on rank 0 and True on rank 1"
    )
