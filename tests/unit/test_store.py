"""The store of replicas: its entries, its clients, and a coordinator started again."""

import contextlib
import socket
import threading
from multiprocessing import connection

import pytest

from jax_optireduce._errors import RendezvousError, UsageError
from jax_optireduce._session import plans, store

SECRET = "of all clients"  # noqa: S105 (of a test)


class Server:
    """A store in this process, which ends with its socket."""

    def __init__(self, port=0):
        self.listener = socket.create_server(("127.0.0.1", port))
        self.port = self.listener.getsockname()[1]
        self.accepted = []
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            store.serve(self, SECRET)

    # The interface of its listener.

    def fileno(self):
        return self.listener.fileno()

    def setblocking(self, flag):
        self.listener.setblocking(flag)

    def accept(self):
        accepted, address = self.listener.accept()
        self.accepted.append(accepted.dup())
        return accepted, address

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in self.accepted:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def server():
    made = Server()
    yield made
    with contextlib.suppress(OSError):
        made.end()


def client_of(server, token=SECRET):
    return store.Client(f"127.0.0.1:{server.port}", token, 5.0)


def test_entries_are_made_found_and_removed(server):
    first, second = client_of(server), client_of(server)
    first.key_value_set_bytes("folder/a", b"\x00\xff")
    assert second.key_value_try_get_bytes("folder/a") == b"\x00\xff"
    assert second.blocking_key_value_get_bytes("folder/a", 1) == b"\x00\xff"
    assert second.key_value_dir_get_bytes("folder") == [("folder/a", b"\x00\xff")]
    second.key_value_set_bytes("folder/a", b"2", True)
    second.key_value_set_bytes("folders", b"3")
    first.key_value_delete("folder")
    assert second.key_value_dir_get_bytes("folder") == []
    assert second.key_value_try_get_bytes("folders") == b"3"
    with pytest.raises(store.StoreError, match="NOT_FOUND"):
        second.key_value_try_get_bytes("folder/a")
    with pytest.raises(store.StoreError, match="DEADLINE_EXCEEDED"):
        second.blocking_key_value_get_bytes("folder/a", 30)


def test_an_entry_is_made_once_and_a_number_is_raised_by_each(server):
    first, second = client_of(server), client_of(server)
    first.key_value_set_bytes("once", b"first")
    with pytest.raises(store.StoreError, match="ALREADY_EXISTS"):
        second.key_value_set_bytes("once", b"second")
    assert second.key_value_try_get_bytes("once") == b"first"
    numbers = [of.key_value_increment("n", 1) for of in (first, second, first)]
    assert numbers == [1, 2, 3]


def test_an_entry_ends_a_wait(server):
    first, second = client_of(server), client_of(server)
    timer = threading.Timer(0.1, lambda: first.key_value_set_bytes("late", b"1"))
    timer.start()
    assert second.blocking_key_value_get_bytes("late", 10_000) == b"1"


def test_another_token_is_refused(server):
    with pytest.raises(RendezvousError, match="another token"):
        client_of(server, "a guess")
    # The refused client has not hurt the others.
    client_of(server).key_value_set_bytes("a", b"1")


def test_a_missing_coordinator_is_an_error_with_its_command():
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with pytest.raises(RendezvousError, match=f"--replicas --port {port}"):
        store.Client(f"127.0.0.1:{port}", SECRET, 0.1)


def test_strangers_that_say_nothing_do_not_keep_others_away(server):
    address = ("127.0.0.1", server.port)
    strangers = [socket.create_connection(address) for _ in range(20)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b"\xff" * 64)
    client_of(server).key_value_set_bytes("a", b"1")
    for each in strangers:
        each.close()


def test_requests_that_do_not_fit_are_errors_of_their_client(server):
    talk = connection.Client(("127.0.0.1", server.port), authkey=SECRET.encode())
    talk.recv_bytes()
    for request in (b'["jump", "a", ""]', b'["add", "text", "x"]', b'["set"]'):
        talk.send_bytes(request)
        assert talk.recv_bytes().startswith(b"[false"), request
    talk.send_bytes(b"no JSON")
    client_of(server).key_value_set_bytes("a", b"1")


def test_the_number_of_entries_is_bounded(server, monkeypatch):
    monkeypatch.setattr(store, "_ENTRIES_MAX", 2)
    client = client_of(server)
    for name in "ab":
        client.key_value_set_bytes(name, b"1")
    with pytest.raises(store.StoreError, match="full"):
        client.key_value_set_bytes("c", b"1")
    client.key_value_set_bytes("a", b"2", True)


def test_clients_enter_the_news_into_a_coordinator_that_was_started_again(server):
    first, second = client_of(server), client_of(server)
    life = f"{plans.NEWS}/lives/3"
    first.key_value_set_bytes(f"{plans.NEWS}/session/4", b"1")
    first.key_value_set_bytes("4/plan", b"of the session")
    assert [first.key_value_increment(life, 1) for _ in range(2)] == [1, 2]
    second.key_value_dir_get_bytes(plans.NEWS)
    server.end()
    with pytest.raises(store.StoreError, match="UNAVAILABLE"):
        first.key_value_try_get_bytes("a")
    again = Server(server.port)
    # One that does not know what happened before comes first.
    assert client_of(again).key_value_increment(life, 1) == 1
    assert second.key_value_increment(life, 1) == 3
    names = {key for key, _ in first.key_value_dir_get_bytes(plans.NEWS)}
    assert names == {life, f"{plans.NEWS}/session/4"}
    assert first.key_value_try_get_bytes(life) == b"3"
    again.end()


def test_a_token_is_read_from_a_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    assert store.read_token(str(path)) == SECRET
    assert store.read_token("") == ""
    with pytest.raises(UsageError, match="cannot be read"):
        store.read_token(str(tmp_path / "missing"))
