"""The figures of papers: their records, their axes and labels, and the shapes that draw them."""
