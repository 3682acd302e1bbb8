"""Which side failed, in the trailing metadata of a failed call. A call that did not reach a server has no such metadata."""

FAILED = "offset-adapter-failed"
META_SERVICE = "meta-service"  # the server works, but the Meta Service behind it does not answer
SERVER = "server"  # the server that was called
