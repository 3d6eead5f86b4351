"""The reading of a whole answer: one item or an unordered list, tuples, intervals, relations, matrices, text.

What these forms hold is read by :mod:`dttrl.answers.expressions`. Text that isn't mathematics becomes a
``text`` or ``word`` node, mathematics that isn't known ``opaque``, and what can't be read, or in two ways,
``broken``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Final

from dttrl.answers.exact import INFINITY, BrokenError, Node, UnreadableError, make
from dttrl.answers.expressions import balanced, depths, is_number, parse_expression, split, tokenize

_RELATIONS: Final = frozenset({"=", "≈", "<", ">", "<=", ">=", "≠", "\\in"})
_SEPARATORS: Final = frozenset({",", ";", "and", "or"})
_MATRIX: Final = "(?:[pbB]?matrix|smallmatrix|array)"
_LABEL_COMMANDS: Final = re.compile(r"\\(?:angle|triangle|frac|overline|vec|[A-Z]?[a-z]{2,7})")


_REALS: Final = Node("group", (make("neg", INFINITY), INFINITY), name="()")
_EMPTY: Final = Node("text", name="\\emptyset")
_NAMED_SETS: Final = {
    **dict.fromkeys(("all real numbers", "all reals", "all real values", "the real numbers"), _REALS),
    **dict.fromkeys(
        ("no solution", "no solutions", "empty set", "the empty set", "there is no solution"),
        _EMPTY,
    ),
}


@lru_cache(maxsize=4096)
def read(normalized: str) -> tuple[Node, str]:
    """Read a normalised answer: its tree and its unit (``""``: none)."""
    unit = ""
    match = re.fullmatch(r"(.*)\\unit\{([^{}]*)\}", normalized, re.DOTALL)
    if match:
        normalized, unit = match[1], match[2]
    try:
        return _read(normalized), unit
    except BrokenError:
        return Node("broken", name=normalized), unit
    except (UnreadableError, RecursionError):
        return Node("opaque", name=normalized), unit


def _read(text: str) -> Node:
    if re.fullmatch(r"[0-9A-Z]*[0-9][0-9A-Z]*_\{?[0-9]+\}?", text):
        return Node("base", name=re.sub(r"[{}]", "", text))
    if re.fullmatch(r"\d+(?::\d+)+", text):
        return _ratio(text)
    if text.casefold() in _NAMED_SETS or text == r"\{\}":
        return _NAMED_SETS.get(text.casefold(), _EMPTY)
    if re.fullmatch(r"[A-Za-z]{2,3}|[A-Za-z]", text) and tokenize(text) == [text]:
        return Node("word", name=text)
    try:
        tokens = tokenize(text)
        if not balanced(tokens):
            raise BrokenError("unbalanced brackets")
        return _items(tokens)
    except UnreadableError:
        if re.search(r"(?<![A-Za-z\\])[^\W\d_]{4}", text):  # prose, even with a formula in it
            return Node("text", name=text)
        raise


def _items(tokens: Sequence[str]) -> Node:
    """Read the answer as one item, or as an unordered list of items."""
    pieces = split(tokens, _SEPARATORS)
    joined = "and" in tokens or "or" in tokens
    items: list[Node] = []
    for piece in pieces:
        if not piece:
            if joined:
                continue
            raise BrokenError("an empty item")
        items += _item(piece)
    if not items:
        raise BrokenError("no item")
    variables = {_interval_of(item) for item in items}
    if len(items) > 1 and len(variables) == 1 and "" not in variables:
        if "or" in tokens:  # x<2 or x>3
            return Node("label", (Node("union", tuple(item.args[0] for item in items)),), name=items[0].name)
        both = _intersection([item.args[0] for item in items])
        if both is not None:  # x>2 and x<3
            return Node("label", (both,), name=items[0].name)
    return items[0] if len(items) == 1 else Node("list", tuple(items))


def _intersection(intervals: Sequence[Node]) -> Node | None:
    """Return what two half-lines of opposite directions have in common (both, if nothing), else None."""
    upward = [n for n in intervals if n.args[1] == INFINITY]
    downward = [n for n in intervals if n.args[0] == make("neg", INFINITY)]
    if len(intervals) != 2 or len(upward) != 1 or len(downward) != 1 or upward == downward:
        return None
    up, down = upward[0], downward[0]
    if up.args[0].op == down.args[1].op == "num" and up.args[0].value > down.args[1].value:
        return Node("union", (down, up))
    return Node("group", (up.args[0], down.args[1]), name=up.name[0] + down.name[1])


def _interval_of(node: Node) -> str:
    """Name of the variable whose interval this is; ``""`` for all else."""
    return node.name if node.op == "label" and node.args[0].op == "group" and len(node.args) == 1 else ""


def _ratio(text: str) -> Node:
    """``4:30`` is a time of day, ``2:4`` a ratio in lowest terms."""
    parts = text.split(":")
    clock = len(parts[0]) <= 2 and int(parts[0]) <= 24 and all(len(p) == 2 and int(p) < 60 for p in parts[1:])
    if clock or any(len(p) > 30 for p in parts):
        return Node("text", name=text)
    common = gcd(*(int(p) for p in parts)) or 1
    return Node("text", name=":".join(str(int(p) // common) for p in parts))


def _item(tokens: Sequence[str]) -> list[Node]:
    r"""One item; ``a \pm b`` gives two, and the members of a set are items of the list."""
    if tokens[0] == "\\{" and _closes_at_end(tokens) and len(tokens) > 2:
        return _set(tokens[1:-1])
    if "\\pm" in tokens or "\\mp" in tokens:
        swap = {"\\pm": ("+", "-"), "\\mp": ("-", "+")}
        variants = [[swap[t][side] if t in swap else t for t in tokens] for side in (0, 1)]
        return [_single(variants[0]), _single(variants[1])]
    return [_single(tokens)]


def _set(tokens: Sequence[str]) -> list[Node]:
    """Members of a set, without repetitions; ``x | x > 2`` is the interval."""
    if tokens[1:6] == ["\\in", "\\mathbb", "{", "R", "}"]:
        tokens = [tokens[0], *tokens[6:]]
    if len(tokens) > 3 and tokens[1] in ("|", ":", "\\mid") and tokens[0] in tokens[2:]:
        return [_single(tokens[2:])]
    inner = _items(tokens)
    return list(dict.fromkeys(inner.args if inner.op == "list" else (inner,)))


def _single(tokens: Sequence[str]) -> Node:
    parts = split(tokens, frozenset({"\\cup"}))
    if len(parts) > 1:
        if all(len(part) > 2 and part[0] == "\\{" and _closes_at_end(part) for part in parts):
            return Node("list", tuple(dict.fromkeys(member for part in parts for member in _set(part[1:-1]))))
        return Node("union", tuple(_value(part) for part in parts))
    relations = [token for token, depth in depths(tokens) if depth == 0 and token in _RELATIONS]
    if relations:
        return _relation(split(tokens, _RELATIONS), relations)
    return _value(tokens)


def _relation(parts: list[list[str]], relations: list[str]) -> Node:
    if any(not part for part in parts):
        raise BrokenError("a relation without a side")
    relations = ["=" if r == "≈" else r for r in relations]
    if relations == ["≠"] and _is_variable(parts[0]):
        return Node("label", (_without_point(_value(parts[1])),), name=parts[0][0])
    labels = ["".join(p) if is_label(p) else "" for p in parts]
    if relations == ["\\in"] and labels[0]:
        return Node("label", (_single(parts[1]),), name=labels[0])
    if set(relations) == {"="}:
        if not labels[0]:
            sides = tuple(_value(p) for p in parts)
            if all(side.op == "num" and side == sides[0] for side in sides):  # 9 + 8 + 6 = 23
                return sides[0]
            return Node("rel", sides, name="=")
        last = _value(parts[-1])
        try:
            left: tuple[Node, ...] = (_value(parts[0]),)
        except UnreadableError:
            left = ()
        return Node("label", (last, *left), name=labels[0])
    return _inequality(parts, relations, labels)


def _inequality(parts: list[list[str]], relations: list[str], labels: list[str]) -> Node:
    """``0<x<2`` as the interval (0,2), ``x>2`` as (2,oo); others stay relations."""
    rising, falling = {"<", "<="}, {">", ">="}
    if set(relations) <= falling:
        parts, relations, labels = parts[::-1], [_FLIPPED[r] for r in relations[::-1]], labels[::-1]
    if relations[0] in rising and len(parts) == 2 and _is_modulus(parts[0]):  # |x| < 2
        bound = _value(parts[1])
        interval = Node("group", (make("neg", bound), bound), name="()" if relations == ["<"] else "[]")
        return Node("label", (interval,), name=parts[0][1])
    named = [i for i, part in enumerate(parts) if _is_variable(part)]
    if len(named) == 1 and set(relations) <= rising and len(parts) <= 3:
        at = named[0]
        below = _value(parts[0]) if at > 0 else make("neg", INFINITY)
        above = _value(parts[-1]) if at < len(parts) - 1 else INFINITY
        closed_below = at > 0 and relations[0] == "<="
        closed_above = at < len(parts) - 1 and relations[-1] == "<="
        if len(parts) == 2 or at == 1:
            brackets = ("[" if closed_below else "(") + ("]" if closed_above else ")")
            return Node("label", (Node("group", (below, above), name=brackets),), name=labels[at])
    return Node("rel", tuple(_value(p) for p in parts), name=" ".join(relations))


_FLIPPED: Final = {">": "<", ">=": "<="}


def _is_variable(tokens: Sequence[str]) -> bool:
    """Whether a side is a single variable, perhaps with a subscript."""
    name = tokens[0]
    greek = name.startswith("\\") and name in ("\\theta", "\\alpha", "\\beta", "\\lambda")
    return (greek or (len(name) == 1 and name.isalpha())) and (len(tokens) == 1 or tokens[1] == "_")


def _is_modulus(tokens: Sequence[str]) -> bool:
    return len(tokens) == 3 and tokens[0] == tokens[2] == "|" and _is_variable(tokens[1:2])


def _without_point(point: Node) -> Node:
    """Return the real numbers without one."""
    below = Node("group", (make("neg", INFINITY), point), name="()")
    return Node("union", (below, Node("group", (point, INFINITY), name="()")))


def is_label(tokens: Sequence[str]) -> bool:
    """Tell whether the left side of ``x=5`` only names the value: ``f(x)``, ``|AB|``, ``x_1``, ``Area``."""
    depth = 0
    letters = False
    tokens = re.sub(r"(?<=[A-Za-z]) \^ \{ - 1 \} (?=\()", " ", " ".join(tokens)).split()
    for index, token in enumerate(tokens):
        previous = tokens[index - 1] if index else ""
        if token in ("(", "{"):
            depth += 1
        elif token in (")", "}"):
            depth -= 1
        elif token.isalpha() or token in ("\\alpha", "\\theta"):
            letters = True
        elif token.startswith("\\"):
            if not _LABEL_COMMANDS.fullmatch(token) or token in ("\\pi", "\\sqrt", "\\infty"):
                return False
            letters = letters or token not in ("\\frac",)
        elif is_number(token):
            if previous != "_" and not depth:
                return False
        elif token not in ("_", "|", ",", "'"):
            return False
    return letters


def _value(tokens: Sequence[str]) -> Node:
    """Read a scalar, a tuple or interval, a matrix, or one of the named sets."""
    if not tokens:
        raise BrokenError("nothing")
    if list(tokens[:4]) == ["\\mathbb", "{", "R", "}"]:
        if len(tokens) == 4:
            return _REALS
        if list(tokens[4:6]) == ["\\setminus", "\\{"] and tokens[-1] == "\\}" and "," not in tokens:
            return _without_point(_value(tokens[6:-1]))
    if "\\begin" in tokens:
        return _matrix(tokens)
    if tokens[0] == "\\langle" and tokens[-1] == "\\rangle" and "\\rangle" not in tokens[:-1]:
        tokens = ["(", *tokens[1:-1], ")"]
    if tokens[0] in ("(", "[") and _closes_at_end(tokens):
        inner = split(tokens[1:-1], frozenset({",", ";"}))
        if len(inner) > 1:
            if any(not part for part in inner):
                raise BrokenError("an empty component")
            return Node("group", tuple(_value(part) for part in inner), name=tokens[0] + tokens[-1])
    if tokens[0] == "\\{" and _closes_at_end(tokens):
        inner_node = _items(tokens[1:-1])
        return Node("list", inner_node.args if inner_node.op == "list" else (inner_node,))
    if list(tokens) in (["\\ldots"], ["\\emptyset"]):
        return Node("text", name=tokens[0])
    wordy = any(len(t) > 3 for t in tokens) or all(len(t) > 1 for t in tokens[:2])
    if wordy and all(t.isalpha() for t in tokens):
        words = " ".join(tokens)
        return _NAMED_SETS.get(words.casefold(), Node("text", name=words))
    return parse_expression(tokens)


def _closes_at_end(tokens: Sequence[str]) -> bool:
    return next((i for i, (_, depth) in enumerate(depths(tokens)) if depth == 0), -1) == len(tokens) - 1


def _matrix(tokens: Sequence[str]) -> Node:
    """Rows of a ``pmatrix``, ``bmatrix`` or bracketed ``array``, times a scalar that stands before it."""
    text = " ".join(tokens)
    match = re.fullmatch(
        rf"(?P<scale>.*?)(?P<open>[(\[] )?\\begin {{ {_MATRIX} }} (?:{{ [clr |]+ }} )?(?P<body>.*?) ?"
        rf"\\end {{ {_MATRIX} }}(?P<close> [)\]])?",
        text,
    )
    if match is None or "\\begin" in match["body"] or bool(match["open"]) != bool(match["close"]):
        raise UnreadableError("a matrix")
    scale = match["scale"].split()
    factor = parse_expression([*scale, "1"] if scale in (["-"], ["+"]) else scale) if scale else None
    rows = split(match["body"].split(), frozenset({"\\cr"}))
    if rows and not rows[-1]:
        rows.pop()
    read_rows: list[Node] = []
    for row in rows:
        cells = [_value(cell) for cell in split(row, frozenset({"&"}))]
        read_rows.append(Node("row", tuple(make("mul", factor, c) if factor else c for c in cells)))
    if len(read_rows) > 1 and all(len(row.args) == 1 for row in read_rows):  # a column is a vector
        return Node("group", tuple(row.args[0] for row in read_rows), name="()")
    return Node("matrix", tuple(read_rows))
