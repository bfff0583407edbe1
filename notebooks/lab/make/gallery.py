"""`make gallery`: the executed notebooks 02, 04 and 05 as Markdown with their figures, to be read on a web page.

Widgets, style sheets and inline pages are left out: a web page of a repository does not show them.
"""

import re
import shutil
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

from lab.files import ROOT, need, write_text

SHOWN = ("02_design_rewards", "04_plot_training", "05_merge_and_export")
GALLERY = ROOT / "notebooks" / "gallery"
LARGEST_MB = 3.0  # of the whole gallery: it is part of every clone
LONGEST_OUTPUT = 6_000  # characters of printed text in one cell
PAGE = "*The page stands here in the notebook: every completion, to search and compare. A run writes it as {}.*"


def without_what_a_web_page_drops(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The executed notebook with outputs that Markdown can show: text, tables, PNG figures."""
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    left_out = lambda cell: cell is setup or "injected-parameters" in cell.metadata.get("tags", [])
    notebook.cells = [cell for cell in notebook.cells if not left_out(cell)]
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in [kind for kind in data if kind not in ("image/png", "text/html", "text/plain")]:
                del data[kind]
            html = data.get("text/html", "")
            if "<iframe" in html:
                page = "`evaluation.html`" if "evaluation" in cell.source else "`completions.html`"
                data.clear()
                data["text/markdown"] = PAGE.format(page)
            elif html:
                html = re.sub(r"(?s)<style.*?</style>", "", html)
                html = re.sub(r' (?:id|class|style)="[^"]*"', "", html)
                data["text/html"] = re.sub(r"(?s)(<t[dh](?: [^>]*)?>)(.*?)(?=</t[dh]>)", with_line_breaks, html)
            if len(output.get("text", "")) > LONGEST_OUTPUT:
                output["text"] = output["text"][:LONGEST_OUTPUT] + "\n…\n"
        cell.outputs = [o for o in cell.get("outputs", []) if o.output_type == "stream" or o.get("data")]
        if cell.cell_type != "code":
            del cell["outputs"]
    return notebook


def with_line_breaks(match: re.Match) -> str:
    """A table's cell with its line breaks visible: Markdown ends an HTML block at an empty line."""
    return match[1] + re.sub(r"\s*\n\s*", "<br>", match[2].strip())


def write_gallery(executed: Path, gallery: Path = GALLERY) -> list[Path]:
    """Writes one Markdown file and a folder of figures for each notebook shown; returns the Markdown files.

    Raises:
        MissingInputError: where a notebook was not executed yet.
        ValueError: where the gallery would be larger than LARGEST_MB.
    """
    copies = [need(executed / f"{name}.ipynb", "make run") for name in SHOWN]
    shutil.rmtree(gallery, ignore_errors=True)
    written = []
    for copy in copies:
        name = copy.stem
        notebook, names = without_what_a_web_page_drops(nbformat.read(copy, 4)), {"unique_key": name}
        text, resources = MarkdownExporter().from_notebook_node(notebook, {**names, "output_files_dir": name})
        for path, content in resources["outputs"].items():
            (gallery / path).parent.mkdir(parents=True, exist_ok=True)
            (gallery / path).write_bytes(content)
        text = re.sub(r"\]\((?!http|#|" + name + r")([^)\s]+)\)", r"](../\1)", text)  # links start one folder deeper
        text = re.sub(r"\n{3,}", "\n\n", text.replace(f"{ROOT}/", "").replace(str(Path.home()), "~"))
        head = f"> [{name}](../{name}.ipynb) as `make run` executed it. `make gallery` made this page.\n\n"
        written.append(write_text(gallery / f"{name}.md", head + text))
    size = sum(path.stat().st_size for path in gallery.rglob("*") if path.is_file()) / 1e6
    if size > LARGEST_MB:
        raise ValueError(f"The gallery has {size:.1f} MB, more than {LARGEST_MB:g}: make figures smaller.")
    return written


if __name__ == "__main__":
    for path in write_gallery(ROOT / "outputs" / "executed"):
        print(path.relative_to(ROOT))
