"""Evidence about one run, for people and programs outside of it: a statement, a model card and a test report.

The files are made only from a complete run whose files were not edited. They state a failure as plainly as a pass.
"""
