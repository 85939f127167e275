"""Pages that live outside docs/ join the site, and links between files of the repository lead to their pages.

A page is written for a reader of the repository: its links are relative to its own file. On the site, a link to another
page leads to that page. A link to any other file or folder leads to the repository's address in pyproject.toml
([project.urls], Repository). Without an address only the text of the link stays. A link to nothing is not touched, and
`mkdocs build --strict` fails on it.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "benchmarks.md": "benchmarks/README.md",
    "examples.md": "examples/README.md",
    "decoder-c.md": "decoders/c/README.md",
    "javascript.md": "decoders/js/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
}
_PAGES = {file: page for page, file in OUTSIDE.items()}
_LINK = re.compile(r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^()#\s]+)([^()\s]*)\)")


def on_files(files: Files, config: Any) -> Files:
    for page, file in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    uri = page.file.src_uri
    folder = posixpath.dirname(OUTSIDE.get(uri, f"docs/{uri}"))
    return _LINK.sub(lambda match: _on_the_site(match, folder), markdown)


def _on_the_site(link: re.Match[str], folder: str) -> str:
    text, target, anchor = link.groups()
    path = posixpath.normpath(posixpath.join(folder, target))
    if path in _PAGES:
        return f"[{text}]({_PAGES[path]}{anchor})"  # every page lies at the top of the site
    if path.startswith("docs/"):
        return f"[{text}]({posixpath.relpath(path, 'docs')}{anchor})"
    if path.startswith("..") or not (ROOT / path).exists():
        return link[0]
    address = _repository()
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"[{text}]({address}/{kind}/main/{path}{anchor})" if address else text


def _repository() -> str:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    return str(urls.get("Repository", "")).removesuffix("/")
