"""Several brokers on one host, in processes of their own: `millstream serve --workers N`."""
