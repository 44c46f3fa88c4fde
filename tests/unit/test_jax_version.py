"""A release of JAX that is not tested is warned of, and named when a call fails."""

import importlib
import sys

import jax
import jax.core
import pytest

import jax_optireduce
from jax_optireduce import _jax_version
from jax_optireduce._jax import shard_types

_NEWER = "9.0.1"


def test_the_installed_release_is_tested():
    assert _jax_version.is_tested(jax.__version__)
    assert _jax_version.warning(jax.__version__) is None


@pytest.mark.parametrize("version", ["0.13.0", "0.13.0rc1", "1.0", _NEWER])
def test_a_newer_release_is_warned_of(version):
    warning = _jax_version.warning(version)
    assert version in warning
    assert f"pip install '{_jax_version.TESTED}'" in warning


def test_init_logs_the_warning(monkeypatch, caplog):
    monkeypatch.setattr(jax, "__version__", _NEWER)
    with jax_optireduce.init():
        pass
    assert [r.message for r in caplog.records if _NEWER in r.message] != []


def test_an_attribute_that_has_moved_is_explained(monkeypatch):
    with pytest.raises(AttributeError):
        shard_types.reduced_type(object(), ())
    monkeypatch.setattr(jax, "__version__", _NEWER)
    with pytest.raises(
        jax_optireduce.OptiReduceError,
        match=rf"JAX {_NEWER} lacks .*mat.*pip install '{_jax_version.TESTED}'",
    ):
        shard_types.reduced_type(object(), ())


def test_an_import_that_has_moved_is_explained(monkeypatch):
    monkeypatch.delattr(jax.core, "ShapedArray")
    monkeypatch.delitem(sys.modules, "jax_optireduce._jax.lowering")
    with pytest.raises(ImportError, match=r"ShapedArray.*or a newer jax_optireduce"):
        importlib.import_module("jax_optireduce._jax.lowering")
