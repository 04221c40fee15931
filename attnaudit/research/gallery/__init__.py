"""The gallery: what checks look like on planted models, whose attention is right, unused or at the wrong place."""
