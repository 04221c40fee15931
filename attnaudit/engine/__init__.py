"""The engine runs a model on the instances, and computes the measures that the checks need.

The modules have four tasks:

* What a measure sees: `attention_view` is one batch under one reading. It is built on `attention_reading`, `batch` and
  `clean_pass`, each of which computes a result at most once. `interventions`, `held_attention`, `masked_states`,
  `unit_masks`, `batched_influences` and `explanations` change attention or tokens, `scopes` says where, and `logits`
  compares the outputs.
* Which measures are computed: `declared_measures`, `planning`, `measure_costs`.
* Measuring: `measuring.measure` divides the instances into shards, `shard_measuring` measures one of them in batches
  (`batch_loop`, `batch_sizes`), and `repeated_pass` and `model_identity` detect models that change meanwhile.
* The numbers: `columns` are those of one batch, `shard_numbers` those of one shard, and `measurements` those of all
  instances. `ragged_columns` and `row_lengths` store them, and `merged_sources` finds rows that repeat each other.
"""
