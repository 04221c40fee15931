"""The pytest plugin. pytest loads it at every start, so importing it imports neither torch nor the checks."""
