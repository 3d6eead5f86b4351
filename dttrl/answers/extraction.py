r"""Where the final answer of a completion is, and what it is.

The last complete ``\boxed{...}`` counts, after any ``</think>``; then the last of the usual phrases ("the
final answer is", "Answer:", ``####``). A number is never picked from prose unless asked. One pass over the
text finds the boxes, so the cost is linear whatever the text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from dttrl.answers.normalization import normalize
from dttrl.answers.reading import read

AnswerKind = Literal["math", "choice", "text", "integer"]
"""``math``: anything; ``choice``: a letter A to J; ``text``: words; ``integer``: 0 to 999 as in AIME."""

MAX_ANSWER: Final = 2_000
"""Longest answer, in characters; a longer box holds no final answer."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """An answer and how it was found; all three fields are None when there is none.

    ``start`` is the character of the original text at which the box or the phrase begins.
    """

    answer: str | None = None
    source: str | None = None
    start: int | None = None


_BARE_BOX: Final = re.compile(
    r"\\(?:boxed|fbox|framebox)\s*(?P<bare>[+-]?\d[\d.,/]*|[+-]?\.\d+|[A-Za-z](?![A-Za-z]))"
)
_BRACE: Final = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{|\\\\(?!f?box|framebox)|\\[{}]|[{}]")

_PHRASE: Final = re.compile(
    r"""(?P<tag><answer>)
    | ^[ ]{0,3}\#{4}[ ]+(?=\S)
    | \bfinal\s{1,4}(?:answer|result)\b
      (?:\s+(?:to|for)\s+[^.:\n]{1,60}?)? [*_]{0,3} (?:\s+is\b|\s*(?=:)) \s*:?
    | \b(?:answer|(?:correct|right|best)\s{1,4}(?:option|choice))\b
      (?:\s+(?:to|for)\s+[^.:\n]{1,60}?)? [*_]{0,3} \s+ (?:is|equals|would\s+be|must\s+be|should\s+be)\b \s*:?
    | \b(?:answer|(?:correct|right|best)\s{1,4}(?:option|choice)) [*_]{0,3} \s{0,4} [:=]
    | ^[ ]{0,3}final\s{1,4}(?:answer|result)[ ]{0,4}$
    | ^[ ]{0,3}[*_\#]{1,6}[ ]{0,4}(?:final\s{1,4})?answer[ ]{0,4}[:.]?[ ]{0,4}[*_]{0,3}[ ]{0,4}$
    | 答案(?:是|为|：|:)
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_BOLD_END: Final = re.compile(r"(?:\bis|\bare|\bequals|=)\s*:?\s*(?P<bold>\*\*[^*\n]{1,200}\*\*)\s*\.?\s*\Z")
_MATH: Final = re.compile(
    r"(?:\$\$(?P<a>(?:\\\$|[^$])+)\$\$|(?<!\\)\$(?P<b>(?:\\\$|[^$\n])+?)(?<!\\)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\])",
    re.DOTALL,
)
_SENTENCE_END: Final = re.compile(
    r"[.!?](?=\s|$|\*)|[。;\n]|,\s+(?!(?:and|or)\b)(?=[a-z]{2})"
    r"|\s+(?:because|since|so|which|where|as|when|after|if|by|for|thus|hence|therefore)\b"
)
_HEDGE: Final = re.compile(r"^(?:approximately|about|roughly|exactly|simply|just)\s+(?=\S)", re.IGNORECASE)
_PROSE: Final = frozenset({"not", "that", "the", "in", "of", "to", "given", "therefore", "obtained", "a"})
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:/\d+)?(?:e[+-]?\d{1,3})?(?![\w])"
)
_LETTER_ONLY: Final = re.compile(
    r"[\s*_$`\"'.:,;({\[]*(?:\\(?:text|textbf|mathrm|mathbf|rm)\s*\{\s*)?\(?([A-Ja-j])\)?[\s*_$`\"'.:,;)}\]]*"
)
_LETTER_FIRST: Final = re.compile(
    r"[\s*_$`\"']*(?:\\\(\s*)?(?:\\(?:text|textbf|mathrm|mathbf|rm|boxed)\s*\{\s*)*(?:(?i:option|choice|answer)\s+)?"
    r"(?:\((?P<bracketed>[A-Ja-j])\)|(?P<bare>[A-J])(?=[\s*_$`\"'.:,;)}\]\\]|$))"
)  # fmt: skip


def extract(text: str, *, kind: AnswerKind = "math", last_number: bool = False) -> Extraction:
    r"""Find the final answer of a completion; a ``<think>`` that never ends gives none.

    ``last_number``: as a last resort take the last number of the text (source ``last-number``).

    >>> extract(r"First \boxed{12}. No: \boxed{18}.")
    Extraction(answer='18', source='boxed', start=22)
    >>> extract("The answer is 42. I checked it.").answer
    '42'
    >>> extract("12 apples. Done in 3 steps").answer is None
    True
    """
    begin = _visible(text)
    if begin is None or (boxes := _boxes(text, begin)) is None:
        return Extraction()
    for start, content in boxes:
        answer = _accept_box(content, kind)
        if answer is not None:
            return Extraction(answer, "boxed", start)
        if kind != "choice":  # a box that is no choice may hold a value; the letter can stand elsewhere
            return Extraction()
    found = _phrase(text, begin, kind)
    if found is None and kind == "choice":
        found = _lone_letter(text, begin)
    if found is None and last_number and kind in ("math", "integer"):
        found = _last_number(text, begin, kind)
    return found or Extraction()


def _visible(text: str) -> int | None:
    """Where the text after the thinking begins; None when the thinking never ends."""
    end = text.rfind("</think>")
    if end >= 0:
        return end + len("</think>")
    return None if "<think>" in text else 0


def _boxes(text: str, begin: int) -> Iterator[tuple[int, str]] | None:
    """Complete boxes that hold something, last first; None where the text was cut off inside its last box.

    A complete box inside an open one counts as the last.
    """
    found: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []
    for match in _BRACE.finditer(text, begin):
        token = match[0]
        if token == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                found.append((*opened, match.start()))
        elif token.endswith("{") and token != "\\{":
            stack.append(match.span() if len(token) > 1 else None)
    complete = found[-1][2] if found else -1
    if any(opened is not None and opened[0] > complete for opened in stack):
        return None
    for match in _BARE_BOX.finditer(text, begin):
        found.append((match.start(), *match.span("bare")))
    contents = ((start, text[inner:end].strip()) for start, inner, end in sorted(found, reverse=True))
    return (box for box in contents if box[1] and len(box[1]) <= MAX_ANSWER and normalize(box[1]))


def _accept_box(content: str, kind: AnswerKind) -> str | None:
    if kind == "choice":
        match = _LETTER_ONLY.fullmatch(content) or _LETTER_FIRST.match(content)
        return next(group for group in match.groups() if group).upper() if match else None
    return _of_kind(re.sub(r"(?<!\\)[.,;]+$", "", content), kind)


def _of_kind(answer: str, kind: AnswerKind) -> str | None:
    """Return the answer as its kind writes it: integers 0 to 999 without leading zeros."""
    if kind != "integer":
        return answer or None
    node, _ = read(normalize(answer))
    node = node.args[0] if node.op == "label" else node
    node = node.args[-1] if node.op == "rel" and node.name == "=" else node  # m+n=73
    if node.op != "num" or node.value.denominator != 1 or not 0 <= node.value <= 999:
        return None
    return str(int(node.value))


def _phrase(text: str, begin: int, kind: AnswerKind) -> Extraction | None:
    matches = [*_PHRASE.finditer(text, begin)]
    for match in reversed(matches[-20:]):
        answer = _after_phrase(text[match.end() : match.end() + MAX_ANSWER], kind, tag=bool(match["tag"]))
        if answer is not None:
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            return Extraction(answer, "phrase", start)
    bold = _BOLD_END.search(text, max(begin, len(text) - 400))
    if bold is None:
        return None
    answer = _after_phrase(bold["bold"], kind, tag=False)
    return None if answer is None else Extraction(answer, "phrase", bold.start())


def _after_phrase(rest: str, kind: AnswerKind, *, tag: bool) -> str | None:
    """Return the answer that follows a phrase; None when prose follows."""
    if tag:
        rest, closed, _ = rest.partition("</answer>")
        if not closed:
            return None
        return _accept_box(rest.strip(), kind) if rest.strip() else None
    if kind == "choice":
        return _letter_after(rest)
    rest = re.sub(r"^[\s:*_#>✅-]*?(?=[^\s:*_#>✅-]|-[\d.\\(a-z])", "", rest[:600])
    candidate = _math_segments(rest) or _sentence(rest)
    candidate = _HEDGE.sub("", candidate.strip().strip("*_`").strip())
    if not candidate or not _plausible(candidate, kind):
        return None
    return _of_kind(candidate, kind)


def _math_segments(rest: str) -> str:
    """``$2$`` or ``$2$ and $3$`` at the beginning, without their delimiters."""
    pieces: list[str] = []
    position = 0
    while (match := _MATH.match(rest, position)) is not None:
        pieces.append(next(group for group in match.groups() if group))
        joint = re.match(r"\s*(?:,\s*and|,\s*or|,|and|or)\s*(?=\$|\\[(\[])", rest[match.end() :])
        if joint is None:
            unit = re.match(r"\s*(?:%|\\%|percent\b)", rest[match.end() :])
            return ", ".join(pieces) + ("\\%" if unit else "")
        position = match.end() + joint.end()
    return ""


def _sentence(rest: str) -> str:
    end = _SENTENCE_END.search(rest)
    candidate = rest[: end.start()] if end else rest
    bold = re.match(r"\s*\*\*(.+?)\*\*", rest)
    return bold[1] if bold else candidate


def _plausible(candidate: str, kind: AnswerKind) -> bool:
    """Whether this is an answer and not the middle of a sentence or a cut-off formula."""
    if candidate.count("{") != candidate.count("}") or "\\boxed" in candidate:
        return False
    words = re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[a-zA-Z]+", " ", candidate))
    if words and words[0].lower() in _PROSE:
        return False
    if kind == "text":
        return len(words) <= 12
    return len(words) <= (5 if re.search(r"\d|\\[a-zA-Z]", candidate) else 3)


def _letter_after(rest: str) -> str | None:
    rest = re.sub(r"^[\s:*_#>✅=-]*", "", rest[:400])
    match = _LETTER_FIRST.match(rest)
    if match is None:
        return None
    letter = match["bracketed"] or match["bare"]
    following = rest[match.end() :]
    if match["bare"] in ("A", "I") and re.match(r"\s+(?!because|since|as|and|so|by|for)[a-z]", following):
        return None  # "The answer is A good guess", "I think"
    return letter.upper()


def _lone_letter(text: str, begin: int) -> Extraction | None:
    """Find a last line that holds nothing but a letter."""
    body = text[begin:].rstrip()
    line_start = body.rfind("\n") + 1
    line = body[line_start:]
    match = _LETTER_ONLY.fullmatch(line) if len(line) < 60 else None
    return None if match is None or match[1].islower() else Extraction(match[1], "choice", begin + line_start)


def _last_number(text: str, begin: int, kind: AnswerKind) -> Extraction | None:
    tail = max(begin, len(text) - 20_000)
    last = next(iter(deque(_NUMBER.finditer(text, tail), maxlen=1)), None)
    answer = None if last is None else _of_kind(last[0], kind)
    return None if last is None or answer is None else Extraction(answer, "last-number", last.start())
