"""Studies made with attnaudit: planted models, validation of the checks, reproductions of papers.

The core never imports them.
"""
