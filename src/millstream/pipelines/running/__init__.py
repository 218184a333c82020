"""How a pipeline is started, watched and stopped: settings, session, queries, outputs, failures."""
