"""Messages about ports name the port, its holder and the way out."""

import os
import socket

import pytest

from flows.servers.network import BusyPortError, check_port_is_free, describe_holder, find_free_port


def check(port, host="127.0.0.1"):
    check_port_is_free(port, host=host, title="MLflow server", option="--mlflow-port")


def test_a_free_port_passes():
    check(find_free_port("127.0.0.1"))


def test_a_busy_port_is_named_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert describe_holder(port).startswith(f"process {os.getpid()} (")
        with pytest.raises(BusyPortError, match=rf"port {port} of 127\.0\.0\.1: process \d+"):
            check(port)
    check(port)


def test_a_port_whose_connections_fade_out_is_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            # The side that closes first keeps the port in TIME_WAIT.
            accepted.close()
    check(port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-machine.invalid"])
def test_an_address_of_another_machine_is_refused(host):
    with pytest.raises(ValueError, match=f"--host must be an address of this machine.*{host}"):
        check(4200, host=host)
    with pytest.raises(ValueError, match=f"--host must be an address of this machine.*{host}"):
        find_free_port(host)
