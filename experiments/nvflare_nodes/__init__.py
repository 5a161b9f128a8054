"""Four sites of NVFlare's peer-to-peer algorithms that train by private gossip: an example of a deployment."""
