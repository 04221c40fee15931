"""Reading what is on disk: checkpoint folders, PEFT adapters, preprocessors, and settings in `attnaudit.toml`.

A new rule about the files of a checkpoint belongs here.
"""
