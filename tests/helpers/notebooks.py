"""Notebooks, run in a kernel of this interpreter."""

import warnings
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook


def executed(notebook: NotebookNode, folder: Path, seconds: int = 600) -> NotebookNode:
    """Runs all cells of a notebook in this folder, and returns it with their outputs.

    Raises: nbclient's CellExecutionError for a cell that fails.
    """
    client = NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.coalesce_streams = True
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
