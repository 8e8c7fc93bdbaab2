"""A log as numbered lines of text, whatever it was saved as: gzip, UTF-16, CRLF, with a launcher's prefixes."""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from collbench.errors import InputError
from collbench.importers.clean import clean, is_of_nccl

_GZIP = b"\x1f\x8b"
_LARGEST_LOG = 4 * 2**30  # bytes, unpacked
_LARGEST_DOCUMENT = 512 * 2**20
_BLOCK = 2**20


class Log:
    """One log. `name` is its path, `-` for standard input."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self._bytes = _as_utf8(_unpacked(content, name))
        self._held: dict[str, bool] = {}

    @classmethod
    def of_text(cls, name: str, text: str) -> Log:
        return cls(name, text.encode(errors="surrogatepass"))

    @cached_property
    def digest(self) -> str:
        """Of its content, unpacked: the same for a log under another name."""
        return hashlib.sha256(self._bytes).hexdigest()

    def forget(self) -> None:
        """Let go of the content, of which all has been read; name and digest stay."""
        assert self.digest
        self._bytes = b""
        self.__dict__.pop("_told", None)

    @cached_property
    def _told(self) -> bytes:
        """What `holds` searches: all of it, but of a large log without the lines of NCCL's that no format reads."""
        if len(self._bytes) <= _BLOCK:
            return self._bytes
        kept = [b"NCCL INFO"] if b"NCCL INFO" in self._bytes else []
        for block in self._blocks():
            kept += [
                line
                for line in block.split(b"\n")
                if b" NCCL INFO " not in line or b"|" in line or (b"->" in line and b"Bytes" in line)
            ]
        return b"\n".join(kept)

    @property
    def is_text(self) -> bool:
        return b"\x00" not in self._bytes[:_BLOCK]

    def holds(self, *marks: str) -> bool:
        """Whether any of these texts stands anywhere in it (searched in the raw text, fast)."""
        for mark in marks:
            if mark not in self._held:
                self._held[mark] = mark.encode() in self._told
            if self._held[mark]:
                return True
        return False

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line without its end and without what a launcher, terminal or web page put around it)."""
        for number, _, text in self.pieces():
            yield number, text

    def pieces(self, without_nccl: bool = False) -> Iterator[tuple[int, str, str]]:
        """As `lines`, with who wrote a line where its prefix says it: (number, source or "", text).

        A line that several ranks wrote comes in as many pieces, all of its number. without_nccl: lines that are NCCL's
        own from their beginning are left out, fast.
        """
        for number, line in self.raw_lines():
            if without_nccl and "NCCL " in line and is_of_nccl(line):
                continue
            for part in line.split("\r") if "\r" in line else (line,):
                for source, text in clean(part):
                    yield number, source, text

    def raw_lines(self) -> Iterator[tuple[int, str]]:
        """The same lines, decoded but otherwise as they stand."""
        number = 0
        for block in self._blocks():
            for line in _decoded(block).split("\n"):
                number += 1
                yield number, line.removesuffix("\r")

    def text(self) -> str:
        """All of it, decoded; for JSON. InputError for a log too large to be one document."""
        if len(self._bytes) > _LARGEST_DOCUMENT:
            raise InputError(f"{self.name}: {len(self._bytes) >> 20} MiB are too large for one JSON document")
        return _decoded(self._bytes)

    def _blocks(self) -> Iterator[bytes]:
        """Whole lines, about a MiB at a time, without the last one's end."""
        start, size = 0, len(self._bytes)
        while start < size:
            end = self._bytes.find(b"\n", start + _BLOCK)
            end = size if end < 0 else end
            block = self._bytes[start:end]
            start = end + 1
            yield block.removesuffix(b"\n") if start > size else block


def read_sources(paths: Iterable[str]) -> Iterator[Log]:
    """The logs of these files and of all files in these directories, in order of name; `-` is standard input.

    Raises InputError for what is not there or cannot be read.
    """
    for path in paths:
        if path == "-":
            yield Log("-", _standard_input())
            continue
        try:
            if Path(path).is_dir():
                yield from map(_read, _files_in(Path(path)))
            else:
                yield _read(Path(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}): expected a log, a directory or -") from None


def _files_in(directory: Path) -> list[Path]:
    files = sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError(f"{directory}: holds no files: expected logs")
    return files


def _read(path: Path) -> Log:
    return Log(str(path), path.read_bytes())


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("-: standard input is a terminal: pipe a log into it, or name a file")
    return sys.stdin.buffer.read()


def _unpacked(content: bytes, name: str) -> bytes:
    """gzip's content, as much of it as is whole."""
    if not content.startswith(_GZIP):
        return content
    parts, size = [], 0
    rest = content
    try:
        while rest.startswith(_GZIP):
            inflater = zlib.decompressobj(wbits=31)
            while not inflater.eof and rest:
                part = inflater.decompress(rest, 2**24)
                rest = inflater.unconsumed_tail
                size += len(part)
                parts.append(part)
                if size > _LARGEST_LOG:
                    raise InputError(f"{name}: unpacks to more than {_LARGEST_LOG >> 30} GiB: no log is so large")
            rest = inflater.unused_data
    except zlib.error as error:
        if not size:
            raise InputError(f"{name}: damaged gzip ({error}): unpack it by hand") from None
    return b"".join(parts)


def _as_utf8(content: bytes) -> bytes:
    """UTF-16 as UTF-8, told by its mark or by where the NULs stand; all else as it is."""
    if content.startswith(b"\xef\xbb\xbf"):
        return content[3:]
    encoding = None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        head = content[:4096]
        even, odd = head[0::2], head[1::2]
        if len(head) >= 4 and odd.count(0) > 0.4 * len(odd) and even.count(0) < 0.1 * len(even):
            encoding = "utf-16-le"
        elif len(head) >= 4 and even.count(0) > 0.4 * len(even) and odd.count(0) < 0.1 * len(odd):
            encoding = "utf-16-be"
    if encoding is None:
        return content
    return content.decode(encoding, errors="replace").encode(errors="replace")


def _decoded(content: bytes) -> str:
    """UTF-8, and a line that is none as Windows' Latin."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "\n".join(map(_decoded_line, content.split(b"\n")))


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace")
