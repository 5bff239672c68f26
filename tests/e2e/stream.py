#!/usr/bin/env python3
"""Sends random bytes over TCP and compares their sha256.

    stream.py serve PORT BYTES
    stream.py upload ADDRESS PORT BYTES SEED
    stream.py download ADDRESS PORT BYTES SEED

Each block of the stream is unique, so that a lost, duplicated or misplaced block is detected. Exit code 1 if the sums differ.
"""

import hashlib
import random
import socket
import sys

BLOCK = 1 << 20
HELLO_BYTES, SUM_BYTES = 16, 32


def blocks(seed, size):
    """The stream: one random block, repeated after increasing numbers."""
    body = random.Random(seed).randbytes(BLOCK - 8)
    for number in range(size // BLOCK):
        yield number.to_bytes(8, "big") + body


def send(connection, seed, size):
    """Sends the stream; returns its sum."""
    digest = hashlib.sha256()
    for block in blocks(seed, size):
        connection.sendall(block)
        digest.update(block)
    return digest.digest()


def receive(connection, size):
    """Receives this many bytes; returns their sum."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BLOCK))
    while size:
        count = connection.recv_into(buffer[:min(BLOCK, size)])
        if count == 0:
            raise SystemExit(f"{size} bytes are missing")
        digest.update(buffer[:count])
        size -= count
    return digest.digest()


def exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise SystemExit("the other side has gone")
        data += more
    return data


def serve(port, size):
    listener = socket.create_server(("", port))
    while True:
        connection, _ = listener.accept()
        with connection:
            hello = exactly(connection, HELLO_BYTES)
            seed = int.from_bytes(hello[8:], "big")
            if hello[:8] == b"upload__":
                connection.sendall(receive(connection, size))
            else:
                connection.sendall(send(connection, seed, size))


def ask(way, address, port, size, seed):
    with socket.create_connection((address, port)) as connection:
        connection.sendall(way.ljust(8, "_").encode()[:8] + seed.to_bytes(8, "big"))
        if way == "upload":
            own = send(connection, seed, size)
        else:
            own = receive(connection, size)
        other = exactly(connection, SUM_BYTES)
    if own != other:
        raise SystemExit(f"sha256 here {own.hex()}, there {other.hex()}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        ask(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
