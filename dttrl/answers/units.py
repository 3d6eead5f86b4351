r"""Units at the end of an answer: recognised, given one name each, and cut off.

``12 cm``, ``12\text{ centimeters}``, ``\$18.90``, ``28\%``, ``30^\circ``, ``5 apples``. Whole words only,
after a number; a word that belongs to mathematics or to a sentence is no unit.
"""

from __future__ import annotations

import re
from typing import Final

_STOP_WORDS: Final = frozenset({
    "and", "or", "if", "for", "when", "where", "mod", "not", "no", "is", "are", "the", "with", "sin",
    "cos", "tan", "cot", "csc", "log", "exp", "sqrt", "max", "gcd", "lcm", "infinity",
    "infty", "cannot", "can", "be", "as", "choose", "than", "times", "plus", "minus", "over", "to", "by",
    "per", "cent", "of", "all", "real", "solution", "solutions",
})  # fmt: skip
_SAME_UNIT: Final = {
    "percent": "%", "percentage": "%", "pct": "%", "degree": "deg", "dollar": "usd", "cent": "cent",
    "euro": "eur", "pound": "gbp", "meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm",
    "millimeter": "mm", "millimetre": "mm", "kilometer": "km", "kilometre": "km", "inche": "in",
    "inch": "in", "feet": "ft", "foot": "ft", "yard": "yd", "mile": "mi", "second": "s", "sec": "s",
    "minute": "min", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l",
    "mile per hour": "mph", "kilometer per hour": "km/h", "kilometre per hour": "km/h", "kph": "km/h",
    "kmh": "km/h", "meter per second": "m/s", "metre per second": "m/s", "foot per second": "ft/s",
    "feet per second": "ft/s", "ounce": "oz", "pct.": "%", "day": "day", "unit": "unit", "hrs": "h",
    "milliliter": "ml", "millilitre": "ml", "milligram": "mg", "lbs": "lb",
}  # fmt: skip
_SHORT_UNITS: Final = frozenset({
    "cm", "mm", "km", "ft", "in", "yd", "mi", "kg", "mg", "lb", "lbs", "oz", "ml", "hr", "hrs", "sec",
    "min", "mph", "kph", "pct", "deg", "pm", "am", "cm/s", "m/s", "km/h", "kmh", "ms", "sq",
})  # fmt: skip
_SINGLE_UNITS: Final = frozenset("mgshljnw")


def _canonical_unit(words: str) -> str:
    """``square meters`` -> ``m^2``; ``""`` when the words are no unit."""
    words = " ".join(words.replace(".", "").lower().split())
    parts = words.replace("/", " ").replace("^", " ").split()
    if not 0 < len(parts) <= 5 or (words not in ("per cent", "cent") and _STOP_WORDS & {*parts} - {"per"}):
        return ""
    power = {"square": "^2", "sq": "^2", "cubic": "^3"}.get(parts[0], "")
    if power:
        words = words.split(" ", 1)[1] if " " in words else ""
    words = "%" if words == "per cent" else words
    singular = words[:-1] if words.endswith("s") and len(words) > 2 and "/" not in words else words
    first, slash, rest = singular.partition(" per ")
    if slash:
        singular = f"{first[:-1] if first.endswith('s') else first} per {rest}"
    return _SAME_UNIT.get(singular, singular) + power if singular else ""


_VALUE: Final = re.compile(r"\d|\\frac|\\[dt]frac|\\pi|\\sqrt|½|\\infty")
_WRAPPED_UNIT: Final = re.compile(
    r"\s*\\(?:text|mathrm|mbox|textrm|textbf|rm|operatorname|unit)\s*\{\s*([A-Za-z%][A-Za-z./^0-9 ]*?)\s*\}"
    r"\s*(\^\s*\{?\s*[23]\s*\}?)?[\s.]*$"
)
_ORDINAL: Final = re.compile(
    r"(?<=\d)\s*(?:\^\s*)?(?:\{\s*)?(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*)?(?:st|nd|rd|th)\b\s*\}{0,2}"
)


def wrapped_unit(text: str) -> tuple[str, str]:
    r"""Cut off the unit that stands in ``\text{...}`` at the end; the answer first, then the unit."""
    text = _ORDINAL.sub("", text)
    match = _WRAPPED_UNIT.search(text)
    if match is None or not _VALUE.search(text[: match.start()]):
        return text, ""
    words = match[1]
    if len(words) == 1 and words.lower() not in _SINGLE_UNITS and words != "%":
        return text, ""
    unit = _canonical_unit(words)
    if not unit or text[: match.start()].count("{") != text[: match.start()].count("}"):
        return text, ""
    power = re.sub(r"[^23]", "", match[2] or "")
    return text[: match.start()], unit + (f"^{power}" if power else "")


_CURRENCY: Final = ((r"\$", "usd"), (r"\euro", "eur"), (r"\pound", "gbp"), (r"\yen", "jpy"))
_CURRENCY_WORD: Final = re.compile(r"(?:(usd|eur|gbp)\s*(?=\d)|(?<=\d)\s*(usd|eur|gbp)$)", re.IGNORECASE)
_TRAILING_WORDS: Final = re.compile(
    r"(?<=[\d})])\s*([A-Za-z][A-Za-z./]*(?:\s+[A-Za-z][A-Za-z./]*){0,5})\s*(\^\s*\{?[23]\}?)?$"
)


def plain_unit(text: str) -> tuple[str, str]:
    """Cut off money, percent, degrees and bare unit words; the answer first, then the unit."""
    text = text.strip().rstrip(".,;")
    for sign, unit in _CURRENCY:
        if sign in text:
            rest = text.replace(sign, " ").strip()
            return (rest, unit) if _VALUE.search(rest) else (text, "")
    word = _CURRENCY_WORD.search(text)
    if word is not None and (word.start() == 0 or word.end() == len(text)):
        return text[: word.start()] + text[word.end() :], (word[1] or word[2]).lower()
    if re.search(r"\\?%$", text) and _VALUE.search(text):
        return re.sub(r"\s*\\?%$", "", text), "%"
    degrees = re.search(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*([CF]?)$", text)
    if degrees and not re.search(r"\\?(?:sin|cos|tan|cot|sec|csc)", text):
        return text[: degrees.start()], "deg" + degrees[1].lower()
    return _bare_unit(text)


def _bare_unit(text: str) -> tuple[str, str]:
    """Cut off unit words that follow a number: known short units, and words of four letters or more."""
    words = _TRAILING_WORDS.search(text)
    if words is None:
        return text, ""
    value = text[: words.start()]
    named = re.sub(r"\\[a-z]+", "", value).rpartition("=")[2]
    if re.search(r"[A-Za-z]", named) or value.count("{") != value.count("}"):
        return text, ""
    if not all(len(w) >= 4 or w.lower().replace(".", "") in _SHORT_UNITS for w in words[1].split()):
        return text, ""
    unit = _canonical_unit(words[1])
    power = re.sub(r"[^23]", "", words[2] or "")
    return (value, unit + (f"^{power}" if power else "")) if unit else (text, "")
