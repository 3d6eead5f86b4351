"""A complete reading of one expression: every character is accounted for, or there is no reading.

A recursive-descent parser for the mathematics of final answers, on normalised text. It evaluates nothing but
exact rational arithmetic (:mod:`dttrl.answers.exact`), calls no ``eval``, and refuses, with
:class:`~dttrl.answers.exact.UnreadableError`, whatever it does not know or can be read in two ways
(``1/2x``), so that a reading never stands for only part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final

from dttrl.answers.exact import INFINITY, BrokenError, Node, UnreadableError, make, number, symbol

MAX_DIGITS: Final = 2_000
MAX_EXPONENT: Final = 5_000
"""Largest exponent of ten in ``1e5000``."""
MAX_DEPTH: Final = 64
"""Deepest nesting of brackets, roots, fractions and exponents that is read."""

_TOKEN: Final = re.compile(
    r"(?P<repeating>\d*\.\d*\\overline\{\d{1,40}\})|(?P<number>(?:1|\d*\.\d+)e[+-]?\d+|(?:\d+(?:\.\d+)?|\.\d+)(?:E[+-]?\d+|e\d+|e[+-]\d{2,})?)"
    r"|(?P<command>\\[A-Za-z]+|\\[{}|])|(?P<letters>[A-Za-z]+)|(?P<operator><=|>=|.)",
    re.DOTALL | re.ASCII,
)
_GREEK: Final = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda",
    "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta",
    "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell", "hbar",
})  # fmt: skip
FUNCTIONS: Final = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
    "log", "lg", "exp", "max", "min", "gcd", "lcm",
})  # fmt: skip
_MANY: Final = frozenset({"max", "min", "gcd", "lcm"})
_NAMED: Final = frozenset({"pi", "sqrt", "infty", *FUNCTIONS})
_OPENING: Final = frozenset({"(", "[", "{", "\\{", "\\langle"})
_CLOSING: Final = frozenset({")", "]", "}", "\\}", "\\rangle"})


def tokenize(text: str) -> list[str]:
    """Tokens of a normalised answer; letter runs that name functions and constants become commands.

    Raises BrokenError for ``2e-1``, which may be scientific notation or Euler's number.
    """
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match.lastgroup == "letters" and token in _NAMED:
            token = "\\" + token
        if token == "e" and text[: match.start()][-1:].isdigit() and re.match(r"[+-]\d", text[match.end() :]):
            raise BrokenError("scientific notation or Euler's number")
        if token != " ":
            tokens.append(token)
    return tokens


def balanced(tokens: Sequence[str]) -> bool:
    """Whether braces and brackets close; a half-open interval may mix ( with ]."""
    stack: list[str] = []
    pairs = {")": "([", "]": "[(", "}": "{", "\\}": "\\{", "\\rangle": "\\langle"}
    for token in tokens:
        if token in _OPENING:
            stack.append(token)
        elif token in _CLOSING and (not stack or stack.pop() not in (*pairs[token], pairs[token])):
            return False
    return not stack


def depths(tokens: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield tokens with the brackets that are open around them, an opening one within its own."""
    depth = 0
    for token in tokens:
        depth += (token in _OPENING) - (token in _CLOSING)
        yield token, depth


def split(tokens: Sequence[str], separators: frozenset[str]) -> list[list[str]]:
    """Return the pieces between separators that stand outside every bracket."""
    pieces: list[list[str]] = [[]]
    for token, depth in depths(tokens):
        if depth == 0 and token in separators:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def parse_expression(tokens: Sequence[str]) -> Node:
    """Read one scalar expression that uses all tokens."""
    parser = _Parser(tokens)
    node = parser.sum()
    if parser.position != len(tokens):
        if is_number(tokens[parser.position]):
            raise BrokenError("a number after a factor can be read in two ways")
        raise UnreadableError(f"unexpected {tokens[parser.position]}")
    return node


class _Parser:
    """Precedence: sum, product (explicit or by juxtaposition), power and postfix, atom."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.bars = 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token:
            raise BrokenError("text ends early")
        if expected and token != expected:
            raise UnreadableError(f"expected {expected}")
        self.position += 1
        return token

    def accept(self, *tokens: str) -> str:
        """Take the next token if it is one of these, else nothing."""
        return self.take() if self.peek() in tokens else ""

    def sum(self) -> Node:
        self.deeper()
        node = self.product()
        while sign := self.accept("+", "-"):
            term = self.product()
            node = make("add", node, term if sign == "+" else make("neg", term))
        self.depth -= 1
        return node

    def product(self) -> Node:
        signs = 0
        while sign := self.accept("+", "-"):
            signs += sign == "-"
            if signs > 3:
                raise UnreadableError("a row of signs")
        node = self.power()
        divided = False
        while (operator := self.accept("*", "/")) or self.starts_atom(self.peek()):
            if operator:
                factor = make("neg", self.power()) if self.accept("-") else self.power()
                node = make("mul" if operator == "*" else "div", node, factor)
                divided = operator == "/"
            elif divided:
                raise BrokenError("1/2x can be read in two ways")
            else:
                node = make("mul", node, self.power())
        return make("neg", node) if signs % 2 else node

    def starts_atom(self, token: str) -> bool:
        if not token or token in ("\\}", "\\cr", "\\circ", "\\rfloor", "\\rceil"):
            return False
        if token == "|":
            return self.bars == 0
        if is_number(token):
            return self.tokens[self.position - 1] in ("!", ")", "}")
        return token[0].isalpha() or token in ("(", "[", "{") or token[0] == "\\"

    def power(self) -> Node:
        node = self.atom()
        while operator := self.accept("!", "^"):
            if operator == "!":
                if self.peek() == "!":
                    raise BrokenError("3!! can be read in two ways")
                node = make("fact", node)
            elif self.accept("\\circ"):
                node = make("div", make("mul", node, symbol("pi")), number(180))
            else:
                node = make("pow", node, self.exponent())
        return node

    def exponent(self) -> Node:
        self.deeper()
        if self.accept("-"):
            node = make("neg", self.exponent())
        else:
            if len(self.peek()) > 1 and self.peek().isalpha():
                raise BrokenError("x^ab can be read in two ways")
            node = self.group() if self.peek() == "{" else self.atom()
            if self.accept("^"):
                node = make("pow", node, self.exponent())
        self.depth -= 1
        return node

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnreadableError("nested too deeply")

    def group(self) -> Node:
        """``{...}``, or the single token that LaTeX takes in its place."""
        if not self.accept("{"):
            token = self.take()
            return _read_number(token) if is_number(token) else self.single(token)
        if self.peek() == "\\circ":
            raise UnreadableError("a degree sign in braces")
        node = self.sum()
        self.take("}")
        return node

    def single(self, token: str) -> Node:
        return symbol(token) if len(token) == 1 and token.isalpha() else self.command(token)

    def atom(self) -> Node:
        token = self.take()
        if token in _CLOSING:
            raise BrokenError("nothing between brackets")
        if is_number(token):
            return self.mixed(_read_number(token), token)
        if token[0].isalpha():
            return self.letters(token)
        if token in ("(", "[", "{"):
            node = self.sum()
            self.take({"(": ")", "[": "]", "{": "}"}[token])
            return node
        if token == "|":
            self.bars += 1
            node = self.sum()
            self.take("|")
            self.bars -= 1
            return make("abs", node)
        return self.command(token)

    def mixed(self, whole: Node, token: str) -> Node:
        r"""``2\frac{1}{2}`` is 2.5; an improper fraction after a number can be read in two ways."""
        match [token, *self.tokens[self.position : self.position + 7]]:
            case [_, "\\frac", "{", top, "}", "{", bottom, "}"] if (token + top + bottom).isdigit():
                if int(top[:MAX_DIGITS]) >= int(bottom[:MAX_DIGITS]):
                    raise BrokenError("mixed number or product")
                self.take()
                return make("add", whole, self.fraction())
        return whole

    def letters(self, token: str) -> Node:
        if len(token) > 3:
            raise UnreadableError("a word")
        last = self.subscript(token[-1]) if self.peek() == "_" else symbol(token[-1])
        if len(token) > 1 and self.peek() == "!":
            raise BrokenError("ab! can be read in two ways")
        if len(token) > 1 and self.accept("^"):  # in xy^2 the exponent belongs to y
            last = make("pow", last, self.exponent())
        for letter in token[-2::-1]:
            last = make("mul", symbol(letter), last)
        return last

    def subscript(self, letter: str) -> Node:
        self.take("_")
        if not self.accept("{"):
            index = self.take()
        else:
            index = ""
            while not self.accept("}"):
                index += self.take()
        if not re.fullmatch(r"[0-9A-Za-z+\-,]+", index):
            raise UnreadableError("a subscript")
        return symbol(f"{letter}_{index}")

    def fraction(self) -> Node:
        following = self.tokens[self.position : self.position + 5]
        if list(following[:4]) == ["{", "d", "}", "{"] and following[-1].startswith("d"):
            raise UnreadableError("a derivative")
        return make("div", self.argument(), self.argument())

    def argument(self) -> Node:
        """Read an argument in braces, or a single digit or letter."""
        token = self.peek()
        if not token:
            raise BrokenError("text ends early")
        if token not in ("{", "\\pi") and (len(token) > 1 or not token.isalnum()):
            raise BrokenError("an argument without braces")
        return self.group()

    def command(self, token: str) -> Node:
        name = token[1:]
        if token[0] != "\\" or not name:
            raise UnreadableError(f"unexpected {token}")
        if name == "frac":
            return self.fraction()
        if name == "binom":
            return make("binom", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "pi":
            return symbol("pi")
        if name == "infty":
            return INFINITY
        if name in _GREEK:
            return self.subscript(name) if self.peek() == "_" else symbol(name)
        if name in ("lfloor", "lceil"):
            node = self.sum()
            self.take("\\r" + name[1:])
            return make("call", node, name=name[1:])
        if name in FUNCTIONS:
            return self.call(name)
        raise UnreadableError(f"unknown command {token}")

    def root(self) -> Node:
        degree = number(2)
        if self.accept("["):
            degree = self.sum()
            self.take("]")
        if self.peek() not in ("{", "("):
            raise BrokenError("a root of nothing")
        closing = {"{": "}", "(": ")"}[self.take()]
        radicand = self.sum()
        self.take(closing)
        return make("pow", radicand, make("div", number(1), degree))

    def call(self, name: str) -> Node:
        power: Node | None = None
        base: Node | None = None
        for _ in range(2):
            if power is None and self.accept("^"):
                power = self.exponent()
            elif base is None and name == "log" and self.accept("_"):
                base = self.group()
        arguments = self.arguments(name)
        if power is not None and power.op == "num" and power.value == -1:
            name, power = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}.get(name, ""), None
            if not name:
                raise UnreadableError("an inverse function")
        node = make("call", *arguments, *([base] if base else []), name="log_" if base else name)
        return node if power is None else make("pow", node, power)

    def arguments(self, name: str) -> list[Node]:
        many = name in _MANY
        if self.peek() == "(" or (many and self.peek() == "\\{"):
            closing = {"(": ")", "\\{": "\\}"}[self.take()]
            found = [self.sum()]
            while many and self.accept(","):
                found.append(self.sum())
            self.take(closing)
            return found
        if many:
            raise UnreadableError("a function of several arguments without brackets")
        node = self.power()
        while (token := self.peek()) != "(" and self.starts_atom(token) and token[1:] not in FUNCTIONS:
            node = make("mul", node, self.power())
        if self.peek() in ("(", "/"):
            raise BrokenError("sin x/2 can be read in two ways")
        return [node]


def is_number(token: str) -> bool:
    """Whether a token is a number literal."""
    return token[:1].isdigit() or (token[:1] == "." and len(token) > 1)


def _read_number(token: str) -> Node:
    if "\\" in token:
        return _read_repeating(token)
    mantissa, _, exponent = token.replace("E", "e").partition("e")
    whole, _, decimals = mantissa.partition(".")
    if len(whole) + len(decimals) > MAX_DIGITS or len(exponent) > 6 or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise UnreadableError("number too long")
    scale = int(exponent or 0) - len(decimals)
    return number(Fraction(int(whole + decimals)) * Fraction(10) ** scale)


def _read_repeating(token: str) -> Node:
    r"""``0.1\overline{6}`` is 1/6."""
    start, _, period = token[:-1].partition("\\overline{")
    whole, _, decimals = start.partition(".")
    if len(whole) + len(decimals) > MAX_DIGITS:
        raise UnreadableError("number too long")
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    return number((int((whole + decimals) or 0) + repeated) / 10 ** len(decimals))
