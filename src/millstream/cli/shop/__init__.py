"""The shop behind `millstream demo`: its pipelines, its customers, its screen and its books."""
