"""Reads a tool call as the tool will: which of its arguments are commands, SQL, HTTP or mail.

Text that is only stored, shown or searched for, such as the content of a file, is none of them: a
page that names a destructive command destroys nothing.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

CallSide = Literal["shell", "sql", "http", "body", "mail"]
"""The part of a tool call that a rule reads: commands, statements of SQL, methods and URLs of HTTP
requests, what they send, or messages.
"""
CALL_SIDES: tuple[CallSide, ...] = get_args(CallSide)
BEGINS = "\x01"
"""The mark where a command begins."""
LONGEST_NAMED = 200
"""Characters of a value that may stand in the command that a tool's name begins."""

_NAME_PART = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|([bfnrt"/\\]))')
_FIELD = re.compile(r'[{,\[]\s{0,4}"[\w.-]{1,40}"\s{0,4}:\s{0,4}[\["]{0,2}')
"""The text that stands before a value, in JSON that is not well formed."""


def _split_words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TYPES = _split_words("stdin terminal console tmux keys keystrokes")
"""Words in the names of tools that type what they are given into a shell."""
_RUNS = _TYPES | _split_words(
    "bash sh zsh shell exec execute command cmd powershell pwsh ssh python py code repl interpreter"
    " subprocess process run sql mysql psql postgres sqlite mssql redis mongo db database eval"
    " script docker kubectl"
)
"""Words in the names of tools that run what they are given."""
_LOOKS_UP = _split_words("search grep rg lookup browse google wikipedia docs retrieve rag")
_WRITES = _split_words(
    "write create edit save append put replace insert patch update str overwrite"
)
_READS = _split_words("read view open cat get load")
_DELETES = _split_words("delete remove rm unlink rmdir rmtree erase wipe purge trash")
_MAILS = _split_words(
    "mail email gmail outlook smtp mailgun mailer sendgrid sms slack gist paste pastebin upload"
    " share"
)
"""Words in the names of tools that give to others what they are given."""
_PROGRAMS = _split_words(
    "rm git docker podman kubectl helm terraform tofu pulumi aws gcloud az gsutil curl wget scp"
    " rsync redis systemctl drop truncate mkfs dd chmod shutdown reboot gh delete destroy terminate"
    " wipe purge"
)
"""Words in the names of tools that are a program, or what it does, with arguments."""
_GENERIC = _split_words("exec run execute command cmd cli tool shell")
"""Words in such names that are no part of the command."""
_ALIASES = {"kubernetes": "kubectl", "k8s": "kubectl", "mongodb": "mongo"}

_RUN = _split_words("command cmd script argv commands")
_TEXTS = _split_words(
    "description explanation reason reasoning thought thoughts title summary comment rationale"
    " purpose justification message commit_message body content contents text"
)
"""Names of arguments that are text in whatever a tool's name begins."""
_NOTES = _TEXTS - _split_words("message body content contents text")
"""Names of arguments that no tool runs."""
_STORED = _TEXTS | _split_words(
    "file_text new_str old_str new_string old_string new_text old_text insert_text replacement"
    " replace diff patch html markdown subject comments note notes prompt instructions pattern"
    " regex search search_query keyword keywords question answer documentation caption label data"
    " json payload headers value name todos task plan observations"
)
"""Names of arguments that are text where the tool's name does not say that it runs them."""
_URLS = _split_words("url uri endpoint href link address path")
_METHODS = _split_words("method verb http_method request_method")
_HEADERS = _split_words("headers header auth authorization cookies api_key token")
"""The names of arguments in which a secret goes to those who gave it."""
_PATHS = _split_words(
    "path file file_path filepath filename target destination directory dir folder paths"
)
_RECIPIENTS = _split_words("to recipient recipients cc bcc to_email email_to to_address")
_SEVERAL = _split_words("commands cmds queries statements scripts steps lines")
_PROGRAM = _split_words("command cmd program executable exec binary")
_ARGUMENTS = _split_words("args argv arguments parameters flags options")
_SCRIPT = re.compile(r"\.(?:sh|bash|zsh|ksh|ps1|psm1|bat|cmd)$", re.IGNORECASE)

_CONTINUED = re.compile(r"[\\`^]\r?\n[ \t]{0,40}")
_BLANKS = re.compile(r"[ \t\r\f\v\xa0]+|\$\{?IFS\}?(?:\$9)?")
_SPLIT_WORD = re.compile(r"""(?<=\w)(?:''|"")(?=\w)""")
_LIST_COMMA = re.compile(r"""['"] ?, ?[rbf]?['"]""")
_SAYS = re.compile(
    r"""(?:\b(?:echo|printf|[ef]?grep|rg|ag|ack|sed|say|logger|wall|print(?:ln)?|console\.log|puts|notify-send|findstr)\b"""
    r"""|\bWrite-(?:Host|Output)\b|\bSelect-String\b|\bgit (?:commit|tag|stash|log)\b"""
    r"""|\bgh (?:issue|pr|release)\b|(?m:^) ?\#)[^\n'"|;&]{0,120}"""
)
"""A command whose quoted words are text, up to the first of them."""
_QUOTED = re.compile(r"""'[^']*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\"""", re.DOTALL)
_SUBSTITUTED = re.compile(r"\$\(|(?<!\\)`")
_BETWEEN_QUOTED = re.compile(r"""[^\n'"|;&]{0,120}""")
_TO_INTERPRETER = re.compile(
    r"[^\n;&|]{0,80}\) ?\||[^\n;&|]{0,80}\| ?(?:sudo (?:-\S{1,20} )?)?(?:/\S{1,30}/)?"
    r"(?:(?:ba|z|k|da|fi)?sh|python\d?|perl|ruby|node|psql|mysql|sqlite3|mongosh?|redis-cli|xargs"
    r"|at|ssh|crontab|powershell|pwsh|iex|base64|xxd|rev|tr|nc|curl|mail)\b",
    re.IGNORECASE,
)
_HEREDOC = re.compile(r"<<-? ?(['\"]?)(\w{1,40}+)\1[^\n]{0,200}+\n")
_STORES = re.compile(r"(?:^|[;&|(] ?)(?:sudo )?(?:cat|tee|git|gh)\b[^|;&]{0,200}$")
_TO_SCRIPT = re.compile(r"\.(?:sh|bash|ps1)\b|\|")
_BEGIN = re.compile(
    r"""(?:^['"]?|[;&|]{1,2}|[`\n]['"]?|(?<![\w:])\(|\{(?= )|(?<!-)-exec(?:dir)? """
    r"""|\b(?:(?:ba|z|k|da|a|fi)?sh|cmd(?:\.exe)?|powershell(?:\.exe)?|pwsh|su|wsl)"""
    r"""(?: [-/]{1,2}\w{0,20}(?: \w{1,20})?){0,4}? [-/]{1,2}(?:\w{0,3}c|k|command|e) ['"]{0,2}"""
    r"""|\b(?:system|popen|run|call|check_call|check_output|getoutput|exec|execSync|spawn|spawnSync"""
    r"""|execv?p?e?|subprocess)\( ?\[?[fr]?['"`]) {0,2}(?:\w{1,30}=[^\s;]{0,60} ){0,3}""",
    re.IGNORECASE,
)
"""The text behind which a command begins: a separator, or a program or function that runs its
argument.
"""
_PREFIX = re.compile(
    r"""(?:sudo|doas|nohup|exec|env|command|builtin|time|then|do|else|xargs|busybox|nice|setsid"""
    r"""|stdbuf|timeout|watch|chroot|flock|ionice|eval|start)(?: (?:-[ugI] \S{1,30}"""
    r"""|-{1,2}[\w=./{}-]{1,24}|\d{1,5}[smh]?|\w{1,20}=\S{0,40}|\{\})){0,5} ['"]?"""
    r"""|(?:/usr)?(?:/local)?/s?bin/|\\(?=\w)""",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"(?<![\w./-])(?:ssh|(?:docker|podman|kubectl|lxc|docker[ -]compose) (?:exec|run)|adb shell"
    r"|tmux send-keys)\b[^\n;|&]{0,300}",
    re.IGNORECASE,
)
"""A program that runs some of its arguments as a command in another place."""
_ARGUMENT = re.compile(r"""(?<= )['"]?(?=[a-z]|/(?:usr/)?bin/)""")
_STATEMENT = re.compile(
    r"\s{0,20}(?:--|/\*|(?:select|insert|update|delete|drop|create|alter|truncate|grant|revoke|merge)"
    r"(?:\s|/\*)|with\s+\w{1,60}\s+as\s|begin\s{0,4};|(?:exec|execute)\s+\w{1,60}\.)",
    re.IGNORECASE,
)
"""The beginning of a statement of SQL, and of no command of a shell."""
_SQL_COMMENT = re.compile(r"/\*[^*]{0,1000}\*/|--[^\n]{0,1000}|\s+")
_SQL_TEXT = re.compile(r"'(?:[^']|''){0,4000}'")
_RUNS_SQL_TEXT = re.compile(
    r"\b(?:exec|execute|prepare|xp_cmdshell|sp_executesql|dblink)\b|\bcopy\b|into (?:out|dump)file",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Value:
    """A text among the arguments."""

    name: str
    """The name of the innermost argument that holds it, in lower case; empty where there is none.
    """
    text: str


class _Object(list[tuple[str, object]]):
    """A JSON object with all its members: a tool may use either of two with the same name."""


def read_call(name: str, arguments: str) -> Mapping[CallSide, str]:
    """Return what the rules of each side read of a call; a side without text is missing.

    Args:
        name: of the tool.
        arguments: JSON, which need not be well formed.
    """
    words = [word.lower() for word in _NAME_PART.split(name) if word]
    words = [_ALIASES.get(word, word) for word in words]
    values = list(_yield_values(arguments))
    in_script = any(value.name in _PATHS and _SCRIPT.search(value.text) for value in values)
    commands = [value.text for value in values if _is_run(words, value.name, in_script)]
    statements = [text for text in commands if _STATEMENT.match(text)]
    shell = [_read_command(text) for text in commands if not _STATEMENT.match(text)]
    shell += _find_named_command(words, values)
    texts: dict[CallSide, Sequence[str]] = {
        "shell": [*shell, *_yield_file_commands(words, values)],
        "sql": [*shell, *map(_drop_literals, statements)],
        "http": [*shell, *_find_http_request(words, values)],
        "body": _find_sent_texts(words, values),
        "mail": _find_message(words, values),
    }
    # A line end on both sides, by which patterns tell where a line begins and ends.
    return {side: "\n" + "\n".join(lines) + "\n" for side, lines in texts.items() if lines}


def as_read(side: str, text: str) -> str:
    """Return a part of a call as the rules of a side read it; other text as it is."""
    if side not in CALL_SIDES:
        return text
    return f"\n{_read_command(text) if side == 'shell' else text}\n"


def _yield_values(arguments: str) -> Iterator[_Value]:
    """Yield all text in the arguments, also in JSON within a string."""
    pending: list[tuple[str, object]] = [("", arguments)]
    while pending:
        name, item = pending.pop()
        match item:
            # This goes before `list`, which `_Object` is too.
            case _Object():
                pending += reversed(_join_arguments(item))
            case list() if item and all(isinstance(part, str) for part in item):
                yield _Value(name, _join_list(name, item))
            case list():
                pending += [(name, part) for part in reversed(item)]
            case str() if (decoded := _decode_json(item)) is not None:
                pending.append((name, decoded))
            case None | False:
                pass
            case _:
                yield _Value(name, f"--{name}" if item is True else str(item))  # an option


def _decode_json(text: str) -> object:
    """Return what a text is in JSON, of broken JSON the values; None of other text."""
    if text.lstrip()[:1] not in {"{", "[", '"'}:
        return None
    try:
        decoded = json.loads(text, strict=False, object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        if len(broken := _FIELD.split(text)) == 1:
            return None
        return [_unescape_text(part) for part in broken] + [0]  # no list of texts, so not joined
    return decoded if decoded else None


def _unescape_text(text: str) -> str:
    letters = {"b": " ", "f": " ", "n": "\n", "r": "\n", "t": " "}
    return _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else letters.get(match[2], match[2]), text
    ).strip(' "{}[]\n')


def _join_arguments(members: _Object) -> list[tuple[str, object]]:
    """Return the members with lower names; a program and its arguments become one command."""
    named = [("_".join(_NAME_PART.split(name)).lower(), value) for name, value in members]
    program = [value for name, value in named if name in _PROGRAM and isinstance(value, str)]
    arguments = [value for name, value in named if name in _ARGUMENTS]
    if not program or not arguments:
        return list(named)
    lists = [value if isinstance(value, list) else [value] for value in arguments]
    words = [str(part) for value in lists for part in value if isinstance(part, str | int | float)]
    return [("command", " ".join([*program, *words])), *named]


def _join_list(name: str, items: Sequence[str]) -> str:
    """Join a list: the words of one command, or texts with a line each."""
    if name in _RECIPIENTS:
        return ", ".join(items)
    if name in _PATHS or name in _SEVERAL or " " in items[0].strip():
        return "\n".join(items)
    # Quoted, so that a part with spaces stays one word of the command.
    return " ".join(item if item and " " not in item else shlex.quote(item) for item in items)


def _is_run(words: Sequence[str], name: str, in_script: bool) -> bool:
    """Whether a tool may run an argument, or writes it into a file that is made to be run."""
    if name in _RUN:
        return True
    if not _LOOKS_UP.isdisjoint(words) or not _MAILS.isdisjoint(words):
        return False
    if not _TYPES.isdisjoint(words):
        return name not in _NOTES
    if not _WRITES.isdisjoint(words) and name in _STORED | {""}:
        return in_script
    if not _RUNS.isdisjoint(words):
        return name not in _NOTES
    return name not in _STORED | _PATHS | _URLS


def _read_command(text: str) -> str:
    """Return a command without line continuations, runs of blanks and words that it only says."""
    text = _drop_documents(text)
    text = _BLANKS.sub(" ", _CONTINUED.sub(" ", text))
    text = _LIST_COMMA.sub(" ", _SPLIT_WORD.sub("", _drop_said_words(text)))
    text = _ELSEWHERE.sub(lambda match: _ARGUMENT.sub(rf"\g<0>{BEGINS}", match[0]), text)
    return _mark_beginnings(text)


def _mark_beginnings(text: str) -> str:
    """Put `BEGINS` before each command, also behind what may stand before it, such as sudo."""
    parts, place = [], 0
    for begin in _BEGIN.finditer(text):
        if begin.end() < place:
            continue
        parts += [text[place : begin.end()], BEGINS]
        place = begin.end()
        while prefix := _PREFIX.match(text, place):
            parts += [prefix[0], BEGINS]
            place = prefix.end()
    return "".join([*parts, text[place:]])


def _drop_documents(text: str) -> str:
    """Leave out here-documents that a command only stores, if not in a script."""
    parts, place = [], 0
    while opened := _HEREDOC.search(text, place):
        parts.append(text[place : opened.end()])
        line = text[text.rfind("\n", 0, opened.start()) + 1 : opened.start()]
        place = max(_find_document_end(text, opened[2], opened.end()), opened.end())
        if not _STORES.search(line) or _TO_SCRIPT.search(line + opened[0]):
            parts.append(text[opened.end() : place])
    return "".join([*parts, text[place:]])


def _find_document_end(text: str, word: str, start: int) -> int:
    """Return where a line begins with `word`, or the end of the text."""
    found = text.find(word, start)
    # `<<-` allows tabs before the word.
    while found >= 0 and text[found - 1] not in "\n\t":
        found = text.find(word, found + 1)
    return len(text) if found < 0 else found - 1


def _drop_said_words(text: str) -> str:
    """Leave out quoted words that are printed or looked for, if no interpreter reads them."""
    parts, place = [], 0
    while says := _SAYS.search(text, place):
        end, said = says.end(), []
        while quoted := _QUOTED.match(text, end):
            said.append((end, quoted.end()))
            between = _BETWEEN_QUOTED.match(text, quoted.end())
            end = between.end() if between else quoted.end()
        is_read = said and _TO_INTERPRETER.match(text, said[-1][1])
        for first, last in said:
            if is_read:
                parts += [text[place : first + 1], BEGINS]
                place = first + 1
            elif text[first] == "'" or not _SUBSTITUTED.search(text, first, last):
                parts += [text[place:first], text[first] * 2]
                place = last
        parts.append(text[place:end])
        place = end
        if text.startswith('"', end):  # never closed, so all that follows may be run
            break
    return "".join([*parts, text[place:]])


def _drop_literals(statement: str) -> str:
    """Empty the texts in a statement of SQL, unless it may run them, and drop its comments."""
    statement = _SQL_COMMENT.sub(" ", statement)
    return statement if _RUNS_SQL_TEXT.search(statement) else _SQL_TEXT.sub("''", statement)


def _find_named_command(words: Sequence[str], values: Sequence[_Value]) -> list[str]:
    """Return the command that a tool's name begins, such as `kubectl_delete`, or nothing."""
    starts = [place for place, word in enumerate(words) if word in _PROGRAMS]
    if not starts:
        return []
    short = (v.text for v in values if len(v.text) <= LONGEST_NAMED and v.name not in _TEXTS)
    program = [word for word in words[starts[0] :] if word not in _GENERIC]
    return [_read_command(" ".join([*program, *short]))]


def _yield_file_commands(words: Sequence[str], values: Sequence[_Value]) -> Iterator[str]:
    """Yield the shell's words for what a tool does to files."""
    paths = [value.text for value in values if value.name in _PATHS]
    if not _DELETES.isdisjoint(words):
        yield from (f"{BEGINS}rm -rf {path}" for path in paths)
    if not _READS.isdisjoint(words):
        yield from (f"{BEGINS}cat {path}" for path in paths)
    if not _WRITES.isdisjoint(words):
        yield from (f"> {path}" for path in paths)


def _find_http_request(words: Sequence[str], values: Sequence[_Value]) -> list[str]:
    """Return the method and URL of an HTTP request, or nothing."""
    urls = [v.text for v in values if v.name in _URLS and ("://" in v.text or "/" in v.text[:1])]
    methods = [value.text for value in values if value.name in _METHODS]
    methods += [word for word in words if word in {"delete", "get", "post", "put", "patch"}]
    if not urls or not (methods or any("://" in url for url in urls)):
        return []
    method = (methods or ["get"])[0].upper()
    return [f"{method} {url}" for url in urls]


def _find_sent_texts(words: Sequence[str], values: Sequence[_Value]) -> list[str]:
    """Return what an HTTP request sends, without its headers, or nothing."""
    if not _find_http_request(words, values):
        return []
    return [f"{v.name}: {v.text}" for v in values if v.name not in _METHODS | _HEADERS]


def _find_message(words: Sequence[str], values: Sequence[_Value]) -> list[str]:
    """Return the recipients and content of a mail or another message, or nothing."""
    if _MAILS.isdisjoint(words) and all(value.name not in _RECIPIENTS for value in values):
        return []
    count = sum(v.text.count("@") for v in values if v.name in _RECIPIENTS)
    lines = [f"{v.name}: {v.text}" for v in values if v.name not in _HEADERS]
    return [*lines, f"number of recipients: {count}"]
