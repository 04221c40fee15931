"""Policies: files that declare the checks of a release, what they must contain, and how two of them differ.

A rule about policy files belongs here. The checks themselves know no policy.
"""
