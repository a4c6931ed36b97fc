"""Adds to the site what lies outside docs/: the README as its first page, the other pages of the root, and the
reference of the public Python names. Links between them are made to fit. MkDocs calls the functions (its `hooks`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "LICENSE": "LICENSE.md",
    "models/pico/README.md": "models-pico.md",
}
"""Files outside docs/, and the pages that they become."""
ASSETS = ("site.css", "search.js")
"""Files of this folder that every page of the site loads."""
NAMES = ("__all__", "_HOMES")
"""Of tensorwright/__init__.py: the public names, and the module of each."""
LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source == "LICENSE":
            text = f"# License\n\n```text\n{text}\n```\n"
        files.append(File.generated(config, page, content=relinked(text, ROOT / source)))
    files.append(File.generated(config, "api.md", content=reference()))
    for name in ASSETS:
        files.append(File.generated(config, name, content=(SITE / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    source = page.file.abs_src_path  # type: ignore[attr-defined]
    return markdown if source is None else relinked(markdown, Path(source))


def relinked(text: str, source: Path) -> str:
    """Returns a page's text with links to the pages of the site. source: the file that the text is of.

    A link to a file that is no page, such as a source file, becomes its path as code.
    """

    def link(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = (source.parent / path).resolve()
        if target.parent == ROOT / "docs" and target.suffix in (".md", ".svg"):
            return f"[{text}]({target.name}{anchor})"
        if not target.exists() or ROOT not in target.parents:
            return match[0]  # MkDocs refuses it if it is a link at all, and not a part of a program
        inside = target.relative_to(ROOT).as_posix()
        return f"[{text}]({OUTSIDE[inside]}{anchor})" if inside in OUTSIDE else f"{text} (`{inside}`)"

    return LINK.sub(link, text)


def reference() -> str:
    """Returns the page of the names in `tensorwright.__all__`, each documented where it is defined."""
    tree = ast.parse((ROOT / "src" / "tensorwright" / "__init__.py").read_text(encoding="utf-8"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in NAMES
    }
    names = sorted(values["__all__"], key=lambda name: (name != "LLM", name))
    parts = [f"::: {values['_HOMES'][name]}.{name}\n" for name in names]
    return "# The Python API\n\nWhat `import tensorwright` offers.\n\n" + "\n".join(parts)
