"""Checks that the results of a pass do not depend on the sites whose attention it requests."""

from __future__ import annotations

import torch

from attnaudit.adapters.protocol import TEXT
from attnaudit.adapters.site_selection import run_for
from attnaudit.conformance.contract import contract, require_close, require_same_logits
from attnaudit.conformance.gradient_flow import projected
from attnaudit.conformance.sample_texts import Examples

ADVICE = (
    "In run(), `sites` may change only which attention is recorded. If the remaining sites use another attention "
    "kernel, this kernel must give the same output."
)


@contract("selects_sites")
def check_selected_sites(e: Examples) -> str:
    """run() gives the same logits, attention and gradients if only the attention at some sites is requested."""
    few = e.few
    chosen = few.sites[-1]
    worst = 0.0
    for sites in ((), (chosen.key,)):
        with torch.no_grad():
            trace = run_for(few.adapter, few.inputs, sites)
        what = f"the logits of run() with sites={list(sites)} and of run() for all sites differ"
        worst = max(worst, require_same_logits(trace.logits, few.trace.logits, what, ADVICE))
        for key in sites:
            what = f"the attention at '{key}' of run() with sites={list(sites)} and of run() for all sites differs"
            require_close(trace.attention[key], few.trace.attention[key], what, ADVICE)
    if few.capabilities.differentiable:
        _require_same_gradient(few, chosen.key)
    return f"run() for some sites equals run() for all sites, within {worst:.1g}"


def _require_same_gradient(e: Examples, site: str) -> None:
    with torch.no_grad():
        embedded = {name: value.detach() for name, value in e.adapter.embed(e.inputs).items()}
    gradients = []
    with e.differentiating():
        for sites in (None, (site,)):
            leaves = {name: value.clone().requires_grad_(True) for name, value in embedded.items()}
            output = projected(run_for(e.adapter, e.inputs, sites, embeddings=leaves).logits)
            gradients.append(torch.autograd.grad(output, leaves[TEXT])[0])
    expected, found = gradients
    what = f"the gradients of run() with sites={[site]} and of run() for all sites differ"
    require_close(found, expected, what, ADVICE, tolerance=1e-3 * max(expected.abs().max().item(), 1e-6))
