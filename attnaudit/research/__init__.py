"""Studies made with attnaudit: planted models, the validation of the checks, and reproductions of papers.

The core of the package never imports this folder.
"""
