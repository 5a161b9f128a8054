"""Four operating-system processes that train by private gossip over TCP: an example of a deployment, not a library."""
