"""The console: pages in a browser that show and steer a cluster, as a Kafka client of it.

`app` collects the pages, `server` serves them, `sessions` log in with the cluster's own users.
Nothing of this package is imported unless a console is started.
"""
