"""Formulas become MathML while the site is built, so that a page needs no script and no other host to show them."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.+?)\\[)\]]</\1>', re.DOTALL)
_NAME_BEFORE_A_SYMBOL = re.compile(r"(<mi>(?:log|max|min)</mi>)(?=<m(?:i|n|sub|sup|subsup|frac)>)")


def on_page_content(html: str, page: Page, **kwargs: Any) -> str:
    return _FORMULA.sub(lambda match: _mathml(match, page.file.src_uri), html)


def _mathml(match: re.Match[str], page: str) -> str:
    source = html.unescape(match[2])
    made = convert(source.replace(r"\arg", r"\operatorname{arg}"), display="inline" if match[1] == "span" else "block")
    unknown = re.search(r"\\[A-Za-z]+", made)
    if unknown:
        raise PluginError(f"{page}: {unknown[0]} in the formula {source!r} is not known to latex2mathml")
    made = _NAME_BEFORE_A_SYMBOL.sub(r'\1<mspace width="0.17em"/>', made)
    return f'<{match[1]} class="formula">{made}</{match[1]}>'
