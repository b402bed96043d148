"""Notebooks, run in a kernel of this interpreter.

python -m tests.helpers.notebooks examples/pretrain_bert.ipynb …    # runs them, and writes what their cells show
"""

import sys
import warnings
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook


def executed(notebook: NotebookNode, folder: Path, seconds: int = 600) -> NotebookNode:
    """Runs all cells of a notebook in this folder, each for so many seconds at most, and returns it with their outputs.

    Raises: nbclient's CellExecutionError for a cell that fails.
    """
    client = NotebookClient(
        notebook,
        timeout=seconds,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client's own libraries, about sockets and event loops
        return client.execute()


def outputs_of(code: str, folder: Path) -> list[NotebookNode]:
    """Returns what a cell with this code shows."""
    return executed(new_notebook(cells=[new_code_cell(code)]), folder).cells[0].outputs


def read(file: Path) -> NotebookNode:
    """Reads a notebook. Raises: nbformat's ValidationError for a file that is none."""
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute_in_place(file: Path) -> None:
    """Runs a notebook where it lies, and writes its outputs into it, without the paths of this machine."""
    folder = file.resolve().parent
    notebook = executed(read(file), folder)
    notebook.metadata["language_info"] = {"name": "python"}  # no version, which would differ with every interpreter
    text = nbformat.writes(notebook).replace(f"{folder}/", "")
    file.write_text(text.rstrip("\n") + "\n", "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        execute_in_place(Path(name))
