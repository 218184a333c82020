"""One module per page: its routes, and the models that its template and its JSON show."""
