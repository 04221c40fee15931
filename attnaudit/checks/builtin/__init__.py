"""The built-in checks, one module for each, and what only some of them share, such as `erasure` and `fragility`.

The registry imports every module of this folder. A new check therefore needs no entry anywhere else.
"""
