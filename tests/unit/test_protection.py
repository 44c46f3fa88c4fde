"""Messages about protection, and secrets that stay out of them."""

import logging
import secrets

import pytest

import jax_optireduce

SECRET = bytes(range(32))


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(secrets, "token_bytes", lambda size: SECRET[:size])
    jax_optireduce.shutdown()
    caplog.set_level(logging.DEBUG)
    yield caplog
    jax_optireduce.shutdown()


def test_without_authentication_every_start_warns(said):
    for _ in range(2):
        said.clear()
        with jax_optireduce.init(security="none"):
            pass
        warnings = [r for r in said.records if r.levelno == logging.WARNING]
        assert any("not authenticated" in r.getMessage() for r in warnings)


@pytest.mark.parametrize("options", [{}, {"security": "encrypted"}], ids=str)
def test_with_authentication_there_is_no_warning_and_no_secret_in_the_log(
    said, options
):
    with jax_optireduce.init(**options) as communicator:
        shown = f"{communicator!r} {communicator.counters()} {communicator.features()}"
    assert "not authenticated" not in said.text
    for text in (said.text, shown):
        assert SECRET.hex() not in text
        assert repr(SECRET)[2:-1] not in text
