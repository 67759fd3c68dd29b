"""What must not leave a host: values that look like secrets, blacked out before anything is sent.

The rule of the house is an allow-list (only named variables are collected at all); this is the second net beneath it.
The patterns are linear: no nested repetition.
"""

import re
from typing import Dict, List, NamedTuple, Tuple

HIDDEN = "[redacted]"

# Whole words of the name: NCCL_IB_PKEY is a partition key's index and no secret.
_SECRET_WORD_LIST = """
    TOKEN TOKENS SECRET SECRETS PASSWORD PASSWD PASSPHRASE PASS PWD APIKEY CREDENTIAL CREDENTIALS COOKIE AUTH
    AUTHORIZATION SAS DSN BEARER SIGNATURE KEY PRIVATE JWT
"""
_SECRET_WORDS = frozenset(_SECRET_WORD_LIST.split())
_HARMLESS_NAMES = frozenset(("PWD", "OLDPWD"))

# Where a word may begin: not inside another word, but right after a terminal's colour (ESC [ 3 1 m).
_START = r"(?:(?<![A-Za-z0-9])|(?<=[0-9;\[]m))"
_NAMES = (
    r"(?:password|passwd|passphrase|secrets?|tokens?|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key|"
    r"credentials?|auth[_-]?key|encryption[_-]?key|session[_-]?key|cookie|signature|sig|sas|jwt)"
    r"(?:[_-](?:id|key|token|value|b64|base64))?"
)
# Counts of tokens, as training logs (tokens=4096) and inference servers (#token: 17, #new-token: 8) tell them.
_COUNT = (
    r"(?!(?:tokens|(?:(?<=#)|(?<=#new-)|(?<=#cached-))token)[\"']?[\s=:]{1,8}[0-9][0-9.,eE+]{0,14}(?![^\s\"',;&)}\]]))"
)
# Also a value of which an earlier rule has hidden the beginning.
_VALUE = r"(?P<q>[\"']?)(?:(?<=[\"'])[^\"'\r\n]{1,4096}|\[redacted\][^\s\"',;&)}\]]{0,4096}|[^\s\"',;&)}\]]{1,4096})"

_NAME_NEEDLES = "pass secret token key credential cookie signature sig sas jwt"


class _Rule(NamedTuple):
    """A pattern (compiled when it is wanted), what replaces it, and words (in lower case) one of which its matches hold."""

    needles: Tuple[str, ...]
    pattern: str
    replacement: str


def _rule(needles: str, pattern: str, replacement: str) -> _Rule:
    return _Rule(tuple(needles.split()), pattern, replacement)


_RULES = (
    # PEM blocks, whole or cut off at the end, and in one line with \\n escapes
    _rule(
        "-----begin",
        r"-----BEGIN [A-Z0-9 ]{0,40}(?:PRIVATE KEY|CERTIFICATE)[^-]{0,40}-----"
        r"(?:[^-]|-(?!----END))*(?:-----END [A-Z0-9 ]{0,60}-----)?",
        HIDDEN,
    ),
    # scheme://user:password@host, also //:password@ and a token alone as user
    _rule("://", r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/?#@\"'<>]{1,512}@", r"\1" + HIDDEN + "@"),
    # Authorization: Bearer x, Basic x
    _rule(
        "bearer basic negotiate digest",
        r"(?i)" + _START + r"(bearer|basic|negotiate|digest)\s{1,4}[A-Za-z0-9._~+/=-]{8,4096}",
        r"\1 " + HIDDEN,
    ),
    # Keys that carry their maker's mark
    _rule(
        "akia asia agpa aida aroa gh github_ glpat- hf_ sk- xox aiza ya29 nvapi- npm_ pypi- dop_ sg. eyj",
        _START + r"(?:(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}"
        r"|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_[A-Za-z0-9_]{20,255}|glpat-[A-Za-z0-9_-]{16,255}"
        r"|hf_[A-Za-z0-9]{20,255}|sk-[A-Za-z0-9_-]{16,255}|xox[abeoprs]-[A-Za-z0-9-]{10,255}"
        r"|AIza[A-Za-z0-9_-]{30,60}|ya29\.[A-Za-z0-9_-]{16,512}|nvapi-[A-Za-z0-9_-]{16,255}|npm_[A-Za-z0-9]{20,255}"
        r"|pypi-[A-Za-z0-9_-]{16,255}|dop_v1_[a-f0-9]{32,128}|SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,64}"
        r"|eyJ[A-Za-z0-9_-]{8,2048}\.[A-Za-z0-9_-]{8,4096}(?:\.[A-Za-z0-9_-]{0,2048})?)",
        HIDDEN,
    ),
    # name=value, name: value, "name": "value", where the name ends in a word that says what it is (also in camelCase)
    _rule(
        _NAME_NEEDLES,
        r"(?i)((?:" + _START + r"|(?-i:(?<=[a-z])(?=[A-Z])))" + _COUNT + _NAMES + r"[\"']?\s{0,4}[=:]\s{0,4})" + _VALUE,
        r"\1\g<q>" + HIDDEN,
    ),
    # --some-token value
    _rule(
        _NAME_NEEDLES,
        r"(?i)(" + _START + r"--?(?:[a-z0-9]{1,40}[_-]){0,6}" + _COUNT + _NAMES + r"\s{1,4})(?=[^\s-])" + _VALUE,
        r"\1\g<q>" + HIDDEN,
    ),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable's name says that its value is a secret: one of its words does."""
    upper = name.upper()
    if upper in _HARMLESS_NAMES:
        return False
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()  # camelCase
    return any(word in _SECRET_WORDS for word in re.split(r"[^A-Z0-9]+", words))


def redact_text(text: str) -> str:
    """The text with everything that looks like a secret replaced by ``[redacted]``."""
    lower = text.lower()
    for rule in _RULES:
        if any(needle in lower for needle in rule.needles):
            text = re.sub(rule.pattern, rule.replacement, text)
    return text


def redact_variable(name: str, value: str) -> str:
    """A variable's value: hidden whole where the name says so, else searched."""
    return HIDDEN if value and is_secret_name(name) else redact_text(value)


def redact_environment(variables: Dict[str, str]) -> Dict[str, str]:
    """All values redacted, sorted by name."""
    return {name: redact_variable(name, variables[name]) for name in sorted(variables)}


def redact_argv(argv: List[str]) -> List[str]:
    """A command line without its secrets, whether they stand behind a sign (``--token=x``) or a blank."""
    kept: List[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("-"):
            kept.append(HIDDEN)
            hide_next = False
            continue
        name, equals, value = word.partition("=")
        option = name.startswith("-") or bool(equals)
        secret = option and is_secret_name(name.lstrip("-"))
        hide_next = secret and not equals
        kept.append(name + "=" + HIDDEN if secret and equals and value else redact_text(word))
    return kept
