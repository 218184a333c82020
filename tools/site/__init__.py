"""The documentation site: what is different there from the Markdown in the repository."""
