"""Figures that a sentence of a page quotes: found by the words around them, and those of where they come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"


@dataclass(frozen=True)
class Quote:
    """A sentence whose figures stand elsewhere, too; in both, {} is a figure and {*} a number that is no part of it."""

    page: str
    says: str
    where: str

    def of(self, text: str, source: str) -> str:
        """The page's text with the figures that the source has, each with as many decimals as the page shows.

        Raises:
            LookupError: the words are not on the page, or not in the source, or more than once.
        """
        found = find_once(self.says, text, self.page)
        figures = find_once(self.where, source, f"the source of {self.says!r}").groups()
        if len(figures) != len(found.groups()):
            raise LookupError(f"{self.says!r} has {len(found.groups())} figures, its source {len(figures)}")
        for number in reversed(range(len(figures))):
            begin, end = found.span(number + 1)
            text = text[:begin] + _as_shown(figures[number], text[begin:end]) + text[end:]
        return text


def find_once(template: str, text: str, name: str) -> re.Match[str]:
    """Find the template's words, with any line breaks and blanks between them.

    Raises:
        LookupError: the words do not stand there, or stand there more than once.
    """
    words = (re.escape(word) for word in template.split())
    pattern = r"\s+".join(words).replace(r"\{\}", f"({NUMBER})").replace(r"\{\*\}", f"(?:{NUMBER})")
    found = list(re.finditer(rf"(?<![\w.]){pattern}", text))
    if len(found) != 1:
        raise LookupError(f"{name} says {len(found)} times, not once: {template!r}")
    return found[0]


def _as_shown(figure: str, shown: str) -> str:
    """A figure, rounded where the page shows it with fewer decimals."""
    decimals = len(shown.partition(".")[2])
    if decimals >= len(figure.partition(".")[2]):
        return figure
    value = Decimal(figure.replace(",", "")).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{value:,}" if "," in figure else str(value)
