r"""One canonical spelling of an answer, so that most equal answers are equal strings.

The output is plain text: LaTeX wrappers, spacing, styles and delimiters are gone, Unicode mathematics is
written as LaTeX, thousands are joined, fractions are ``\frac{a}{b}``, and a unit stands at the end as
``\unit{cm}`` so that the reader can set it aside. Nothing is evaluated here. Every step is linear in the
length, or works on an answer of at most :data:`MAX_LENGTH` characters; longer answers only lose spaces.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from dttrl.answers.units import plain_unit, wrapped_unit

MAX_LENGTH: Final = 2000
"""Longest answer that is read as mathematics; a longer one is compared as a string only."""

_PLAIN_INTEGER: Final = re.compile(r"(-?)0*(\d{1,18})", re.ASCII)

_SYMBOLS: Final = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "÷": r"\div ", "⁄": "/", "∕": "/", "π": r"\pi ", "𝜋": r"\pi ", "∞": r"\infty ",
    "√": r"\sqrt ", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ",
    "°": r"^{\circ}", "ℝ": r"\mathbb{R}", "ℂ": r"\mathbb{C}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}",
    "ℚ": r"\mathbb{Q}", "∣": "|", "…": r"\ldots ", "⋯": r"\ldots ", "。": ".", "、": ",", "€": r"\euro ",
    "£": r"\pound ", "’": "'", "′": "'", "∧": r"\land ", "→": r"\to ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ", "λ": r"\lambda ",
    "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ω": r"\omega ",
    "٫": ".", "٬": ",", "¥": r"\yen ", "¢": r"\text{ cents}",
    "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "º": r"^{\circ}", "∶": ":",
    "ε": r"\epsilon ", "Δ": r"\Delta ", "Σ": r"\Sigma ", "Ω": r"\Omega ", "Γ": r"\Gamma ",
}  # fmt: skip

_SCRIPTS: Final = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+)|[₀₁₂₃₄₅₆₇₈₉]+")

_COMMANDS: Final = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "cdot": "*", "times": "*", "ast": "*",
    "div": "/", "leq": "<=", "le": "<=", "leqslant": "<=", "geq": ">=", "ge": ">=", "geqslant": ">=",
    "lt": "<", "gt": ">", "ne": "≠", "neq": "≠", "approx": "≈", "simeq": "≈", "lvert": "|", "rvert": "|",
    "vert": "|", "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "infin": r"\infty",
    "colon": ":", "dots": r"\ldots", "cdots": r"\ldots", "R": r"\mathbb{R}", "reals": r"\mathbb{R}",
    "backslash": r"\setminus", "degree": r"^\circ", "varnothing": r"\emptyset",
    "dbinom": r"\binom", "tbinom": r"\binom",
    "pounds": r"\pound", "lparen": "(", "rparen": ")", "varepsilon": r"\epsilon", "varphi": r"\phi",
    "displaystyle": " ", "textstyle": " ", "limits": "", "nolimits": "", "quad": " ", "qquad": " ",
    "enspace": " ", "thinspace": " ", "newline": " ", "normalsize": " ", "centering": " ", "rm": " ",
    "bf": " ", "hfill": " ", "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "", "bigr": "",
    "Bigl": "", "Bigr": "", "biggl": "", "biggr": "", "Biggl": "", "Biggr": "",
    "tiny": " ", "small": " ", "large": " ", "Large": " ", "LARGE": " ", "huge": " ", "Huge": " ",
    "bar": r"\overline", "mathstrut": "", "strut": "", "scriptstyle": " ", "boldmath": " ", "it": " ",
}  # fmt: skip

_WRAPPERS: Final = (
    "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal|mbox|"
    "hbox|operatorname|boldsymbol|bm|emph|underline|boxed|fbox|framebox|ensuremath|unit"
)
_INVISIBLE: Final = re.compile(r"\\(?:[hv]?phantom|[hv]space\*?|label|tag\*?|kern)\s*\{[^{}]*\}")
_PREFIX: Final = re.compile(r"^\s*(?:the\s+)?(?:final\s+)?answer\s*(?::|is\b:?)\s*(?=\S)", re.IGNORECASE)
_ENVIRONMENT: Final = re.compile(
    r"\\begin\s*\{(?P<name>(?:align|equation|gather|split)(?:ed)?\*?)\}(?P<inner>[^&]*?)\\end\s*\{(?P=name)\}"
)
_SURROUNDING: Final = re.compile(
    r"^(?:\\(?:therefore|Rightarrow|implies|sim|to|rightarrow)(?![a-zA-Z])|[=≈]|[\"'“”](?=[^\"'“”]*[\"'“”]$))\s*"
    r"|(?<=[^\s=])\s*(?:\\(?:square|blacksquare|qed|Box)|[\"'“”])$"
)
_OPEN_INTERVAL: Final = re.compile(r"([\[\]])([^\[\],;()]+[,;][^\[\],;()]+)([\[\]])")
_COUNTING: Final = re.compile(
    r"(?:\{\})?(?P<way>[_^])\{?(?P<n>\d{1,4})\}?(?P<what>[CP])_\{?(?P<k>\d{1,4})\}?|C\((?P<of>\d{1,4}),(?P<take>\d{1,4})\)"
)
_BASES: Final = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "sixteen": 16,
}  # fmt: skip
_WRAPPER: Final = re.compile(r"\\(" + _WRAPPERS + r"|textcolor|color)\*?\s*\{")


def normalize(answer: str) -> str:
    r"""Return the canonical spelling of an answer, found or a reference; ``""`` for one that holds nothing.

    >>> normalize(r"\dfrac12"), normalize("$1,024.$"), normalize(r"12\text{ cm}")
    ('\\frac{1}{2}', '1024', '12\\unit{cm}')
    """
    plain = _PLAIN_INTEGER.fullmatch(answer)
    if plain:
        return str(int(plain[1] + plain[2]))
    if len(answer) > MAX_LENGTH:
        return _normalize_long(answer)
    return _normalize(answer)


def _normalize_long(answer: str) -> str:
    text = "".join(answer.split())
    if text.isascii() and text.lstrip("-").isdigit():
        sign = "-" if text.startswith("-") else ""
        return sign + (text.lstrip("-").lstrip("0") or "0")
    if set(text) <= {"(", ")", "{", "}", "[", "]"}:
        return ""
    stripped = _strip_outer(text)
    return normalize(stripped) if len(stripped) <= MAX_LENGTH else stripped


@lru_cache(maxsize=8192)
def _normalize(answer: str) -> str:
    text = _from_unicode(answer)
    text = _drop_delimiters(_unboxed(_drop_delimiters(text)))
    text = _join_thousands(_ENVIRONMENT.sub(r"\g<inner>", _INVISIBLE.sub("", text)))
    text, unit = wrapped_unit(text)
    text = _choice_label(_PREFIX.sub("", _unwrap(text)))
    text = _latex_spelling(text)
    if not unit:
        text, unit = plain_unit(text)
    text = _strip_outer(_trim(text))
    text = _counting(_fractions(_spaces(text)))
    french = _OPEN_INTERVAL.fullmatch(text)
    if french and (french[1], french[3]) != ("[", "]"):
        text = ("(" if french[1] == "]" else "[") + french[2] + (")" if french[3] == "[" else "]")
    plain = _PLAIN_INTEGER.fullmatch(text)
    if plain:
        text = str(int(plain[1] + plain[2]))
    if text == r"\ldots" or not any(c.isalnum() or c in "\\?" for c in text):
        return ""
    return f"{text}\\unit{{{unit}}}" if unit else text


def _from_unicode(answer: str) -> str:
    """Unicode mathematics as LaTeX, digits of any script as ASCII, invisible characters gone."""
    if answer.isascii() and answer.isprintable():
        return answer
    answer = _SCRIPTS.sub(_script, answer)
    out: list[str] = []
    for char in answer:
        if char in _SYMBOLS:
            out.append(_SYMBOLS[char])
            continue
        category = unicodedata.category(char)
        if category in ("Cf", "Cc") and not char.isspace():
            continue
        decomposition = unicodedata.decomposition(char)
        if decomposition.startswith("<fraction>"):
            top, _, bottom = unicodedata.normalize("NFKC", char).partition("\N{FRACTION SLASH}")
            out.append(rf"\frac{{{top}}}{{{bottom or 1}}}")
        elif category == "Nd":
            out.append(str(unicodedata.decimal(char)))
        else:
            compatible = unicodedata.normalize("NFKC", char)
            out.append("".join(_SYMBOLS.get(c, c) for c in compatible))
    return "".join(out)


def _script(match: re.Match[str]) -> str:
    inner = unicodedata.normalize("NFKC", match[0]).replace("−", "-")
    return ("^{" if match[1] else "_{") + inner + "}"


def _drop_delimiters(text: str) -> str:
    r"""Markdown, dollars and ``\(...\)`` out; a dollar that is money becomes ``\$``."""
    text = text.strip().strip("*`").strip().replace("\\\\", r" \cr ")
    text = re.sub(r"^\\(?:display|text)style(?![a-z])\s*", "", text)
    text = re.sub(r"(?<!\\)\\[()]|(?<!\\)\\[\[\]](?![0-9.]+(?:pt|em|ex)\])", " ", text)
    text = re.sub(r"^\$(?=\s*-?[\d.])(?=[^$]*$)", r"\\$", text.strip())
    text = re.sub(r"(?<!\\)\$", "", text)
    text = re.sub(r"\\(?:left|right|middle)\s*(?![a-zA-Z])\.?", "", text)
    return re.sub(r"\\(?:left|right)(?=\\[a-zA-Z])", "", text)


def _unboxed(text: str) -> str:
    r"""What ``\boxed{...}`` around the whole answer holds; a unit in it then stands at the end."""
    for _ in range(5):
        match = re.match(r"\s*\\(?:boxed|fbox|framebox|ensuremath)\s*\{", text)
        if match is None or _closing(text, match.end() - 1) != len(text.rstrip()) - 1:
            break
        text = text.rstrip()[match.end() : -1].strip()
    return text


def _join_thousands(text: str) -> str:
    text = re.sub(r"(?<=\d)\{,\}(?=\d{1,2}(?!\d))(?!.*\{,\}.*\{,\})", ".", text)  # 3{,}14 has a decimal comma
    if re.search(r"\d\{,\}\d{3}", text):
        text = re.sub(r"(?<=\d)\{,\}(?=\d)", "", text)
    text = re.sub(r"(?<=\d)\{([,:.])\}(?=\d)", r"\1", text)
    text = re.sub(r"(?<=\d),\\[!,]\s*(?=\d{3}(?!\d))|(?<=\d)\\,(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\\[,;:!> ]|~", lambda m: "" if m[0] == r"\!" else " ", text)
    if re.search(r"[(\[{]", re.sub(r"\\[a-z]+\{|\^\{|_\{|\}\{", "", text)):
        return text  # (100,200) is a pair
    text = re.sub(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), text)
    if re.fullmatch(r"\s*-?[1-9]\d{0,2}(?: \d{3})+\s*", text):
        text = text.replace(" ", "")
    return text


def _unwrap(text: str) -> str:
    r"""``\text{...}``, ``\mathbf{...}``, ``\boxed{...}``, ``\color{red}{...}`` replaced by what they hold."""
    for _ in range(60):
        match = _WRAPPER.search(text)
        if match is None:
            break
        end = _closing(text, match.end() - 1)
        if end < 0:
            break
        if match[1] in ("color", "textcolor"):
            text = text[: match.start()] + text[end + 1 :].lstrip()
            continue
        inner = text[match.end() : end]
        joined = inner if match[1] in ("boxed", "fbox", "framebox") else f" {inner} "
        text = text[: match.start()] + joined + text[end + 1 :]
    return text


def _closing(text: str, start: int) -> int:
    depth = 0
    escaped = False
    for index in range(start, len(text)):
        char = text[index]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
    return -1


def _choice_label(text: str) -> str:
    """Reduce ``(A) 15`` and ``Option B`` to the letter, but not ``A and B``."""
    label = re.match(
        r"\s*(?:(?i:option|choice|answer)\s*)?\(([A-J])\)\s*[:.)]?\s+(?!and\b|or\b)[0-9A-Za-z$]", text
    )
    word = re.fullmatch(r"\s*(?i:option|choice|answer)\s*:?\s*\(?([A-Ja-j])\)?\s*\.?\s*", text)
    word = word or re.fullmatch(r"\s*([A-J])\s*\)[\s.]*", text)
    label = label or re.match(r"\s*([A-J])\s*[:.)]\s+(?!and\b|or\b)[A-Za-z]{2}", text)
    if label and re.search(r"(?:^|[\s(,;])[A-J]\s*[:.)=]", text[label.end(1) + 1 :]):  # A: 5, B: 7
        label = None
    found = label or word
    return found[1].upper() if found else text


def _latex_spelling(text: str) -> str:
    text = re.sub(r"\\([a-zA-Z]+)", lambda m: _COMMANDS.get(m[1], m[0]), text)
    text = re.sub(r"\s+!=\s*", "≠", text).replace("...", r"\ldots ")
    text = re.sub(r"\{([^{}\\]*)\\over(?![a-z])([^{}\\]*)\}", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\{([^{}\\]*)\\choose(?![a-z])([^{}\\]*)\}", r"\\binom{\1}{\2}", text)
    text = re.sub(r"\+/-", r"\\pm ", text)
    text = re.sub(r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}", text)
    text = re.sub(r"(?<![a-zA-Z\\])abs\s*\(([^()]*)\)", r"|\1|", text)
    text = _repeating(text)
    text = re.sub(r"(?<![a-zA-Z\\])(?:infinity|infty|inf|Infinity)(?![a-zA-Z])", r"\\infty", text)
    return text.replace(r"\#", "").replace("**", "^") if not text.endswith("**") else text.rstrip("*")


def _repeating(text: str) -> str:
    r"""Write ``0.(3)``, ``0.\dot{3}`` and ``0.333...`` as ``0.\overline{3}``."""
    if "." not in text:
        return text
    text = re.sub(r"(?<=\.)\((\d{1,40})\)", r"\\overline{\1}", text)
    text = re.sub(r"(\.\d*)\\dot\s*\{?(\d)\}?(?!\d*\\dot)", r"\1\\overline{\2}", text)
    text = re.sub(r"(\.\d*)\\overline\s*(\d)(?!\d)", r"\1\\overline{\2}", text)
    return re.sub(
        r"(?<![\d.])(\d+\.\d{0,40}?)(?:(\d)\2{2,60}|(\d{2,12}?)\3{2,20}|(\d{6,12}?)\4)\s*\\ldots\s*$",
        lambda m: rf"{m[1]}\overline{{{m[2] or m[3] or m[4]}}}",
        text,
    )


def _counting(text: str) -> str:
    r"""Write ``C(10,4)`` and ``{}_{10}C_4`` as binomials, ``{}_{10}P_4`` as a quotient; bases as numbers."""
    if "_" not in text and "C(" not in text and "base" not in text:
        return text
    text = re.sub(r"^([0-9A-Z]+) ?\(?(?:in )?base[ -](\w+)\)?$", r"\1_{\2}", text)
    text = re.sub(r"_\{(?:base ?(\d{1,2})|\((\d{1,2})\))\}", lambda m: f"_{{{m[1] or m[2]}}}", text)
    text = re.sub(r"_\{(?:base )?([a-z]+)\}", lambda m: f"_{_BASES[m[1]]}" if m[1] in _BASES else m[0], text)
    return _COUNTING.sub(_counted, text)


def _counted(match: re.Match[str]) -> str:
    n, k = match["n"] or match["of"], match["k"] or match["take"]
    if match["what"] == "P":
        return rf"\frac{{{n}!}}{{({n}-{k})!}}"
    return rf"\binom{{{n}}}{{{k}}}"


def _trim(text: str) -> str:
    text = text.strip()
    while True:
        shorter = _SURROUNDING.sub("", text.strip().strip("*`")).rstrip(".,;:").strip()
        shorter = shorter.removesuffix(r"\cr").removeprefix(r"\cr").lstrip("+").strip()
        if shorter == text:
            return text
        text = shorter


def _strip_outer(text: str) -> str:
    """Braces and parentheses around the whole answer, any number of levels, in one pass."""
    if text[:1] + text[-1:] not in ("()", "{}"):
        return text
    partner: dict[int, int] = {}
    stack: list[int] = []
    comma_inside: set[int] = set()
    for index, char in enumerate(text):
        if char in "([{":
            stack.append(index)
        elif char in ")]}" and stack:
            partner[stack.pop()] = index
        elif char in ",;" and stack and text[stack[-1]] != "{":
            comma_inside.add(stack[-1])
    low, high = 0, len(text)
    while low < high and text[low] in "({" and partner.get(low) == high - 1 and low not in comma_inside:
        if text[high - 1] != {"(": ")", "{": "}"}[text[low]] or text[high - 2 : high - 1] == "\\":
            break
        low, high = low + 1, high - 1
        while low < high and text[low].isspace():
            low += 1
        while low < high and text[high - 1].isspace():
            high -= 1
    return text[low:high]


def _spaces(text: str) -> str:
    """Keep a space only where it parts two letters or digits."""
    text = " ".join(text.split())
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)
    text = re.sub(r"(\\[a-zA-Z]+) (?=[0-9])", r"\1", text)
    if re.fullmatch(r"\(?[0-9A-Z ]+\)?_\{?[0-9 ]+\}?", text):
        text = re.sub(r"[ (){}]", "", text)
    return text


def _fractions(text: str) -> str:
    r"""``\frac12`` and ``\sqrt2`` get their braces, ``1 1/4`` becomes a mixed number, ``x^{2}`` ``x^2``."""
    text = re.sub(r"\\frac ?(\d) ?(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac ([a-zA-Z]) ?([0-9a-zA-Z])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac ?(\d) ?([a-zA-Z])(?![a-zA-Z])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac ?(\d)\{", r"\\frac{\1}{", text)
    text = re.sub(r"(\\frac\{[^{}]*\}) ?([0-9a-zA-Z])(?![0-9])", r"\1{\2}", text)
    text = re.sub(r"\\sqrt ?(\d+|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}", text)
    text = re.sub(r"\\sqrt(\[\w+\]) ?(\d+|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt\1{\2}", text)
    text = re.sub(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d/])", r"\1\\frac{\2}{\3}", text)
    return re.sub(r"([\^_])\{(?:([0-9])\}(?![0-9.])|([a-zA-Z])\}(?![a-zA-Z]))", r"\1\2\3", text)
