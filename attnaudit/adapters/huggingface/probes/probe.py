"""Probe a model: run it on synthetic tokens to find out how it works, and whether it can be audited.

A model can be audited only if it computes its logits from the attention that is recorded and replaced. No function
changes the `Runner` that it is given. The results are returned as `Facts`.

Shapes: B rows, T tokens, V variants, C classes, H heads, Q queries, K keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.fused_attention import FusedComparison
from attnaudit.adapters.huggingface.forward_hooks import frozen_parameters, temporary_hooks
from attnaudit.adapters.huggingface.logit_comparison import TOLERANCE, attempt, close, gives, largest_difference
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens, read_positions
from attnaudit.adapters.huggingface.passes import prefix_cache
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.passes.unpadded import without_padding
from attnaudit.adapters.huggingface.probes.block_probe import computes_blocks_exactly
from attnaudit.adapters.huggingface.probes.equal_states_probe import first_linears_of_equal_states
from attnaudit.adapters.huggingface.probes.facts import Facts
from attnaudit.adapters.huggingface.probes.gradient_probe import batches_gradients_exactly
from attnaudit.adapters.huggingface.probes.last_layer_probe import last_layer_at_read_token, with_single_query
from attnaudit.adapters.huggingface.probes.padding_probe import (
    first_left_padded_position,
    how_padding_enters,
    needs_left_padding,
    require_independent_rows,
    runs_without_padding,
)
from attnaudit.adapters.huggingface.probes.repeated_runs import refuse_different_results, require_same_results
from attnaudit.adapters.huggingface.probes.token_mixing import unseen_mixers
from attnaudit.adapters.huggingface.texts.input_builder import single_row
from attnaudit.adapters.joined_rows import gradients
from attnaudit.adapters.protocol import TEXT, Inputs, Trace
from attnaudit.adapters.site_selection import at_query
from attnaudit.errors import AdapterError


def probe_model(runner: Runner) -> Facts:
    """Find the facts about a model.

    If padding changes the logits of a class of Transformers, the model is probed, and must be run, without padding. It
    then has none of the shortcuts of this module.

    Raises:
        AdapterError: The model cannot be audited, because it does not compute its logits from the attention that is
            recorded and replaced.
    """
    offset = runner.builder.position_offset
    pads_left = needs_left_padding(runner)
    runner = runner.with_padding(pads_left=pads_left, first_position=offset)
    unpadded = runs_without_padding(runner)
    runner = without_padding(runner) if unpadded else runner
    read_tokens: ReadTokens = "" if runner.head.target.differs_by_row else find_read_tokens(runner)
    try:
        require_faithful_attention(runner)
    except AdapterError:
        require_same_results(runner)
        raise
    if unpadded:
        require_independent_rows(runner)
    shares_prefixes = shares_prefixes_exactly(runner)
    fuses = fuses_exactly(runner)
    first_position = first_left_padded_position(runner, read_tokens)
    selects_queries = fuses and selects_queries_exactly(runner)
    as_audited = replace(runner, fuses=fuses, selects_queries=selects_queries)
    last_layer = None if unpadded else last_layer_at_read_token(runner, read_tokens)
    if last_layer is not None and selects_queries:
        last_layer = with_single_query(as_audited, last_layer)
    return Facts(
        read_tokens=read_tokens,
        skips_padding_token=skips_padding_token(runner, read_tokens),
        pads_left=pads_left,
        unpadded=unpadded,
        left_padding=first_position is not None,
        first_position=offset if first_position is None else first_position,
        shares_prefixes=shares_prefixes,
        unseen_mixers=unseen_mixers(runner, read_tokens),
        fuses=fuses,
        selects_queries=selects_queries,
        batches_gradients=batches_gradients_exactly(as_audited),
        query_blocks=not unpadded and computes_blocks_exactly(as_audited),
        last_layer=last_layer,
        first_linears=None if unpadded else first_linears_of_equal_states(runner),
    )


# -- the tokens that the logits are read from ----------------------------------------------------------------------


def find_read_tokens(runner: Runner) -> ReadTokens:
    """Find the tokens that the logits are read from.

    These are the tokens for which the gradient of the logits with respect to the output of the last layer is not zero.

    Returns:
        "first", "last" or "all"; "" if the tokens are unknown.
    """
    layers = runner.layout.layers
    if not layers:
        return ""
    inputs = runner.builder.synthetic()
    if runner.builder.unpadded:
        inputs = single_row(inputs, 0)  # texts of different lengths do not run in one pass
    outputs: list[Tensor] = []

    def record(_module: nn.Module, _args: object, output: Any) -> Any:
        states = output if isinstance(output, Tensor) else output[0]
        outputs.append(states.detach().requires_grad_(True))
        return outputs[-1] if isinstance(output, Tensor) else (outputs[-1], *output[1:])

    handles = [layers[-1].register_forward_hook(record)]
    with temporary_hooks(handles), torch.enable_grad(), frozen_parameters(runner.model):
        logits = runner.logits(inputs)
        if not logits.requires_grad:
            return ""
        (gradient,) = torch.autograd.grad(logits.square().sum(), outputs[-1:], allow_unused=True)
    mask = runner.builder.output_mask(inputs)
    if gradient is not None:
        gradient = runner.layout.calls[-1].token_states(gradient)
    if gradient is None or gradient.shape[:2] != mask.shape:
        return ""
    # Some models keep several states of each token.
    used = gradient.abs().flatten(2).sum(-1) > 0
    positions = torch.arange(mask.shape[1], device=mask.device)
    if bool((used == (positions == read_positions(mask, "last")[:, None])).all()):
        return "last"
    if bool((used == (positions == 0)).all()):
        return "first"
    return "all" if bool(used[runner.builder.pooled_tokens(inputs)].all()) else ""


def skips_padding_token(runner: Runner, read_tokens: ReadTokens) -> bool:
    """Return whether the model skips a padding token at the end of a text, although the mask includes it."""
    builder = runner.builder
    if read_tokens != "last" or builder.decoder is not None or not builder.deletes:
        return False
    whole = single_row(builder.synthetic(), 0)
    padded, keep = whole.ids[TEXT].clone(), whole.mask[TEXT].clone()
    padded[:, -1], keep[:, -1] = builder.pad_id, False
    shorter = builder.keep(whole, TEXT, torch.zeros(1, dtype=torch.long, device=keep.device), keep)
    with torch.no_grad():
        logits = runner.logits(replace(whole, ids={**whole.ids, TEXT: padded}))
        return close(logits, runner.logits(shorter))


# -- attention -----------------------------------------------------------------------------------------------------


def require_faithful_attention(runner: Runner) -> None:
    """Check that the model computes its logits from the attention that is recorded and replaced.

    The logits must be finite, the same in every run, and independent of padding. They must stay the same if attention
    is recorded, or replaced by the same weights. They must change if attention is replaced by uniform weights.
    Gradients must reach the embeddings and the attention weights of every site.

    Raises:
        AdapterError: One of these conditions is not met.
    """
    inputs, name = runner.builder.synthetic(), runner.name
    with torch.no_grad():
        plain = runner.logits(inputs)
        again = runner.logits(inputs)
        trace = runner.run(inputs)
        reinserted = runner.run(inputs, intervene=lambda site, _w, _a: trace.attention[site.key].clone())
        uniform = runner.run(inputs, intervene=lambda _s, weights, allowed: uniform_weights(weights, allowed))
        alone = runner.logits(single_row(inputs, 1))
    if not bool(plain.isfinite().all()):
        raise AdapterError(f"{name}: the logits are not finite. Look for damaged weights in the checkpoint.")
    refuse_different_results(name, plain, again)
    if not close(alone[0], plain[1]):
        raise AdapterError(
            f"{name}: padding changes the logits by {largest_difference(alone[0], plain[1]):.2g}, so the result of an "
            f"instance would depend on its batch. {how_padding_enters(runner, trace)}"
        )
    for logits, what in ((trace.logits, "recording"), (reinserted.logits, "putting back")):
        if not close(logits, plain):
            raise AdapterError(
                f"{name}: {what} the model's own attention changes the logits by "
                f"{largest_difference(logits, plain):.2g}, so the model does not compute its output from "
                "the recorded attention. This architecture cannot be audited."
            )
    if torch.equal(uniform.logits, plain):  # The model's own attention may be uniform, so other weights are tried, too.
        with torch.no_grad():
            first = runner.run(inputs, intervene=lambda _s, weights, allowed: weights_on_first_key(weights, allowed))
        if torch.equal(first.logits, plain):
            raise AdapterError(
                f"{name}: replacing all attention by uniform weights, or by weights on the first token alone, does not "
                "change the logits, so the model does not compute its output from the replaced attention. This "
                "architecture cannot be audited."
            )
    _require_distributions(name, trace)
    _require_gradients(runner, inputs)


def uniform_weights(weights: Tensor, allowed: Tensor) -> Tensor:
    """Return uniform weights over the allowed keys of each query, with the shape (B, H, Q, K) of `weights`."""
    return (allowed / allowed.sum(-1, keepdim=True).clamp_min(1)).expand_as(weights).to(weights)


def weights_on_first_key(weights: Tensor, allowed: Tensor) -> Tensor:
    """Return weights of 1 at the first allowed key of each query, with the shape (B, H, Q, K) of `weights`."""
    first = allowed.bool() & (allowed.cumsum(-1) == 1)
    return first.expand_as(weights).to(weights)


def _require_distributions(name: str, trace: Trace) -> None:
    """Check that the weights of each query are not negative, sum to at most one, and are zero outside the allowed keys.

    Raises:
        AdapterError: The weights at some site violate one of these conditions.
    """
    for key, weights in trace.attention.items():
        allowed = trace.allowed[key]
        excess = ((weights.sum(-1) - 1) * allowed.any(-1)).max().item()
        outside = (weights * ~allowed).abs().max().item()
        if not excess <= TOLERANCE or weights.min().item() < 0 or outside > TOLERANCE:
            raise AdapterError(
                f"{name}: the weights at '{key}' are not a probability distribution over the tokens that each query "
                "may attend to. This architecture cannot be audited."
            )


def _require_gradients(runner: Runner, inputs: Inputs) -> None:
    """Check that gradients reach the embeddings and the attention weights of every site.

    Two further conditions are checked. The logits must stay the same if the model's own embeddings are passed in, and
    the states from which the values are computed must be recorded.

    Raises:
        AdapterError: One of these conditions is not met.
    """
    name = runner.name
    with torch.no_grad():
        embeddings = runner.embed(inputs).detach()
    embeddings.requires_grad_(True)
    with torch.enable_grad(), frozen_parameters(runner.model):
        trace = runner.run(inputs, embeddings={TEXT: embeddings}, hidden=True)
        if not close(trace.logits.detach(), runner.logits(inputs).detach()):
            raise AdapterError(
                f"{name}: the logits change if the model gets its own embeddings instead of token ids, so "
                "gradients with respect to these embeddings would be wrong. This architecture cannot be "
                "audited."
            )
        if not trace.logits.requires_grad:
            raise AdapterError(
                f"{name}: its logits have no gradient. Look for torch.no_grad(), torch.inference_mode(), detach() or "
                "argmax() in forward(). To freeze parameters, call requires_grad_(False) on them instead."
            )
        _require_gradients_of_weights(runner, trace)
        leaves = {"the embeddings": embeddings, **trace.attention}
        found = gradients(trace.logits.square().sum(), list(leaves.values()), trace.joined)
    for key, gradient in zip(leaves, found, strict=True):
        if gradient is None or not bool(gradient.isfinite().all()) or not bool(gradient.any()):
            raise AdapterError(
                f"{name}: the gradient of the logits at {key} is missing, zero or not finite. Attention can be audited "
                "only if the logits depend on it and are differentiable."
            )
    for key, weights in trace.attention.items():
        states, expected = trace.hidden.get(key), (weights.shape[0], weights.shape[3])
        if states is None or tuple(states.shape[:2]) != expected:
            problem = "were not found" if states is None else f"have the shape {tuple(states.shape)}"
            raise AdapterError(
                f"{name}: the hidden states from which '{key}' computes its value vectors {problem}. Expected the "
                f"shape ({expected[0]}, {expected[1]}, m). This architecture cannot be audited."
            )


def _require_gradients_of_weights(runner: Runner, trace: Trace) -> None:
    """Check that the model computes no attention without gradients.

    Raises:
        AdapterError: It does so at some sites.
    """
    constant = [key for key, weights in trace.attention.items() if not weights.requires_grad]
    if not constant:
        return
    setting = "L_bp_cycles"
    fix = "Remove torch.no_grad() or detach() from forward()."
    if hasattr(runner.model.config, setting):
        fix = (
            f"In config.json, give {setting} one number for each of the H_cycles, each equal to L_cycles. This changes "
            "gradients only."
        )
    raise AdapterError(
        f"{runner.name}: {len(constant)} of {len(trace.attention)} attention layers run without gradients, such as "
        f"'{constant[0]}', so gradients would miss a part of the influence of the tokens. {fix}"
    )


# -- shortcuts -----------------------------------------------------------------------------------------------------


def fuses_exactly(runner: Runner) -> bool:
    """Return whether the fused kernel gives the same output as the model's own attention function, at every site.

    The comparison runs on texts with and without padding, and with scores of several sizes. The answer is always False
    for a model that runs without padding.
    """
    if runner.builder.unpadded or not runner.kernel.calls_attention_function:
        return False
    inputs, comparison = runner.builder.synthetic(), FusedComparison()
    with torch.no_grad():
        for batch in (inputs, single_row(inputs, 1)):
            runner.logits(batch, comparison)
    return comparison.largest_difference <= TOLERANCE


def selects_queries_exactly(runner: Runner) -> bool:
    """Return whether passes that compute the weights of only some queries give the same results as eager attention.

    The comparison runs on texts with and without padding, and reads three queries at every site. The fused kernel must
    give the same output as the model's own attention functions.
    """
    sites = runner.layout.sites
    selecting = replace(runner, fuses=True, selects_queries=True)
    batch = runner.builder.synthetic()
    with torch.no_grad():
        for inputs in (batch, single_row(batch, 1)):
            queries = {}
            for site in sites:
                mask = inputs.mask[str(site.query)]
                first, last = read_positions(mask, "first"), read_positions(mask, "last")
                queries[site.key] = torch.stack([first, last, (first + last) // 2], dim=1)
            whole = runner.run(inputs)
            # An attention function that cannot be called for some of the queries may fail with any exception.
            trace = attempt(partial(selecting.run, inputs, sites=tuple(queries), queries=queries))
            if trace is None or not close(trace.logits, whole.logits):
                return False
            for key, positions in queries.items():
                for r, at in enumerate(positions.T):
                    expected = at_query(whole, whole.attention[key], key, at)
                    if not largest_difference(trace.attention[key][:, :, r], expected) <= TOLERANCE:
                        return False
                    if not torch.equal(trace.allowed[key][:, :, r], at_query(whole, whole.allowed[key], key, at)):
                        return False
    return True


def shares_prefixes_exactly(runner: Runner) -> bool:
    """Return whether `prefix_cache.logits_without` gives the same logits as deleting the tokens.

    The comparison removes each token of the synthetic texts alone, and several tokens of one text together. The answer
    is always False for a model that has a decoder, is not causal, must be padded on the left, runs without padding,
    takes no key-value cache, or has a target that differs by row.
    """
    builder = runner.builder
    if builder.decoder is not None or not runner.layout.causal or builder.pads_left:
        return False
    if builder.unpadded or runner.head.target.differs_by_row:
        return False
    if not prefix_cache.cache_argument(builder.accepted_arguments):
        return False
    inputs = builder.synthetic()
    real = inputs.real()
    rows, missing = real.nonzero(as_tuple=True)
    keep = inputs.mask[TEXT][rows]
    keep[torch.arange(len(rows)), missing] = False
    without_several = inputs.mask[TEXT][:1].clone()
    without_several[0, real[0].nonzero()[1::2, 0]] = False
    rows, keep = torch.cat([rows, rows.new_zeros(1)]), torch.cat([keep, without_several])
    starts, _ = prefix_cache.rerun_range(inputs, rows, keep)
    with torch.no_grad():
        expected = runner.logits(builder.keep(inputs, TEXT, rows, keep))

        def from_prefixes() -> Tensor:
            logits = torch.full_like(expected, torch.nan)
            shared = prefix_cache.share(runner, inputs)
            if shared.layers is None:
                return logits
            # One pass for each start, because variants that are run together begin at the earliest of their starts.
            for start in set(starts.tolist()):
                same = starts == start
                logits[same] = prefix_cache.logits_without(runner, inputs, shared, rows[same], keep[same])
            return logits

        return gives(from_prefixes, expected)
