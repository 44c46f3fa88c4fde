"""The folder of the status socket, and programs that go on without one."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest

import optireduce_testing as native
from jax_optireduce._session import status


class Session:
    """A connected session of one process, as `serve` takes it."""

    def __init__(self) -> None:
        self.ranks = native.Communicators(1)
        self.ranks.connect(0, 1)

    def serve_status(self, folder: str) -> None:
        self.ranks.serve_status(0, folder)


@pytest.fixture
def places(monkeypatch):
    """The two places for sockets, which do not exist yet."""
    # The name of a socket has 107 bytes at most, and `tmp_path` may have as many.
    with tempfile.TemporaryDirectory() as short:
        runtime, temporary = Path(short) / "runtime", Path(short) / "temporary"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        yield runtime, temporary


def test_the_runtime_folder_is_preferred(places):
    for place in places:
        place.mkdir()
    session = Session()
    status.serve(session)
    (path,) = (places[0] / "jax_optireduce").iterdir()
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert path.parent in status.folders()
    assert list(places[1].iterdir()) == []


def test_without_a_runtime_folder_the_socket_is_in_the_temporary_one(places, caplog):
    places[1].mkdir()
    session = Session()
    status.serve(session)
    folder = places[1] / f"jax_optireduce-{os.geteuid()}"
    assert len(list(folder.iterdir())) == 1
    assert folder in status.folders()
    assert caplog.records == []


def test_a_session_removes_the_sockets_of_dead_processes_alone(places):
    places[0].mkdir()
    folder = places[0] / "jax_optireduce"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "0123abcd-0-1.sock"))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(folder / "0123abcd-1-2.sock"))
        living.listen()
        (folder / "other.sock").touch()
        session = Session()
        status.serve(session)
    names = {path.name for path in folder.iterdir()}
    assert "0123abcd-0-1.sock" not in names
    assert {"0123abcd-1-2.sock", "other.sock"} < names
    assert len(names) == 3


def test_a_program_without_any_folder_goes_on_and_logs_the_reasons(places, caplog):
    status.serve(Session())
    (record,) = caplog.records
    assert "status will not show this process" in record.getMessage()
    for place in places:
        assert str(place) in record.getMessage()
