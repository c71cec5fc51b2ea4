"""What users see: graphs, tensors, enums, handles. No inference of its own."""
