"""The socket that gives the state of a process, and the text of a report."""

import itertools
import json
import os
import socket
import stat
import time

import pytest

import optireduce_testing as native

_NAME = "00000000-0-1.sock"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sockets"


def read(path) -> bytes:
    """Reads all that a server sends, as if from its folder: paths may be long."""
    parts = []
    parent = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(f"/proc/self/fd/{parent}/{path.name}")
            while part := client.recv(1 << 20):
                parts.append(part)
    finally:
        os.close(parent)
    return b"".join(parts)


def test_each_client_gets_one_whole_report_and_then_the_end(folder):
    server = native.StatusServer(str(folder), _NAME, 3 << 20)
    for _ in range(2):
        assert read(folder / _NAME) == b"x" * (3 << 20)
    server.close()
    assert list(folder.iterdir()) == []


def test_clients_get_at_most_20_reports_a_second(folder):
    server = native.StatusServer(str(folder), _NAME, 10)
    for _ in range(4):
        read(folder / _NAME)
    pauses = [after - before for before, after in itertools.pairwise(server.made_at)]
    server.close()
    assert len(pauses) == 3
    assert min(pauses) >= 1 / 20


def test_folder_and_socket_are_for_one_user(folder):
    umask = os.umask(0)
    try:
        server = native.StatusServer(str(folder), _NAME, 1)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / _NAME).stat().st_mode) == 0o600
    server.close()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o710])
def test_a_folder_that_others_can_enter_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(Exception, match="permissions 0700") as error:
        native.StatusServer(str(folder), _NAME, 1)
    assert str(folder) in str(error.value)


def test_a_link_in_the_place_of_the_folder_is_refused(folder):
    other = folder.with_name("other")
    other.mkdir(mode=0o700)
    folder.symlink_to(other)
    with pytest.raises(Exception, match="cannot open the folder"):
        native.StatusServer(str(folder), _NAME, 1)


def test_a_folder_without_a_parent_is_an_error(folder):
    with pytest.raises(Exception, match="cannot create the folder"):
        native.StatusServer(str(folder / "deeper"), _NAME, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_nothing_even_if_the_permissions_are_opened(folder):
    server = native.StatusServer(str(folder), _NAME, 1000)
    given, taken = os.pipe()
    child = os.fork()
    if child == 0:
        # The folders of a test are closed for other users: the child enters before.
        os.chdir(folder)
        folder.chmod(0o711)
        (folder / _NAME).chmod(0o666)
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            try:
                client.connect(_NAME)
                os.write(taken, b"got %d" % len(client.recv(2000)))
            except ConnectionResetError:
                os.write(taken, b"got 0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(given, 100) == b"got 0"
    assert len(read(folder / _NAME)) == 1000
    server.close()


def test_a_client_that_does_not_read_delays_neither_the_next_nor_the_end(folder):
    server = native.StatusServer(str(folder), _NAME, 16 << 20)
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(folder / _NAME))
        assert len(read(folder / _NAME)) == 16 << 20
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(folder / _NAME))
        time.sleep(0.1)  # The server has begun to send.
        server.close()


def test_a_long_path_is_no_obstacle(tmp_path):
    folder = tmp_path / ("long" * 40)
    server = native.StatusServer(str(folder), _NAME, 10)
    assert len(read(folder / _NAME)) == 10
    server.close()


@pytest.mark.parametrize("name", [b'a"b\\c\nd\x01', b"\xff\xfe", "größe".encode()])
def test_any_name_of_a_call_gives_valid_json(name):
    text = native.report_with_name(name, 1).decode(errors="replace")
    (call,) = json.loads(text)["calls"]
    assert call["collective"] == name.decode(errors="replace")


def test_a_report_is_bounded():
    report = json.loads(native.report_with_name(b"x", 1000))
    assert len(report["calls"]) == 64
    assert report["calls_under_way"] == 1000
