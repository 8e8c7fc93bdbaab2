"""A log as numbered lines of text, whatever it was saved as: gzip, UTF-16, CRLF, with a launcher's prefixes."""

from __future__ import annotations

import hashlib
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path

from collbench.errors import InputError
from collbench.importers.affix import LINES_LOOKED_AT, Affix, before_all, before_comments, numbering
from collbench.importers.clean import Piece, clean, is_of_nccl
from collbench.importers.wrap import unwrapped, width

_GZIP = b"\x1f\x8b"
_LARGEST_LOG = 4 * 2**30  # bytes, unpacked
_LARGEST_DOCUMENT = 512 * 2**20
_BLOCK = 2**20
_MANY_PARTS = 1000  # of a line that was overwritten
_SHORT_PART = 8  # characters, on average
_CONTROL = bytes({*range(32)} - set(b"\t\n\r\x0b\x0c\x1b\x08"))
_WITH_COMMENT = re.compile(rb"^[^\n#]{1,240}#(?=\s)[^\n]{0,240}", re.MULTILINE)


class Log:
    """One log. `name` is its path, `-` for standard input."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self._bytes = _as_utf8(_unpacked(content, name))
        self._held: dict[str, bool] = {}
        self._before_all: Affix | None = None
        self._is_unwrapped = False
        self._pieces: list[tuple[int, str, str]] | None = None  # of a log that is not large

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
        self._pieces = None

    @cached_property
    def _told(self) -> bytes:
        """What `holds` searches: all of it, with web pages' blanks as blanks, but of a large log without the lines of
        NCCL's that no format reads."""
        if len(self._bytes) <= _BLOCK:
            told = self._bytes
            for blank in (b"\xc2\xa0", b"&nbsp;"):
                told = told.replace(blank, b" ")
            return told
        if b" NCCL INFO " not in self._bytes:
            return self._bytes
        kept = [b"NCCL INFO"]
        for block in self._blocks():
            kept += [
                line
                for line in block.split(b"\n")
                if b" NCCL INFO " not in line or b"|" in line or (b"->" in line and b"Bytes" in line)
            ]
        return b"\n".join(kept)

    @property
    def is_empty(self) -> bool:
        return not self._bytes or self._bytes.isspace()

    @cached_property
    def is_text(self) -> bool:
        head = self._bytes[:_BLOCK]
        return len(head.translate(None, _CONTROL)) > 0.95 * len(head)

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
        if len(self._bytes) > _BLOCK:
            return self._walk(without_nccl)
        if self._pieces is None:
            self._pieces = list(self._walk(without_nccl=False))
        if without_nccl:
            return (piece for piece in self._pieces if "NCCL " not in piece[2] or not is_of_nccl(piece[2]))
        return iter(self._pieces)

    def _walk(self, without_nccl: bool) -> Iterator[tuple[int, str, str]]:
        for number, line in self.raw_lines():
            if without_nccl and "NCCL " in line and is_of_nccl(line):
                continue
            for part in _overwritten(line) if "\r" in line else (line,):
                for source, text in self._cleaned(part):
                    yield number, source, text

    def _cleaned(self, line: str) -> list[Piece]:
        for affix in (self._numbering, self._before_all):
            if affix is not None and (rest := affix.strip(line)) is not None:
                line = rest
        if self._before_comments is None:
            return clean(line)
        cleaned = []
        for piece in clean(line):
            rest = self._before_comments.strip(piece.text)
            cleaned += [piece] if rest is None else [Piece(piece.source or own, text) for own, text in clean(rest)]
        return cleaned

    @cached_property
    def _numbering(self) -> Affix | None:
        return numbering(line for _, line in islice(self.raw_lines(), LINES_LOOKED_AT))

    @cached_property
    def _before_comments(self) -> Affix | None:
        found = (each[0] for each in _WITH_COMMENT.finditer(self._told) if each[0].lstrip()[:1] != b"#")
        lines = _decoded(b"\n".join(islice(found, LINES_LOOKED_AT))).split("\n")
        strip = self._numbering.strip if self._numbering is not None else str
        return before_comments(piece.text for line in lines for piece in clean(strip(line) or line))

    def prefixes(self) -> list[Affix]:
        """What nearly all lines begin with. It may be a format's own words: to try where nothing else was found."""
        if len(self._bytes) > _BLOCK:
            return []
        strip = self._numbering.strip if self._numbering is not None else str
        lines = (line for _, line in self.raw_lines() if "NCCL " not in line)
        return before_all(strip(line) or line for line in islice(lines, LINES_LOOKED_AT))

    def take_off(self, prefix: Affix) -> None:
        """From now on."""
        self._before_all, self._pieces = prefix, None

    def unwrap(self, is_wrapped: bool) -> None:
        """Put its lines together at its `width` from now on, or no longer."""
        self._is_unwrapped, self._pieces = is_wrapped, None

    @cached_property
    def width(self) -> int | None:
        """The column at which its lines seem to be wrapped."""
        return width(self._as_kept())

    def raw_lines(self) -> Iterator[tuple[int, str]]:
        """The same lines, decoded but otherwise as they stand, put together where they were wrapped. A line that was
        overwritten for more than a MiB comes in several parts of its number."""
        lines = self._as_kept()
        return lines if self.width is None or not self._is_unwrapped else unwrapped(lines, self.width)

    def _as_kept(self) -> Iterator[tuple[int, str]]:
        number = 1
        for block in self._blocks():
            *lines, rest = _decoded(block).split("\n")
            for line in lines:
                yield number, line.removesuffix("\r")
                number += 1
            if rest:
                yield number, rest.removesuffix("\r")

    def text(self) -> str:
        """All of it, decoded; for JSON. InputError for a log too large to be one document."""
        if len(self._bytes) > _LARGEST_DOCUMENT:
            raise InputError(f"{self.name}: {len(self._bytes) >> 20} MiB are too large for one JSON document")
        return _decoded(self._bytes)

    def cleaned_text(self) -> str:
        """As `text`, of the lines without what stands around them, each where it was."""
        parts, at = [], 1
        for number, text in self.lines():
            parts += ["\n" * (number - at), text]
            at = number
        return "".join(parts)

    def _blocks(self) -> Iterator[bytes]:
        """About a MiB at a time, up to the end of a line, or, in a longer one, to where it begins to be overwritten."""
        start, size = 0, len(self._bytes)
        while start < size:
            near, far = start + _BLOCK, start + 2 * _BLOCK
            end = self._bytes.find(b"\n", near, far) + 1 or self._bytes.rfind(b"\r", near, far - 1) + 1
            end = end or self._bytes.find(b"\n", far) + 1 or size
            yield self._bytes[start:end]
            start = end


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
    """UTF-16 and UTF-32 as UTF-8, told by their mark or by where the NULs stand; all else without its NULs, which stand
    where a file has a hole, or where UTF-16 was added to another text."""
    if content.startswith(b"\xef\xbb\xbf"):
        return content[3:]
    encoding = None
    if content.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        encoding = "utf-32"
    elif content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        head = content[:4096]
        even, odd = head[0::2], head[1::2]
        if len(head) >= 4 and odd.count(0) > 0.4 * len(odd) and even.count(0) < 0.1 * len(even):
            encoding = "utf-16-le"
        elif len(head) >= 4 and even.count(0) > 0.4 * len(even) and odd.count(0) < 0.1 * len(odd):
            encoding = "utf-16-be"
    if encoding is None:
        return content.replace(b"\x00", b"") if b"\x00" in content else content
    return content.decode(encoding, errors="replace").encode(errors="replace")


def _overwritten(line: str) -> Iterable[str]:
    """What stood in a line one after the other. Where the parts are shorter than any table's lines, such as those of a
    mark that turns, each comes once."""
    parts = line.split("\r")
    return dict.fromkeys(parts) if len(parts) > _MANY_PARTS and len(line) < _SHORT_PART * len(parts) else parts


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
