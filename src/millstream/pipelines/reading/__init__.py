"""How a batch's records come in: offsets planned, record batches fetched, decoded into Arrow."""
