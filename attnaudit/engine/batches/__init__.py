"""One batch of instances: the passes of a model over it, and its attention under one reading, as measures see it.

`attention_view` is one batch under one reading. It is built on `attention_reading`, `batch` and `clean_pass`, each of
which computes a result at most once. `interventions`, `held_attention`, `masked_states`, `unit_masks`,
`batched_influences` and `explanations` change attention or tokens, `scopes` says where, and `logits` compares the
outputs.
"""
