"""The subcommands of `attnaudit` that belong to no other folder; `attnaudit.cli` lists them all."""
