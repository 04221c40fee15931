"""The commands of `attnaudit` that belong to no other folder. The table of all commands is in `attnaudit.cli`."""
