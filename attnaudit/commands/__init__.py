"""The commands of `attnaudit` that belong to no other package. `attnaudit.cli` lists all commands."""
