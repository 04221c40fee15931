"""The gallery: the results of the checks on planted models whose attention is right, unused or in the wrong place."""
