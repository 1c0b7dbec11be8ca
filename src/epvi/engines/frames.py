"""Message framing on a pipe between a process and its worker: each message is preceded by its length in bytes.

Streams are unbuffered, so that a forked process can close its copies whatever other threads were writing.
"""

import struct
from io import FileIO

# The length of a message: an unsigned 64-bit integer, little-endian.
_LENGTH = struct.Struct("<Q")
# Bytes per read: the default capacity of a pipe on Linux (64 KiB).
_PIECE = 2**16


def send(stream: FileIO, message: bytes) -> None:
    """Write one message; raises OSError if the other end of the pipe is closed."""
    for part in (_LENGTH.pack(len(message)), message):
        left = memoryview(part)
        while left:
            left = left[stream.write(left) or 0 :]


def receive(stream: FileIO) -> bytes:
    """Read one message; raises EOFError if the other end of the pipe is closed."""
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
