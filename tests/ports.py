"""Ports for the servers that tests start."""

import random
import socket


def free_ports(number):
    """Returns ports below the system's ephemeral range, so that nobody takes them."""
    ports = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):  # nobody listens
                ports.append(port)
        if len(ports) == number:
            return ports
    raise OSError("No free port between 20000 and 32000.")
