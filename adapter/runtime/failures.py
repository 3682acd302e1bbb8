"""Who failed, in the trailing metadata of a call that did: a client that cannot reach the adapter gets none."""

FAILED = "offset-adapter-failed"
META_SERVICE = "meta-service"  # the adapter answers, the Meta Service does not
SERVER = "server"  # who was called, itself
