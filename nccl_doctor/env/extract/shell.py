"""Shell scripts: export, ``NAME=value command``, mpirun -x, docker -e, srun --export, #SBATCH, here-documents.

This is not a shell: it finds words and simple commands, well enough to tell a variable that is set from one that is
only talked about, and follows if/case so that two arms of one block are not taken to act together.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from nccl_doctor.env.assignments import INTEREST, MAX_ARMS, Assignment, How, is_ours

_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# No two alternatives of a group begin alike, so that an unclosed quote costs one pass and no more.
_TOKEN = re.compile(
    rf"""
    (?P<blank>[ \t\r]+|\\\r?\n)
  | (?P<newline>\n)
  | (?P<comment>\#[^\n]*)
  | (?P<heredoc><<-?[ \t]*(?:'[^'\n]+'|"[^"\n]+"|\\?[A-Za-z0-9_.]+))
  | (?P<redirect>\d?(?:>>|>\||>&|<&|&>|>|<<<|<)(?![(]))
  | (?P<operator>;;&?|;&|&&|\|\||\|&|[;&|(){{}}](?=[\s;&|()]|$)|[;&|()])
  | (?P<word>(?:
        '[^']*'
      | "(?:[^"\\$`]|\\.|{_SUBSTITUTION}|`[^`]*`|\$(?!\())*"
      | {_SUBSTITUTION}
      | \$\{{[^}}\n]{{0,1000}}\}}  # bounded: many that are never closed would cost the square of the text
      | `[^`]*`
      | \\.
      | [^\s;&|()<>'"`\\$]+
      | \$(?![({{])
    )+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNS = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)\Z", re.DOTALL)
_DYNAMIC = re.compile(r"\$[A-Za-z0-9_{(@*#?!$-]|`")
_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?[-=]([^${}`]*)\}\Z")
_RESERVED = frozenset(
    {"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "for", "{", "}", "!", "time"}
)
# What must be followed even where no name of ours stands beside it.
_WATCHED = _RESERVED | {"case", "esac", "set"}
# Commands that only talk about variables.
_TALK_WORDS = "echo printf grep egrep fgrep rg sed awk gawk cat test [ [[ logger read perl cut tr make cmake pip conda"
_TALKS = frozenset(_TALK_WORDS.split())
_CARRIES = frozenset({"-x", "-e", "--env", "-env", "-genv", "--genv", "--export-env", "-E"})
_LISTS = ("--export=", "--env=", "--genvlist=", "-genvlist=")
_WRITES = re.compile(r"(?:>>?|\btee\b(?:[ \t]+-\w+)*)[ \t]*[\"']?([^\s\"'|;&>]+)")


class Word(str):
    """A word of the script that knows the line it begins on."""

    line: int = 0


class Reader:
    """Reads one script. ``file`` and ``first_line`` place its findings; ``scope`` groups them."""

    def __init__(self, text: str, file: str, first_line: int, scope: str, depth: int = 0) -> None:
        self.text = text
        self.file = file
        self.first_line = first_line
        self.scope = scope or file
        self.depth = depth
        self.lines = text.split("\n")
        self.found: list[Assignment] = []
        self.exported: set[str] = set()
        self.export_all = False
        self.only_assignments = True
        self.blocks: list[list[int]] = []  # [block number, arm]
        self.count = 0
        self.number = 0  # of the command being read; 0: the whole job (#SBATCH)
        self.target = ""  # what the command's output is redirected to

    def read(self) -> list[Assignment]:
        """All assignments, in order; those that are unset again later at top level are left out."""
        if not INTEREST.search(self.text):
            return []
        for line, words, interesting in self._commands():
            self.number += 1
            if interesting or words[0] in _WATCHED:
                self._command(line, self._line(line), words)
            elif self.only_assignments:
                self.only_assignments = bool(_ASSIGNS.match(words[-1]))
        own = {item.name for item in self.found if item.value is None and item.how is not How.PLAIN}  # -x NAME="$NAME"
        handed_on = own | self.exported
        all_of_them = self.export_all or self.only_assignments
        return [
            msgspec.structs.replace(item, how=How.EXPORT, lost="")
            if item.how is How.PLAIN and (all_of_them or item.name in handed_on)
            else item
            for item in self.found
        ]

    # ------------------------------------------------------------------------------------------------- the words

    def _commands(self) -> Iterator[tuple[int, list[str], bool]]:
        """(line, words, whether a name of ours may be among them) of each simple command."""
        places = [match.start() for match in INTEREST.finditer(self.text)]
        begin = 0
        line = self.first_line
        start = line
        words: list[str] = []
        waiting: list[str] = []  # here-document end words
        target = 0
        position, end = 0, len(self.text)
        skip_next = False
        while position < end:
            match = _TOKEN.match(self.text, position)
            assert match is not None  # the last alternative takes any character
            kind, token = match.lastgroup, match[0]
            position = match.end()
            if kind == "word":
                if skip_next:
                    skip_next = False  # the target of a redirection is no argument
                    self.target = _unquote(token)
                else:
                    if not words:
                        start, begin = line, match.start()
                    word = Word(token)
                    word.line = line
                    words.append(word)
                line += token.count("\n")
            elif kind == "blank":
                line += token.count("\n")
            elif kind == "comment":
                self._comment(line, token)
            elif kind == "redirect":
                skip_next = True
            elif kind == "heredoc":
                waiting.append(token.lstrip("<-").strip().strip("'\"\\"))
                target = line
            elif kind in ("operator", "newline"):
                skip_next = False
                if words:
                    yield start, words, bisect_left(places, position) > bisect_left(places, begin)
                    words = []
                self.target = ""
                if kind == "newline":
                    line += 1
                    for end_word in waiting:
                        position, line = self._here_document(end_word, position, line, target)
                    waiting = []
                elif token.startswith(";;") or token == ";&":
                    self._next_arm()
        if words:
            yield start, words, bisect_left(places, position) > bisect_left(places, begin)

    @property
    def arms(self) -> tuple[tuple[int, int], ...]:
        """(block, arm) of each if and case around the command being read."""
        return tuple((block, arm) for block, arm in self.blocks[:MAX_ARMS])

    def _line(self, number: int) -> str:
        place = number - self.first_line
        return self.lines[place].strip(" \t") if 0 <= place < len(self.lines) else ""  # a Windows line end is told

    def _here_document(self, word: str, position: int, line: int, opened: int) -> tuple[int, int]:
        """Read the body up to the end word; returns where to go on."""
        close = re.compile(rf"^[ \t]*{re.escape(word)}[ \t]*\r?$", re.MULTILINE).search(self.text, position)
        stop = close.start() if close else len(self.text)
        body = self.text[position:stop]
        self._nested(body, line, self._line(opened))
        after = (close.end() + 1) if close else len(self.text)
        return after, line + self.text.count("\n", position, after)

    def _nested(self, body: str, line: int, command: str) -> None:
        """A text inside the script that is itself a script, a configuration file or Python."""
        if self.depth > 3 or not INTEREST.search(body):
            return
        from nccl_doctor.env.extract import conf, python_source

        written = _WRITES.search(command)
        if written and written[1].endswith("nccl.conf"):
            self.found += conf.read(body, written[1], self.scope + "#" + written[1], self.file, line)
        elif re.match(r"(?:\S*/)?python[0-9.]*\b", command):
            with contextlib.suppress(SyntaxError):  # the shell may fill in what makes it Python
                self.found += python_source.read(body, self.file, line, self.scope)
        elif body.lstrip().startswith("{") and '":' in body:
            self._json(line, body)
        else:
            inner = Reader(body, self.file, line, self.scope, self.depth + 1)
            self.found += [msgspec.structs.replace(item, branch=(*self.arms, *item.branch)) for item in inner.read()]
            self.exported |= inner.exported

    def _comment(self, line: int, token: str) -> None:
        if token.startswith(("#SBATCH", "#PBS", "#BSUB", "#$")) and "=" in token:
            words = re.findall(r"(?:\"[^\"]*\"|\S)+", token.split(" #", 1)[0])
            number, self.number = self.number, 0
            self._options(line, self._line(line), words[1:])
            self.number = number

    # ---------------------------------------------------------------------------------------------- the commands

    def _command(self, line: int, raw: str, words: list[str]) -> None:
        words = self._reserved(words)
        if not words:
            return
        before: list[str] = []
        while words and _ASSIGNS.match(words[0]):
            before.append(words[0])
            self._held(words[0])
            words = words[1:]
        if not words:
            for word in before:
                self._set(line, raw, word, How.PLAIN, lost="a plain shell variable: it is not exported to the job")
            return
        name = words[0].rsplit("/", 1)[-1].strip("'\"")
        if name not in ("export", "unset", "set", ":", "true", "declare", "typeset", "readonly", "setenv", "cd"):
            self.only_assignments = False
        for word in before:
            self._set(line, raw, word, How.PREFIX)
        if name == "export" or (name in ("declare", "typeset") and any(w.startswith("-") and "x" in w for w in words)):
            self._export(line, raw, words[1:])
        elif name in ("declare", "typeset", "readonly", "local"):
            for word in words[1:]:
                self._set(line, raw, word, How.PLAIN, lost=f"{name} does not export it to the job")
        elif name == "setenv" and len(words) > 2:
            self._set(line, raw, f"{words[1]}={words[2]}", How.EXPORT)
        elif name == "set":
            self._set_command(line, raw, words[1:])
        elif name == "unset":
            gone = {word.strip("'\"") for word in words[1:]}
            arms = self.arms
            self.found = [item for item in self.found if item.name not in gone or item.branch != arms]
        elif name in _TALKS:
            self._written_text(line, raw, words)
        else:
            self._options(line, raw, words)

    def _held(self, word: str) -> None:
        """A variable that holds what a launcher is given later: its options, a JSON text, or what a command prints."""
        raw = word.partition("=")[2]
        if not INTEREST.search(raw):
            return
        line, value = getattr(word, "line", self.first_line), _unquote(raw)
        words = value.split()
        printed = re.fullmatch(r"\"?\$\((.*)\)\"?", raw, re.DOTALL)
        if printed:
            self._nested(printed[1], line, "")
        elif value.lstrip().startswith("{") and '":' in value:
            self._json(line, value)
        elif _CARRIES.intersection(words) and words[0] not in _TALKS:
            self._options(line, self._line(line), ["mpirun", *words])

    def _reserved(self, words: list[str]) -> list[str]:
        """The command behind if, then, do ...; keeps track of the arms."""
        while words:
            word = words[0]
            if word == "if":
                self._open()
            elif word in ("elif", "else"):
                self._next_arm()
            elif word == "fi" or word == "esac":
                if self.blocks:
                    self.blocks.pop()
            elif word == "case":
                self._open()
                return []
            elif word not in _RESERVED:
                return words
            words = words[1:]
        return words

    def _open(self) -> None:
        self.count += 1
        self.blocks.append([self.first_line * 100000 + self.count, 0])

    def _next_arm(self) -> None:
        if self.blocks:
            self.blocks[-1][1] += 1

    def _export(self, line: int, raw: str, words: list[str]) -> None:
        for word in words:
            if _ASSIGNS.match(word):
                self._set(line, raw, word, How.EXPORT)
            elif not word.startswith("-"):
                self.exported.add(word)

    def _set_command(self, line: int, raw: str, words: list[str]) -> None:
        """``set -a`` exports everything; fish's ``set -x NAME value`` sets."""
        flags = [word for word in words if word.startswith("-")]
        rest = [word for word in words if not word.startswith("-")]
        if "-a" in flags or "allexport" in rest:
            self.export_all = True
        elif any("x" in flag for flag in flags) and len(rest) > 1 and is_ours(rest[0]):
            self._set(line, raw, f"{rest[0]}={rest[1]}", How.EXPORT)

    def _written_text(self, line: int, raw: str, words: list[str]) -> None:
        """``echo "NCCL_DEBUG=INFO" >> /etc/nccl.conf``: text that becomes somebody's configuration."""
        piped = _WRITES.search(raw)
        target = self.target or (piped[1] if piped else "")
        if words[0] not in ("echo", "printf") or not target or target.startswith(("/dev/", "&")):
            return
        for word in words[1:]:
            body = _unquote(word)
            if body and INTEREST.search(body):
                self._nested(body.replace("\\n", "\n"), getattr(word, "line", line), f"> {target}")

    def _options(self, line: int, raw: str, words: list[str]) -> None:
        """Any other command: -x NAME=value and its relatives, and quoted scripts among its arguments."""
        first = words[0].rsplit("/", 1)[-1] if words else ""
        carries = first in ("env", "sudo", "exec", "time", "nohup", "nice")
        sets_env = first in ("kubectl", "oc") and "env" in words  # kubectl set env deployment/x NAME=value
        place = 0
        while place < len(words):
            word = words[place]
            previous = words[place - 1] if place else ""
            if word == "env" or word.endswith("/env"):
                carries = True
            elif not INTEREST.search(word):
                if place and not word.startswith("-") and not _ASSIGNS.match(word):
                    carries = carries and words[place - 1].startswith("-")
            elif previous in ("-genv", "-env") and place + 1 < len(words) and "=" not in word:
                self._set(line, raw, f"{word}={words[place + 1]}", How.OPTION)
                place += 1
            elif previous in _CARRIES or previous in ("--export", "-v", "--build-arg"):
                if previous != "--build-arg":
                    self._list(line, raw, word, splits=previous == "--export")
            elif word.startswith(_LISTS):
                self._list(getattr(word, "line", line), raw, word.split("=", 1)[1], word.startswith("--export="))
            elif word.startswith(("-e", "-x", "-v")) and _ASSIGNS.match(word[2:]):
                self._list(getattr(word, "line", line), raw, word[2:])
            elif _ASSIGNS.match(word) and is_ours(_ASSIGNS.match(word)[1]):  # type: ignore[index]
                if carries or sets_env:
                    self._set(line, raw, word, How.PREFIX)
            elif "{" in word and '":' in word:
                self._json(getattr(word, "line", line), _unquote(word))
            elif word[0] in "'\"" and re.search(r"[\s;]", word):
                self._nested(_unquote(word), getattr(word, "line", line), "")
            place += 1

    def _json(self, line: int, text: str) -> None:
        """A JSON text, such as what Ray's --runtime-env-json takes."""
        from nccl_doctor.env.extract import yaml_file

        start = text.find("{")
        first = line + text.count("\n", 0, start)
        with contextlib.suppress(yaml_file.BadYaml):
            for item in yaml_file.read(text[start:], self.file):
                place = first + (item.line or 1) - 1
                self.found.append(
                    msgspec.structs.replace(
                        item, line=place, text=self._line(place), scope=self.scope, branch=self.arms, not_text=""
                    )
                )

    def _list(self, line: int, raw: str, word: str, splits: bool = False) -> None:
        """``NAME=value``, ``A=1,B=2`` or ``ALL,A=1``; a bare name is passed on as it is. ``splits``: at every comma."""
        plain = _unquote(word)
        if isinstance(word, Word):
            line, raw = word.line, self._line(word.line)
        for part in re.split(r",\s*(?=[A-Za-z_][A-Za-z0-9_]*=)", plain):
            if "=" in part:
                part = part.removesuffix(",ALL")
                kept, comma, _ = part.partition(",")
                cut = bool(splits and comma and "'" not in part)
                self._set(line, raw, part, How.OPTION, f"--export splits at commas, {kept} arrives" if cut else "")
            else:
                self.exported.update(part.split(","))

    def _set(self, line: int, raw: str, word: str, how: How, lost: str = "") -> None:
        match = _ASSIGNS.match(word)
        if match is None:
            return
        name = match[1].removeprefix("SINGULARITYENV_").removeprefix("APPTAINERENV_")
        if not is_ours(name):
            return
        if isinstance(word, Word) and word.line != line:
            line, raw = word.line, self._line(word.line)
        arms = self.arms
        if how in (How.PREFIX, How.OPTION) and self.number:
            # What one command is given never meets what another one is given, of whichever text within the file.
            arms = (*arms, (0, self.first_line * 100_000 + self.number))
        self.found.append(
            Assignment(
                name,
                value_of(match[2]),
                self.file,
                line,
                how,
                raw,
                self.scope,
                arms,
                written=match[1] if match[1] != name else "",
                lost=lost,
            )
        )


def value_of(raw: str) -> str | None:
    """The value a shell word stands for; None where it is computed. ``${NAME:-x}`` counts as x."""
    default = _DEFAULT.match(raw.strip('"'))
    if default:
        return default[1].strip("'\"")
    return None if _DYNAMIC.search(re.sub(r"'[^']*'", "", raw)) else _unquote(raw)


def _unquote(raw: str) -> str:
    """Without quotes; expansions are kept as they are written."""
    pieces = re.findall(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)|([^'\"\\]+)", raw, re.DOTALL)
    return "".join(
        single or re.sub(r"\\([\"\\$`])", r"\1", double) or escaped or plain
        for single, double, escaped, plain in pieces
    )


def read(text: str, file: str = "", first_line: int = 1, scope: str = "") -> list[Assignment]:
    """What a shell script sets."""
    return Reader(text, file, first_line, scope).read()
