"""Windows over streams and batches. Each module opens with what its windows do to which rows."""
