"""The engine runs a model on the instances, and computes the measures that the checks need.

The folder `batches` has what a measure sees: the passes of the model over one batch. The modules here have three tasks:

* Which measures are computed: `declared_measures`, `planning`, `measure_costs`.
* Measuring: `measuring.measure` divides the instances into shards, `shard_measuring` measures one of them in batches
  (`batch_loop`), and `repeated_pass` and `model_identity` detect models that change meanwhile.
* The numbers: `columns` are those of one batch, `shard_numbers` those of one shard, and `measurements` those of all
  instances. `ragged_columns` and `row_lengths` store them, and `merged_sources` finds rows that repeat each other.
"""
