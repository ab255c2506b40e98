"""The mathematics, next to the papers: tensors in, tensors out."""
