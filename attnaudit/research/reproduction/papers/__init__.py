"""The papers that can be reproduced. Each paper has a module with its declaration, `PAPER`.

The module of a paper is imported only when `paper` is called with the name of the paper.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from attnaudit.errors import AuditError, nearest

if TYPE_CHECKING:
    from attnaudit.research.reproduction.paper_tables import Paper

#: Name of a paper -> (module of this package, authors and title).
PAPERS = {
    "jain-wallace": ("jain_wallace", "Jain & Wallace 2019, Attention is not Explanation"),
    "wiegreffe-pinter": ("wiegreffe_pinter", "Wiegreffe & Pinter 2019, Attention is not not Explanation"),
    "wen": ("wen", "Wen, Subbalakshmi & Yang 2022, Revisiting Attention Weights as Explanations"),
    "meister": ("meister", "Meister et al. 2021, Is Sparse Attention more Interpretable?"),
    "tutek-snajder": ("tutek_snajder", "Tutek & Šnajder 2020, Staying True to Your Word"),
}


def paper(name: str) -> Paper:
    """Return the declaration of the paper with the given name.

    Raises:
        AuditError: No paper has this name. The message gives the nearest known name.
    """
    if name not in PAPERS:
        raise AuditError(f"Unknown paper '{name}'. {nearest(name, PAPERS)}")
    declared: Paper = import_module(f"{__name__}.{PAPERS[name][0]}").PAPER
    return declared
