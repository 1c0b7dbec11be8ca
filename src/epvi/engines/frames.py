"""Messages between a process and its worker: bytes through a pipe, each after its length.

Takes unbuffered streams, so that a process that was forked can close its copies whatever other threads were doing.
"""

import struct
from io import FileIO

_LENGTH = struct.Struct("<Q")
# Bytes that are read at a time: what a pipe of Linux holds.
_PIECE = 2**16


def send(stream: FileIO, message: bytes) -> None:
    """Write one message; raises OSError when nobody reads any more."""
    for part in (_LENGTH.pack(len(message)), message):
        left = memoryview(part)
        while left:
            left = left[stream.write(left) or 0 :]


def receive(stream: FileIO) -> bytes:
    """Read one message; raises EOFError when nobody writes any more."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return _exactly(stream, length)


def _exactly(stream: FileIO, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        piece = stream.read(min(size - len(got), _PIECE))
        if not piece:
            raise EOFError
        got += piece
    return bytes(got)
